"""Judges what a GPU does from its load: it works, waits in a kernel, is idle, is slowed down.

A kernel of NCCL that waits for a peer keeps the utilization at 100 %: it is the share of the time
in which any kernel was resident. But such a kernel hardly reads memory, and it draws little power.
Between the thresholds nothing is said, because models differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

WINDOW_S = 5.0
"""Seconds of load that must agree: several steps of most jobs."""

LEAST_LOADS = 3
"""Fewer loads in the window show no pattern."""

BUSY, IDLE = 0.95, 0.02
"""Utilization of a GPU on which a kernel is resident all the time, and of one that has no work."""

WORKING_MEMORY, WAITING_MEMORY = 0.10, 0.02
"""Share of the time in which memory is read or written: of work at least, of a wait at most."""

WORKING_POWER, WAITING_POWER = 0.55, 0.40
"""Share of the power limit: of work at least, of a wait at most. Reported by others: 984 W of
1,200 W in training steps; a GPU that waits in a kernel of NCCL draws little more than when idle."""

WORKING_UNITS, WAITING_UNITS = 0.05, 0.01
"""Use of the tensor cores or of the memory's bandwidth: of work at least, of a wait at most. It is
known on Hopper and later, and then decides instead of memory and power. Reported by others: 0.32
and 0.24 in training steps, about 0 in a wait."""

SLOWED_BY = {"hardware": 0x08, "heat": 0x20 | 0x40, "power_brake": 0x80}
"""Clock reasons of NVML that reduce the clocks of a GPU with work. The hardware's own slowdown has
a bit, and most of its reasons have another one."""

SLOWED = sum(SLOWED_BY.values())
"""All of them. No bit has two reasons."""

FROZEN_S = 35.0
"""Seconds in which no counter of a GPU changed, until it is frozen. The energy is read every 10 s,
and it rises all the time, also in an idle GPU: three reads in turn must be equal."""


class Pattern(Enum):
    """The activity of one GPU in the last seconds."""

    WORKING = "working"
    SPINNING = "spinning"
    """A kernel is resident and neither reads memory nor draws power: it waits."""
    IDLE = "idle"
    """No kernel was resident: no work was queued."""
    THROTTLED = "throttled"
    """It works with reduced clocks, because of heat or power."""
    FROZEN = "frozen"
    """NVML answers, and no counter changes any more, not even the energy."""
    LOST = "lost"
    """The driver does not reach it, or it needs a reset."""
    UNKNOWN = "unknown"


class Load(NamedTuple):
    """The load of a GPU at one moment."""

    at: float
    utilization: float
    memory: float
    power: float | None
    """Share of the power limit; None if one of the two is not known."""
    reasons: int
    units: float | None = None
    """Use of the tensor cores or of the memory's bandwidth, whichever is more; None if unknown."""

    @classmethod
    def of(cls, values: Mapping[str, float], at: float) -> Load | None:
        """Return the load in the values of NVML; None without a utilization (MIG)."""
        if "utilization" not in values or "memory_utilization" not in values:
            return None
        power_w, limit_w = values.get("power_w"), values.get("power_limit_w", 0.0)
        return cls(
            at,
            values["utilization"],
            values["memory_utilization"],
            power_w / limit_w if power_w is not None and limit_w > 0 else None,
            int(values.get("clock_reasons", 0)),
            max(values["tensor_active"], values["dram_active"])
            if "tensor_active" in values and "dram_active" in values
            else None,
        )


class Stillness:
    """Since when the counters of a GPU stand still.

    Only a GPU whose energy was seen to rise before can be frozen: a driver that does not count it,
    as in some virtual machines, shows the same number for ever.
    """

    def __init__(self) -> None:
        self._seen: tuple[float | None, ...] = ()
        self._energy: float | None = None
        self._has_risen = False
        self._since = 0.0

    def take(self, values: Mapping[str, float], at: float) -> None:
        """Add values that were read at this time."""
        energy = values.get("energy_j")
        if energy is not None and self._energy is not None and energy > self._energy:
            self._has_risen = True
        seen = tuple(values.get(name) for name in _COUNTERS)
        if seen != self._seen or energy is None or not values.get("power_w"):
            self._seen, self._since = seen, at
        self._energy = energy

    def since(self, at: float) -> float | None:
        """Return since when nothing has changed, if that is long enough; None otherwise.

        `at`: when the values were last read.
        """
        return self._since if self._has_risen and at - self._since >= FROZEN_S else None


_COUNTERS = ("energy_j", "sampled_at", "power_w", "utilization", "memory_utilization")
"""Values that always change: energy in millijoules, the driver's own samples, power in milliwatts.
The two shares are often constant, and change also if the others are wrong."""


def find_pattern(loads: Sequence[Load], now: float) -> Pattern:
    """Return what the loads of the last seconds agree on."""
    recent = [load for load in loads if now - load.at <= WINDOW_S]
    if len(recent) < LEAST_LOADS:
        return Pattern.UNKNOWN
    if all(load.utilization <= IDLE for load in recent):
        return Pattern.IDLE
    if any(load.reasons & SLOWED for load in recent):
        return Pattern.THROTTLED
    if any(_works(load) for load in recent):
        return Pattern.WORKING
    return Pattern.SPINNING if all(_waits(load) for load in recent) else Pattern.UNKNOWN


def _works(load: Load) -> bool:
    if load.units is not None:
        return load.units >= WORKING_UNITS
    is_hot = load.power is not None and load.power >= WORKING_POWER
    return load.utilization > IDLE and (is_hot or load.memory >= WORKING_MEMORY)


def _waits(load: Load) -> bool:
    if load.units is not None:
        return load.utilization >= BUSY and load.units <= WAITING_UNITS
    is_cool = load.power is not None and load.power <= WAITING_POWER
    return load.utilization >= BUSY and load.memory <= WAITING_MEMORY and is_cool
