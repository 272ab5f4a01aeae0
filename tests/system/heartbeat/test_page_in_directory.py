"""A file per process in a directory, for an agent that shares no pid namespace."""

from __future__ import annotations

import os
import stat

from watchtower_heartbeat.layout import MEMFD_NAME
from watchtower_heartbeat.page import read_page

from tests.system.heartbeat.heartbeat_trainer import open_pages


def test_the_page_is_a_private_file_that_names_its_process(train, tmp_path) -> None:
    trainer = train(RANK="3", WATCHTOWER_HEARTBEAT_DIR=str(tmp_path))
    trainer.do("beat(6)")
    (path,) = tmp_path.iterdir()
    assert path.name.startswith(f"{MEMFD_NAME}.")
    assert f".{trainer.pid}." in path.name
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with path.open("rb") as file:
        view = read_page(file.fileno())
    assert (view.rank, view.step) == (3, 6)
    assert open_pages(trainer.pid) == []


def test_the_file_goes_at_the_end_and_whoever_holds_it_has_the_last_words(train, tmp_path) -> None:
    trainer = train(RANK="3", WATCHTOWER_HEARTBEAT_DIR=str(tmp_path))
    (path,) = tmp_path.iterdir()
    with path.open("rb") as file:
        trainer.end("raise ValueError('gone')")
        assert list(tmp_path.iterdir()) == []
        assert read_page(file.fileno()).exception_message == "gone"


def test_a_killed_process_leaves_its_file(train, tmp_path) -> None:
    trainer = train(RANK="3", WATCHTOWER_HEARTBEAT_DIR=str(tmp_path))
    trainer.stop()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_forked_child_does_not_remove_its_parents_file(train, tmp_path) -> None:
    trainer = train(RANK="3", WATCHTOWER_HEARTBEAT_DIR=str(tmp_path))
    trainer.do("import os, sys; child = os.fork() or sys.exit(0); os.waitpid(child, 0)")
    assert len(list(tmp_path.iterdir())) == 1


def test_a_relative_directory_is_found_again_after_the_program_moved(train, tmp_path) -> None:
    relative = os.path.relpath(tmp_path)
    trainer = train(RANK="3", WATCHTOWER_HEARTBEAT_DIR=relative)
    assert trainer.end("import os; os.chdir('/')")[0] == 0
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_there_is_said_once_and_training_goes_on(train, tmp_path) -> None:
    trainer = train(RANK="3", WATCHTOWER_HEARTBEAT_DIR=str(tmp_path / "missing"))
    trainer.do("beat(1); beat(2)")
    code, errors = trainer.end()
    assert code == 0
    assert errors.count("\n") == 1
    assert "missing" in errors
    assert not (tmp_path / "missing").exists()
