"""What the collectors open is what the unit of the agent allows."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

import pytest

from agent.collectors import make_collectors
from agent.collectors.collector import Collector
from agent.collectors.nvml_process import DRIVER_FILES

UNIT = Path(__file__).parents[2] / "deploy/systemd/watchtower-agent.service"
HIDDEN = ("/home/", "/root/", "/run/user/")
"""Of `ProtectHome=yes`."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
OF_DRIVER = ("nvidia", "nvidiactl", "nvidia-frontend", "nvidia-uvm", "nvidia-caps")
"""Names of NVIDIA's devices in /proc/devices."""

_lists: list[list[tuple[str, int]]] = []
"""One list while files are noted."""


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if _lists and event == "open" and isinstance(arguments[0], str):
        flags = arguments[2]
        _lists[0].append((arguments[0], flags if isinstance(flags, int) else 0))


sys.addaudithook(_note)  # it cannot be removed


@contextmanager
def noted() -> Iterator[list[tuple[str, int]]]:
    _lists.append([])
    try:
        yield _lists[0]
    finally:
        _lists.clear()


def lines_of(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text("utf-8"), re.MULTILINE)


def allowed_devices() -> dict[str, str]:
    """The rights of each device or pattern."""
    words = [line.split() for line in lines_of("DeviceAllow")]
    return {device: rights for device, rights in words}


def collectors() -> tuple[Collector, ...]:
    return make_collectors("/", lambda: [os.getpid()])


@pytest.mark.parametrize("name", [each.name for each in collectors()])
def test_a_collector_opens_only_what_the_unit_allows(name: str):
    (collector,) = (each for each in collectors() if each.name == name)
    with noted() as opened:
        list(collector.collect(time.monotonic()))
        list(collector.samples(time.time()))
        collector.gap()
    collector.stop()
    devices = allowed_devices()
    for path, flags in opened:
        assert not flags & WRITES, f"{name} writes {path}"
        if not path.endswith((".py", ".pyc")):  # Python's own, wherever it is
            assert not path.startswith(HIDDEN), path
        if path.startswith("/dev/") and not path.startswith("/dev/shm"):
            assert "r" in devices.get(path, ""), f"{name} opens {path}"


def test_the_hook_sees_what_is_opened():
    with noted() as opened:
        Path("/proc/self/stat").read_bytes()
    assert [path for path, _ in opened] == ["/proc/self/stat"]


def test_the_driver_of_the_gpus_is_allowed_by_all_its_names():
    patterns = [each.removeprefix("char-") for each in allowed_devices() if "char-" in each]
    for name in OF_DRIVER:
        assert any(fnmatch(name, each) for each in patterns), name
    assert any(each.endswith("nvidiactl") for each in DRIVER_FILES)
    assert lines_of("DevicePolicy") == ["closed"]
    assert "PrivateDevices" not in UNIT.read_text("utf-8").replace("PrivateDevices.", "")


def test_system_calls_and_address_families_of_collectors_are_allowed():
    filters = " ".join(lines_of("SystemCallFilter"))
    assert "@debug" in filters  # perf_event_open and ptrace
    assert "AF_NETLINK" in lines_of("RestrictAddressFamilies")[0]  # sock_diag
