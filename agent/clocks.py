"""Reads clocks, so that an age is known after a restart of the agent or a reboot."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache

BOOT_ID = "/proc/sys/kernel/random/boot_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One moment on three clocks. Only ages leave the node."""

    boot_id: str
    """Id of the running kernel; empty if it cannot be read."""
    boottime_s: float
    """CLOCK_BOOTTIME: includes suspend, and starts at 0 with each boot."""
    wall_s: float
    """Wall clock: the only one that survives a reboot, and the only one that people set."""

    @property
    def booted_at(self) -> float:
        """UNIX seconds of the boot, by the wall clock of this moment."""
        return self.wall_s - self.boottime_s


def read_moment() -> Moment:
    """Return the current moment."""
    return Moment(
        boot_id=_read_boot_id(),
        boottime_s=time.clock_gettime(time.CLOCK_BOOTTIME),
        wall_s=time.time(),
    )


def age_s(then: Moment, now: Moment) -> float:
    """Return the seconds since `then`, never negative.

    Within one boot this is exact. After a reboot only the wall clock is usable; the result depends
    on how well it was set at both moments. A clock that was set back gives 0.
    """
    if then.boot_id and then.boot_id == now.boot_id:
        return max(0.0, now.boottime_s - then.boottime_s)
    return max(0.0, now.wall_s - then.wall_s)


@cache
def _read_boot_id() -> str:
    try:
        with open(BOOT_ID, encoding="ascii") as file:
            return file.read(64).strip()
    except OSError:
        return ""
