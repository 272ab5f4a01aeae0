"""The checks of the doctor that an agent runs now and then, by a real child."""

from __future__ import annotations

import time
from pathlib import Path

from agent.collectors.node import make_collectors
from agent.collectors.node_checks import UNFIT, NodeChecks
from tests.waiting import wait_until
from watchtower.wire.observations import Observation


def make_root(folder: Path) -> Path:
    """A node with one active port and no file system."""
    (folder / "dev").mkdir()
    (folder / "dev/shm").symlink_to("/dev/shm")
    (folder / "proc").mkdir()
    port = folder / "sys/class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    return folder


def about_ports(collector: NodeChecks) -> dict[str, Observation]:
    found = collector.collect(time.monotonic())
    return {each.name: each for each in found if "InfiniBand" in each.subject}


def test_what_fails_is_observed_until_a_later_run_finds_it_mended(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    collector = NodeChecks(str(root), first_s=0.0, every_s=0.5)
    try:
        wait_until(lambda: about_ports(collector) or collector.can_read, "the first run", 60.0)
        assert about_ports(collector) == {}
        (root / "sys/class/infiniband/mlx5_0/ports/1/state").write_text("2: INIT\n")
        found = wait_until(lambda: about_ports(collector), "a later run", 60.0)
        assert set(found) == {UNFIT}
        assert "no subnet manager has set it up" in found[UNFIT].text
        (root / "sys/class/infiniband/mlx5_0/ports/1/state").write_text("4: ACTIVE\n")
        wait_until(lambda: not about_ports(collector), "it is mended", 60.0)
    finally:
        collector.stop()


def test_an_agent_that_has_just_started_starts_no_doctor(tmp_path: Path) -> None:
    """A snapshot and the doctor itself make the same collectors, and end before."""
    collectors = make_collectors(str(make_root(tmp_path)))
    (checks,) = (each for each in collectors if isinstance(each, NodeChecks))
    assert list(checks.collect(100.0)) == []
    assert checks._thread is None
    assert checks.is_absent
    for each in collectors:
        each.stop()
