"""The fabric manager of a node with NVSwitches, from files below a root of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.collectors.fabric_manager import EVERY_S, LOG, PROCESS, SWITCHES, UNIT, FabricManager

STOPPED = "the fabric manager (nvidia-fabricmanager.service) does not run"
DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n"
MISMATCH = (
    "fabric manager NVIDIA GPU driver interface version 570.82.01 don't match with driver version "
    "{}. Please update with matching NVIDIA driver package.\n"
)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A node with one NVSwitch, and one process that is none of interest."""
    (tmp_path / SWITCHES / "0000:c2:00.0").mkdir(parents=True)
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/comm").write_text("python3\n")
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(DRIVER)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def texts(manager: FabricManager, now: float = 100.0) -> list[tuple[str, float]]:
    return [(each.text, each.age_s) for each in manager.collect(now)]


def values(manager: FabricManager) -> list[float]:
    return [each.value for each in manager.samples(0.0)]


def test_one_that_does_not_run_at_the_start_of_the_agent_may_be_as_old_as_the_node(node: Path):
    manager = FabricManager(str(node))
    assert texts(manager) == [(STOPPED, 100.0)]
    assert texts(manager, 112.0) == [(STOPPED, 112.0)]
    assert values(manager) == [0.0]


@pytest.mark.parametrize("group", ["sys/fs/cgroup", "sys/fs/cgroup/systemd"])
def test_one_that_runs_as_a_service_is_not_reported(node: Path, group: str):
    write(node / group / UNIT, "812\n")
    manager = FabricManager(str(node))
    assert texts(manager) == []
    assert values(manager) == [1.0]


def test_one_that_runs_in_a_container_is_not_reported(node: Path):
    (node / "proc/7/comm").write_text(f"{PROCESS}\n")
    assert texts(FabricManager(str(node))) == []


def test_one_that_has_ended_has_a_new_age(node: Path):
    write(node / "sys/fs/cgroup" / UNIT, "812\n")
    manager = FabricManager(str(node))
    assert texts(manager) == []
    write(node / "sys/fs/cgroup" / UNIT, "")
    assert texts(manager, 100.0 + EVERY_S) == [(STOPPED, 0.0)]


def test_a_version_that_is_not_that_of_the_driver_is_the_reason(node: Path):
    write(node / LOG, MISMATCH.format("570.86.15"))
    assert texts(FabricManager(str(node)))[0][0] == (
        "the fabric manager does not run: it has version 570.82.01, and the driver 570.86.15"
    )


def test_a_line_about_an_earlier_driver_is_not_the_reason(node: Path):
    write(node / LOG, MISMATCH.format("570.84.00"))
    assert texts(FabricManager(str(node)))[0][0] == STOPPED


def test_a_node_without_nvswitches_needs_none(tmp_path: Path):
    manager = FabricManager(str(tmp_path))
    assert texts(manager) == []
    assert values(manager) == []
    assert manager.is_absent
