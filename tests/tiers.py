"""The two tiers: what starts a process is in tests/system, and nothing else does."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.quick import QUICK

SYSTEM = Path(__file__).parent / "system"
IN_SYSTEM = "tests/system/"
ORDER = (
    f"{IN_SYSTEM}e2e/test_third_party.py",
    *(f"{IN_SYSTEM}{name}" for name in ("e2e/", "benchmarks/", "test_", "")),
)
"""How the ids of tests begin. The longest are run first, so that no process ends with one while the
others have nothing left."""

list_folder, read_from = os.listdir, open
"""As they are before a test replaces them for its own purpose."""

STARTS = {
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.system",
    "subprocess.Popen",
}
"""Audit events of the interpreter by which a process begins."""


class Starts:
    """Notes which processes this one starts, from now on."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self._reaped = 0
        self._children: set[bytes] = set()
        sys.addaudithook(self._hear)

    def forget(self) -> None:
        """Start again with an empty list."""
        self.heard.clear()
        self._reaped, self._children = _faults_of_children(), _children()

    def count(self) -> None:
        """Note children that began without an audit event, as those of multiprocessing do."""
        more = not _children() <= self._children
        if not self.heard and (more or _faults_of_children() != self._reaped):
            self.heard.append("a child process")

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in STARTS:
            self.heard.append(f"{event} {arguments[:2]!r:.200}")


def _faults_of_children() -> int:
    """Page faults of all children that have been waited for: every process has some."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt


def _children() -> set[bytes]:
    """The children that this process has not waited for, by the threads that started them."""
    try:
        # One call answers for a process without children: reading /proc takes a millisecond.
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return set()
    found: set[bytes] = set()
    for thread in list_folder("/proc/self/task"):
        with (
            contextlib.suppress(OSError),  # the thread has ended
            read_from(f"/proc/self/task/{thread}/children", "rb") as children,
        ):
            found.update(children.read().split())
    return found


STARTED = Starts()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the system tier, and begin with the longest, so that none ends alone."""
    for item in items:
        if _is_system(item):
            item.add_marker("system")
        if item.nodeid in QUICK:
            item.add_marker("quick")
    items.sort(key=_place)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Forget what was started before this test."""
    STARTED.forget()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Fail a test outside of tests/system that has started a process."""
    STARTED.count()  # before the last test of a run ends what tests of the system tier share
    yield
    if not _is_system(item) and STARTED.heard:
        pytest.fail(
            f"{item.nodeid} starts a process: {STARTED.heard[0]}\n"
            "Tests that start processes belong into tests/system.",
            pytrace=False,
        )


def _place(item: pytest.Item) -> int:
    return next((at for at, begin in enumerate(ORDER) if item.nodeid.startswith(begin)), len(ORDER))


def _is_system(item: pytest.Item) -> bool:
    return item.nodeid.startswith(IN_SYSTEM)
