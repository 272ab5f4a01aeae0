"""A check: a read of the node, which may block, and a decision about what was read, which is pure.

Most checks share one read, `Node.collected`: what the collectors of the agent see. So a device that
is blamed for a hang and a device that the doctor complains about are found by the same code.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from agent import config
from agent.collectors.collector import Collector
from agent.collectors.gpu.collector import Nvml
from agent.collectors.node import make_collectors
from agent.procfs import Proc, read_text
from watchtower.service.metric_spec import MetricSpec, Sample
from watchtower.wire.checks import CheckState
from watchtower.wire.observations import Observation

T = TypeVar("T")


class About(Enum):
    """What a check is about."""

    NODE = "node"
    """Whether jobs can run here."""
    AGENT = "agent"
    """Whether the agent can do its work here. Jobs can run without it."""


class Finding(NamedTuple):
    """One thing that a check found."""

    state: CheckState
    text: str
    fix: str = ""


def ok(text: str) -> Finding:
    """Return that something is as it should be."""
    return Finding(CheckState.OK, text)


def warn(text: str, fix: str = "") -> Finding:
    """Return that a job can run, but not as it should."""
    return Finding(CheckState.WARN, text, fix)


def fail(text: str, fix: str = "") -> Finding:
    """Return that a job cannot run, or that a device cannot stay as it is."""
    return Finding(CheckState.FAIL, text, fix)


NO_ANSWER = warn("it got no answer in time", "run `watchtower-agent doctor` again")

LONG_UP_S = 1e9
"""Uptime of a node whose uptime is not known: no grace after boot applies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the collectors saw of the node."""

    observations: tuple[Observation, ...] = ()
    samples: tuple[Sample, ...] = ()
    gaps: dict[str, str] = field(default_factory=dict)
    """By name of the collector: why it cannot read; empty if it can."""
    absent: frozenset[str] = frozenset()
    """Collectors whose source an ordinary node does not have, and this one does not have it."""
    uptime_s: float = LONG_UP_S
    """Seconds since the node was booted."""

    def find(self, *families: str) -> list[Observation]:
        """Return the observations of these families, in the order of the collectors."""
        return [each for each in self.observations if each.family in families]

    def values(self, spec: MetricSpec) -> dict[tuple[str, ...], float]:
        """Return the values of a metric by their labels."""
        return {each.labels: each.value for each in self.samples if each.spec is spec}


class Node:
    """What checks read. Their threads share it."""

    def __init__(self, settings: config.DoctorSettings, deadline: float) -> None:
        """`deadline` is the time of `time.monotonic` at which no more reads count."""
        self.settings, self.deadline = settings, deadline
        self.root, self.proc = settings.root, Proc(settings.root)
        self._lock = threading.Lock()
        self._seen: Seen | None = None

    def left(self, most_s: float = float("inf")) -> float:
        """Return how many seconds a read may still take, of at most so many."""
        return max(0.0, min(most_s, self.deadline - JUDGE_S - time.monotonic()))

    def collected(self) -> Seen:
        """Return what the collectors see. The first caller reads, the others wait for it."""
        with self._lock:
            if self._seen is None:
                self._seen = self.collect(make_collectors(self.root))
            return self._seen

    def collect(self, collectors: tuple[Collector, ...]) -> Seen:
        """Return what these collectors see."""
        return replace(collect(collectors, self.left()), uptime_s=read_uptime(self.root))


JUDGE_S = 0.7
"""Seconds before the deadline at which nothing more is waited for: what was read is judged then."""

POLL_S = 0.05
"""Seconds between two reads of collectors that have not read yet: of a child or a thread."""


def collect(collectors: tuple[Collector, ...], most_s: float) -> Seen:
    """Return what the collectors see, as soon as each of them has read once."""
    deadline = time.monotonic() + most_s
    while True:
        now = time.monotonic()
        observations = [each for collector in collectors for each in collector.collect(now)]
        if all(map(has_read, collectors)) or now > deadline:
            break
        time.sleep(POLL_S)
    wall_now = time.time()
    seen = Seen(
        observations=tuple(observations),
        samples=tuple(each for collector in collectors for each in collector.samples(wall_now)),
        gaps={collector.name: collector.gap() for collector in collectors},
        absent=frozenset(each.name for each in collectors if each.is_absent),
    )
    for collector in collectors:
        collector.stop()
    return seen


def read_uptime(root: str) -> float:
    """Return the seconds since boot; many if they are not known."""
    text = read_text(os.path.join(root, "proc/uptime"), 64).partition(" ")[0]
    return float(text) if text.replace(".", "", 1).isdecimal() else LONG_UP_S


def has_read(collector: Collector) -> bool:
    """Return whether a collector has read its source, or knows that it cannot."""
    if isinstance(collector, Nvml) and collector.can_read:
        return collector.has_values
    return collector.can_read or collector.is_absent or bool(collector.gap())


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Generic[T]):
    """One check: a line in `CHECKS`."""

    name: str
    about: About
    read: Callable[[Node], T]
    judge: Callable[[T], Iterator[Finding]]
    """Yields what was found, at least one thing."""
    hangs: Finding = NO_ANSWER
    """What it means if the read does not return."""

    def run(self, node: Node) -> list[Finding]:
        """Return what it finds."""
        return list(self.judge(self.read(node)))
