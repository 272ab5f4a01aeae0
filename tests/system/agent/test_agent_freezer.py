"""A process in a really frozen cgroup of version 1, where that is mounted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.dumpers.kernel_state import read_kernel_wait
from agent.procfs import Proc
from tests.agent.agent_scene import wait_until
from tests.system.agent.agent_processes import Victim

FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A cgroup of this test's own."""
    folder = FREEZER / f"watchtower-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "freezer.state").write_text("THAWED")
    except OSError as error:
        pytest.skip(f"no freezer of cgroup version 1 that may be used here: {error}")
    yield folder
    (folder / "freezer.state").write_text("THAWED")
    for pid in (folder / "cgroup.procs").read_text().split():
        (FREEZER / "cgroup.procs").write_text(pid)
    folder.rmdir()


def test_a_really_frozen_process_is_seen(start: Callable[..., Victim], freezer: Path) -> None:
    victim = start(RANK="0")
    (freezer / "cgroup.procs").write_text(str(victim.pid))
    assert not read_kernel_wait(Proc(), victim.pid).frozen
    (freezer / "freezer.state").write_text("FROZEN")
    wait_until(lambda: read_kernel_wait(Proc(), victim.pid).frozen, "the process is frozen")
    (freezer / "freezer.state").write_text("THAWED")
    wait_until(lambda: not read_kernel_wait(Proc(), victim.pid).frozen, "it is thawed")
