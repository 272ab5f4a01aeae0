"""The two tiers: what starts a process is in tests/system, and nothing else does."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from collections.abc import Generator, Iterable
from pathlib import Path

import pytest

SYSTEM = Path(__file__).parent / "system"
IN_SYSTEM, END_TO_END = "tests/system/", "tests/system/e2e/"
"""How the ids of tests begin: of the whole system tier, and of its longest tests."""

DRILLS = "tests/system/e2e/test_drills.py::test_the_drill_gets_the_right_rank_and_cause"
QUICK = {f"{DRILLS}[{name}]" for name in ("dataloader_sleep", "exception", "rare_pause")}
"""A fault that stacks show, a death and a healthy job: `make test` runs these drills too."""

LONG = {
    "test_drills.py": 30,
    "test_no_heartbeat.py": 6,
    "test_no_heartbeat_devices.py": 3,
    "test_aftermath.py": 3,
    "test_messages.py": 3,
    "test_synthesis_layouts.py": 3,
    "test_synthesis.py": 2,
    "test_version_skew.py": 2,
    "test_cycles.py": 2,
}
"""Seconds of the files that take longest, whether by themselves or by the processes of drills. They
begin first, so that none is left alone at the end."""

WAITING = {
    "test_connections.py": 15,
    "test_direct_answers.py": 8,
    "test_http_post.py": 3,
    "test_outage_alerts.py": 10,
    "test_destinations.py": 4,
    "test_foreign_servers.py": 2,
    "test_agent_guarded_reads.py": 7,
    "test_hostile_places.py": 4,
    "test_agent_traffic.py": 2,
    "test_many_alerts.py": 6,
    "test_agent_gpu_workers.py": 2,
    "test_ring.py": 2,
    "test_agent_shipping.py": 3,
    "test_agent_metrics.py": 4,
    "test_silenced_alerts.py": 3,
    "test_failing_store.py": 4,
    "test_notifier.py": 3,
}
"""Seconds of the files in process that mostly wait while other processes use the processor. They
begin one after the other during the run; all at once would leave the processor idle."""

BYTES_PER_S = 20_000
"""So much of any other file is run in a second, more or less."""

SPREAD = 0.9
"""The last of them begins when about this share of the other files has begun."""

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
    """Mark the tests of the system tier, and begin with those that take longest."""
    for item in items:
        if _is_system(item):
            item.add_marker("system")
        if item.nodeid in QUICK:
            item.add_marker("quick")
    places = _place(dict.fromkeys(item.path.name for item in items))
    items.sort(
        key=lambda item: (
            not item.nodeid.startswith(END_TO_END),
            not _is_system(item),
            places[item.path.name],
        )
    )


def _place(names: Iterable[str]) -> dict[str, float]:
    """Return when each file begins, 0 to 1, from the files in the order of collection."""
    others = [name for name in names if name not in LONG and name not in WAITING]
    places = {name: index / len(others) for index, name in enumerate(others)}
    places |= {name: SPREAD * index / len(WAITING) for index, name in enumerate(WAITING)}
    return places | dict.fromkeys(LONG, 0.0)


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


def _is_system(item: pytest.Item) -> bool:
    return item.nodeid.startswith(IN_SYSTEM)
