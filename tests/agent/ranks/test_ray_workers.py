"""What Ray has given to a worker. Its /proc is a folder: no process is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.procfs import Proc
from agent.ranks.ray_workers import MAX_BEGIN_BYTES, NOTHING, Assigned, read_assigned

PID = 4711
NAME = f"worker-9f5fb21edd1846de8a8f17ae7ce1e80d935da2601f68a0a9cbf5b78c-ffffffff-{PID}.out"
BEGIN = ":job_id:01000000\n:actor_name:Trainer\n"
TRAINER = Assigned(job="01000000", actor="Trainer")


def read(root: Path, text: str = BEGIN, *, name: str = NAME, kind: str = "ext4") -> Assigned:
    log, process = root / "logs" / name, root / "proc" / str(PID)
    for folder in (log.parent, process / "fd", process / "fdinfo"):
        folder.mkdir(parents=True)
    log.write_text(text)
    (process / "fd" / "1").symlink_to(log)
    (process / "fdinfo" / "1").write_text("pos:\t0\nflags:\t02\nmnt_id:\t29\n")
    (process / "mountinfo").write_text(f"29 1 254:0 / / rw - {kind} /dev/vda rw\n")
    return read_assigned(Proc(str(root)), PID)


def test_a_worker_that_was_started_in_advance_has_its_job_and_class_in_its_log(
    tmp_path: Path,
) -> None:
    assert read(tmp_path) == TRAINER


def test_what_the_program_printed_while_it_was_loaded_does_not_hide_it(tmp_path: Path) -> None:
    assert read(tmp_path, f"loading plugins\n{BEGIN}step 1\n") == TRAINER


def test_what_the_program_prints_later_does_not_change_it(tmp_path: Path) -> None:
    later = ":job_id:02000000\n:actor_name:rank 1\n"
    assert read(tmp_path, BEGIN + later) == TRAINER


def test_a_worker_that_runs_tasks_has_no_class(tmp_path: Path) -> None:
    assert read(tmp_path, ":job_id:01000000\n:task_name:score\n") == Assigned(job="01000000")


@pytest.mark.parametrize(
    "text", ["", "step 1\n", ":job_id:0100\n", "x:job_id:01000000\n", " " * MAX_BEGIN_BYTES + BEGIN]
)
def test_a_log_without_the_lines_shows_nothing(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text) == NOTHING


@pytest.mark.parametrize("name", ["train.log", NAME.replace(str(PID), "4712")])
def test_another_file_and_the_log_of_a_parent_are_not_read(tmp_path: Path, name: str) -> None:
    assert read(tmp_path, name=name) == NOTHING


def test_a_log_on_a_file_server_is_not_read(tmp_path: Path) -> None:
    assert read(tmp_path, kind="nfs4") == NOTHING
