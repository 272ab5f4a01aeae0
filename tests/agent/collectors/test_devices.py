"""The device files that the agent opens are those that its unit allows."""

from __future__ import annotations

import fnmatch
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.collectors.gpu.reading import DRIVER_FILES
from agent.collectors.node import make_collectors

UNIT = Path(__file__).parents[3] / "deploy/systemd/watchtower-agent.service"

NVIDIA = "/dev/nvidia*"
"""Devices named `char-nvidia*` in /proc/devices: /dev/nvidia0 and on, /dev/nvidiactl."""

STANDARD = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
"""Devices that `DevicePolicy=closed` leaves (systemd.resource-control(5))."""


class Opened:
    """The files below /dev that this process opens while it is on."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        self.is_on = False
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.is_on and event == "open" and isinstance(arguments[0], str | bytes):
            path = os.fsdecode(arguments[0])
            if path.startswith("/dev/"):
                self.paths.add(path)


OPENED = Opened()
"""An audit hook cannot be removed, so there is one."""


@pytest.fixture
def opened() -> Iterator[set[str]]:
    OPENED.paths.clear()
    OPENED.is_on = True
    yield OPENED.paths
    OPENED.is_on = False


def allowed() -> dict[str, str]:
    """By pattern of a path: what the unit allows to do with it."""
    rules = re.findall(r"^DeviceAllow=(\S+) (\w+)$", UNIT.read_text("utf-8"), re.MULTILINE)
    return {name.replace("char-nvidia*", NVIDIA): rights for name, rights in rules}


def test_collectors_open_no_device_but_those_of_the_unit(opened: set[str]):
    for collector in make_collectors("/"):
        # The reader of GPUs is a program of its own: below.
        if collector.name != "nvml":
            list(collector.collect(100.0))
            collector.stop()
    assert "/dev/kmsg" in opened
    known = (*allowed(), *STANDARD)
    assert [each for each in opened if not any(fnmatch.fnmatch(each, one) for one in known)] == []


def test_the_unit_allows_the_devices_of_the_driver_to_be_read_and_written():
    (device,) = (f"/{each}" for each in DRIVER_FILES if each.startswith("dev/nvidia"))
    assert fnmatch.fnmatch(device, NVIDIA)
    assert allowed()[NVIDIA] == "rw"
    assert allowed()["/dev/kmsg"] == "r"
