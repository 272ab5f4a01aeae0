"""The job of a worker that Ray started in advance. Its /proc is a folder: no process is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.procfs import Proc
from agent.ranks.ray_workers import MAX_BEGIN_BYTES, lacks_job, read_job

PID = 4711
NAME = "worker-9f5fb21edd1846de8a8f17ae7ce1e80d935da2601f68a0a9cbf5b78c-ffffffff-88.out"
BEGIN = ":job_id:01000000\n:actor_name:Trainer\n"


def job_of(root: Path, text: str = BEGIN, *, name: str = NAME, kind: str = "ext4") -> str:
    log, process = root / "logs" / name, root / "proc" / str(PID)
    for folder in (log.parent, process / "fd", process / "fdinfo"):
        folder.mkdir(parents=True)
    log.write_text(text)
    (process / "fd" / "1").symlink_to(log)
    (process / "fdinfo" / "1").write_text("pos:\t0\nflags:\t02\nmnt_id:\t29\n")
    (process / "mountinfo").write_text(f"29 1 254:0 / / rw - {kind} /dev/vda rw\n")
    return read_job(Proc(str(root)), PID)


def test_a_worker_that_was_started_in_advance_has_its_job_in_its_log(tmp_path: Path) -> None:
    assert job_of(tmp_path) == "01000000"


def test_what_the_program_printed_while_it_was_loaded_does_not_hide_it(tmp_path: Path) -> None:
    assert job_of(tmp_path, f"loading plugins\n{BEGIN}step 1\n") == "01000000"


@pytest.mark.parametrize(
    "text", ["", "step 1\n", ":job_id:0100\n", "x:job_id:01000000\n", " " * MAX_BEGIN_BYTES + BEGIN]
)
def test_a_log_without_the_line_names_no_job(tmp_path: Path, text: str) -> None:
    assert job_of(tmp_path, text) == ""


@pytest.mark.parametrize("name", ["train.log", NAME.replace("ffffffff", "01000000")])
def test_another_file_is_not_read(tmp_path: Path, name: str) -> None:
    assert job_of(tmp_path, name=name) == ""


def test_a_log_on_a_file_server_is_not_read(tmp_path: Path) -> None:
    assert job_of(tmp_path, kind="nfs4") == ""


def test_only_workers_of_before_the_job_lack_it() -> None:
    assert lacks_job({"RAY_JOB_ID": "ffffffff"})
    assert not lacks_job({"RAY_JOB_ID": "01000000"})
    assert not lacks_job({})
