"""A collector: a cheap reader of one source on the node, called at every interval."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from watchtower.service.metric_spec import MetricSpec, Sample
from watchtower.wire.observations import Observation


def name_pid(pid: int) -> str:
    """Return the subject of a process."""
    return f"pid:{pid}"


def name_nic(name: str) -> str:
    """Return the subject of a network interface."""
    return f"nic:{name}"


class Reading(NamedTuple):
    """One value of a series."""

    name: str
    """Name of its lane, such as "power"."""
    unit: str
    """As in `wire.series.Lane`."""
    scale: float
    """Smallest difference of two values that matters, in this unit."""
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Values measured now of one thing that ranks use, such as a GPU."""

    subject: str
    """As in observations: "pci:0000:3b:00"."""
    index: int | None = None
    """Its number, if it has one."""
    pids: tuple[int, ...] = ()
    """Processes that use it. They decide whose series contain it."""
    readings: tuple[Reading, ...] = ()


class Collector(ABC):
    """Reads one source, such as the kernel log. One file each, named in `make_collectors`.

    All methods are called by the thread of the agent's loop, so that none of them may block: a
    source that can block is read in a child process.
    """

    name: str
    """Name of the source in every observation, such as "kernel_log"."""
    metrics: tuple[MetricSpec, ...] = ()
    """The metrics of `samples`."""

    @abstractmethod
    def collect(self, now: float) -> Iterable[Observation]:
        """Return everything that was observed recently, each with its age at `now`.

        `now` is a time of `time.monotonic`. The first observations matter most: of a collector
        with too many, the last ones are not sent.
        """

    def series(self) -> Iterable[Measured]:
        """Return what the last `collect` measured. The agent keeps it for 15 minutes, and sends
        what concerns a suspect after a verdict.
        """
        return ()

    def samples(self, wall_now: float) -> Iterable[Sample]:
        """Return the values of its metrics after a `collect`. `wall_now` is the time of day."""
        return ()

    def facts(self) -> Mapping[str, str]:
        """Return what belongs to the configuration of the node, by name; little, and seldom new."""
        return {}

    @property
    def can_read(self) -> bool:
        """Whether the last `collect` could read the source."""
        return True

    @property
    def is_absent(self) -> bool:
        """Whether an ordinary node does not have this source, and this node does not have it."""
        return not self.can_read and not self.gap()

    def gap(self) -> str:
        """Return what this collector cannot observe and how to change that; empty if nothing."""
        return ""

    def stop(self) -> None:  # noqa: B027 - most have nothing open
        """End what was started. It takes well below a second."""
