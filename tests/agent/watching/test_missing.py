"""Processes that the tower misses in the reports: which of them have ended?"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.procfs import Proc
from agent.watching.watchlist import find_gone
from watchtower.wire.report import ProcessId

ME = os.getpid()
NO_PID = (1 << 22) + 1
"""Above the highest pid that Linux allows (PID_MAX_LIMIT)."""


def a_proc(folder: Path, stat: str | None) -> Proc:
    """Return a /proc with this process in it, unless `stat` is None."""
    (folder / "proc" / str(ME)).mkdir(parents=True)
    if stat is not None:
        (folder / "proc" / str(ME) / "stat").write_text(stat)
    return Proc(str(folder))


def a_stat(start_time: int, state: str = "S") -> str:
    fields = [state, "1", *["0"] * 50]
    fields[19] = str(start_time)
    return f"{ME} (python) {' '.join(fields)}"


@pytest.mark.parametrize(
    ("stat", "is_gone"),
    [
        (a_stat(70), False),
        (a_stat(99), True),
        (a_stat(70, "Z"), True),
        ("damaged", False),
        (None, False),
    ],
    ids=["exists", "another process", "zombie", "damaged", "hidden"],
)
def test_a_process_is_gone_if_its_pid_belongs_to_no_live_process_or_another(
    tmp_path: Path, stat: str | None, is_gone: bool
) -> None:
    process = ProcessId(pid=ME, start_time=70)
    gone = find_gone(a_proc(tmp_path, stat), [process], set())
    assert gone == ((process,) if is_gone else ())
    assert find_gone(a_proc(tmp_path / "2", stat), [process], {(ME, 70)}) == ()


@pytest.mark.parametrize("pid", [NO_PID, 1 << 62])
def test_a_process_without_a_pid_is_gone(pid: int) -> None:
    process = ProcessId(pid=pid, start_time=70)
    assert find_gone(Proc(), [process], set()) == (process,)


def test_this_process_is_not_gone() -> None:
    stat = Proc().stat(ME)
    assert stat is not None
    assert find_gone(Proc(), [ProcessId(pid=ME, start_time=stat.start_time)], set()) == ()
