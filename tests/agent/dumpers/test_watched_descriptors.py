"""Questions about calls that wait for several descriptors, and their answers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.children import ANY_TOOL, ChildRunner, Outcome, Tool
from agent.dumpers.kernel_state import KernelTables
from agent.dumpers.watched_descriptors import ThreadId, WatchedDescriptors
from agent.procfs import Proc
from watchtower.wire.dumps import KernelWait

POLLS = "7 0x7ffd00 0x1 0xffffffff 0x0 0x0 0x0 0x7ffd 0x7f00\n"
EPOLLS = "232 0xffffffff00000005 0x7ffd00 0x10 0x0 0x0 0x0 0x7ffd 0x7f00\n"


class Runner(ChildRunner):
    """Answers as the child would, instead of starting it."""

    def __init__(self, output: bytes) -> None:
        super().__init__()
        self._output = output
        self.asked: list[str] = []

    def run(
        self, command: object, deadline_s: float, owner: str = "", tool: Tool = ANY_TOOL
    ) -> Outcome:
        assert isinstance(command, list)
        self.asked = command[command.index("agent.dumpers.watched_child") + 2 :]
        return Outcome(code=None, output=self._output, errors=b"")


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Proc:
    """A /proc with three processes that have a pipe as descriptor 3."""
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    for pid, call in ((7, POLLS), (8, EPOLLS), (9, "running\n")):
        (tmp_path / "proc" / str(pid) / "fd").mkdir(parents=True)
        os.symlink("pipe:[11]", tmp_path / "proc" / str(pid) / "fd" / "3")
        (tmp_path / "proc" / str(pid) / "task" / str(pid)).mkdir(parents=True)
        (tmp_path / "proc" / str(pid) / "task" / str(pid) / "syscall").write_text(call)
    return Proc(str(tmp_path))


WAITS = {
    ThreadId(7, 7): KernelWait(syscall="poll"),
    ThreadId(8, 8): KernelWait(syscall="epoll_wait", target="anon_inode:[eventpoll]"),
    ThreadId(9, 9): KernelWait(syscall="poll"),
    ThreadId(10, 10): KernelWait(syscall="futex"),
}


def find(proc: Proc, runner: Runner) -> dict[ThreadId, str]:
    found = WatchedDescriptors(proc, runner).find(WAITS, "", KernelTables(proc))
    return {thread: wait.target for thread, wait in found.items()}


def test_only_threads_that_are_still_in_such_a_call_are_asked_about(proc: Proc) -> None:
    runner = Runner(b"[3]\n[3]\n")
    targets = find(proc, runner)
    assert runner.asked == ["7 poll 0x7ffd00 1", "8 epoll 5"]
    assert targets == {ThreadId(7, 7): "pipe:[11]", ThreadId(8, 8): "anon_inode:[eventpoll]"}


def test_answers_from_before_the_child_was_ended_count(proc: Proc) -> None:
    assert find(proc, Runner(b"[3]\n[")) == {ThreadId(7, 7): "pipe:[11]"}


def test_a_call_whose_descriptors_cannot_be_read_has_no_target(proc: Proc) -> None:
    assert find(proc, Runner(b"[]\n[]\n"))[ThreadId(7, 7)] == ""
    assert find(proc, Runner(b"[99]\n"))[ThreadId(7, 7)] == ""
