"""Collector: the network interfaces of the node: link, MTU, bytes and errors.

Only interfaces of a device count: a bridge or a container's interface has no link of its own. On a
node without one, such as a container with its own network, there is nothing to read.

Only files that the kernel answers from memory are read. `carrier` and `speed` are left out: these
reads wait for a lock or for the device, and may block for a minute. So do the counters of
InfiniBand, which another collector reads in a thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from agent.collectors.collector import Collector, name_nic
from agent.procfs import read_text
from watchtower.service.metric_spec import Sample, counter, gauge
from watchtower.wire.observations import Observation

BYTES = counter(
    "watchtower_nic_bytes_total",
    "nic direction",
    "Bytes of a network interface since boot: `received`, `sent`.",
)
ERRORS = counter(
    "watchtower_nic_errors_total",
    "nic kind",
    "Errors of a network interface since boot: `receive`, `send`, `receive_dropped`, "
    "`send_dropped`. Drops alone are ordinary: most are of frames that no program has requested.",
)
UP = gauge("watchtower_nic_up", "nic", "1 if the network interface has a link.")
MTU = gauge("watchtower_nic_mtu_bytes", "nic", "Largest packet of the network interface.")

MAX_INTERFACES = 32
"""Interfaces that are read: a node has up to 8 for GPUs, and some for storage and control."""

MAX_FILE_BYTES = 64 * 1024
"""/proc/net/dev has some 130 bytes for each interface."""

REPORTED_S = 900.0
"""Seconds for which a lost link or a burst of errors is reported."""

ERRORS_PER_S = 10.0
"""Errors in a second that are reported. Single ones are ordinary on a long cable; the bound is the
one that other monitors of data centres use for receive errors."""

_COLUMNS = {
    "receive": 2,
    "receive_dropped": 3,
    "send": 10,
    "send_dropped": 11,
}
"""Columns of /proc/net/dev by kind of error; 0 and 8 are the bytes."""

MAX_DIGITS = 17
"""Digits of a number that are read: the value of an observation is at most 1e18."""

MAX_WORD = 64
"""Bytes read of `operstate`."""

_HAS_NO_LINK = ("down", "lowerlayerdown")
"""Words of `operstate` for an interface without a link. Some drivers always say "unknown"."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """One interface at one moment."""

    at: float
    is_up: bool
    mtu: int
    changes: int
    """How often the link came or went since boot."""
    received: int
    sent: int
    errors: dict[str, int]

    @property
    def bad(self) -> int:
        """Frames that were damaged or could not be sent."""
        return self.errors["receive"] + self.errors["send"]


@dataclass(slots=True)
class _Interface:
    """One interface since the agent started."""

    first: _Reading
    now: _Reading
    lost_at: float | None = None
    """When the link went, if it went while the agent ran."""
    burst: tuple[float, float] | None = None
    """When there were last many errors, and how many in a second."""

    def take(self, reading: _Reading) -> None:
        """Add a reading."""
        before = self.now
        if reading.changes < before.changes or reading.received < before.received:
            self.first = before = reading  # made again by its driver: its counters began again
        if reading.changes > before.changes or (before.is_up and not reading.is_up):
            self.lost_at = reading.at
        rate = (reading.bad - before.bad) / max(reading.at - before.at, 1.0)
        if rate >= ERRORS_PER_S:
            self.burst = reading.at, rate
        self.now = reading

    def list_events(self, name: str) -> Iterator[tuple[str, float, float, str]]:
        """Yield what is worth a report: the name, when it happened, its value, its words."""
        if self.lost_at is not None:
            losses = max(1, (self.now.changes - self.first.changes + 1) // 2)
            times = "" if losses == 1 else f" {losses} times"
            ends = "has it again" if self.now.is_up else "does not have it now"
            text = f"{name} lost its link{times} and {ends}"
            yield "nic_link_lost", self.lost_at, float(losses), text
        if self.burst is not None:
            at, rate = self.burst
            yield "nic_errors", at, rate, f"{name} had {rate:.0f} damaged or unsent frames a second"


class Network(Collector):
    """Reads the interfaces of one root."""

    name = "network"
    metrics = (BYTES, ERRORS, UP, MTU)

    def __init__(self, root: str = "/") -> None:
        self._counters = os.path.join(root, "proc/net/dev")
        self._devices = os.path.join(root, "sys/class/net")
        self._interfaces: dict[str, _Interface] = {}
        self._trouble = ""

    def collect(self, now: float) -> Iterator[Observation]:
        """Return lost links and bursts of errors of the last 15 minutes."""
        read: dict[str, _Reading] = {}
        self._trouble = ""
        try:
            read = dict(self._read(now))
        except FileNotFoundError:
            pass  # a kernel without network
        except (OSError, ValueError) as error:
            self._trouble = str(error)
        kept = self._interfaces
        self._interfaces = {
            name: kept.get(name) or _Interface(first=reading, now=reading)
            for name, reading in read.items()
        }
        for name, interface in self._interfaces.items():
            interface.take(read[name])
            for what, at, value, text in interface.list_events(name):
                if now - at <= REPORTED_S:
                    yield Observation(
                        source=self.name,
                        subject=name_nic(name),
                        name=what,
                        age_s=now - at,
                        value=value,
                        text=text,
                    )

    def samples(self, wall_now: float) -> Iterator[Sample]:
        """Return the values of all interfaces."""
        for name, interface in self._interfaces.items():
            reading = interface.now
            yield Sample(UP, (name,), float(reading.is_up))
            yield Sample(MTU, (name,), reading.mtu)
            yield Sample(BYTES, (name, "received"), reading.received)
            yield Sample(BYTES, (name, "sent"), reading.sent)
            for kind, count in reading.errors.items():
                yield Sample(ERRORS, (name, kind), count)

    @property
    def can_read(self) -> bool:
        """Whether the last `collect` read an interface."""
        return bool(self._interfaces)

    def gap(self) -> str:
        """Return why interfaces are not observed; empty if they are, or if there is none."""
        return f"network interfaces: they cannot be read ({self._trouble})" if self._trouble else ""

    def _read(self, now: float) -> Iterator[tuple[str, _Reading]]:
        """Raises OSError and ValueError if the kernel's table cannot be read."""
        counted = _read_counters(self._counters)
        names = (each for each in sorted(counted) if self._is_device(each))
        for name in islice(names, MAX_INTERFACES):
            folder, columns = os.path.join(self._devices, name), counted[name]
            try:
                reading = _Reading(
                    at=now,
                    is_up=read_text(f"{folder}/operstate", MAX_WORD).strip() not in _HAS_NO_LINK,
                    mtu=int(read_text(f"{folder}/mtu", MAX_DIGITS)),
                    changes=int(read_text(f"{folder}/carrier_changes", MAX_DIGITS)),
                    received=columns[0],
                    sent=columns[8],
                    errors={kind: columns[index] for kind, index in _COLUMNS.items()},
                )
            except ValueError:
                continue  # it was removed a moment ago
            yield name, reading

    def _is_device(self, name: str) -> bool:
        return os.path.exists(os.path.join(self._devices, name, "device"))


def _read_counters(path: str) -> dict[str, list[int]]:
    """Return the numbers of every line of /proc/net/dev. Raises ValueError if it has others."""
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = file.read(MAX_FILE_BYTES).splitlines()[2:]
    counted = {}
    for line in lines:
        name, colon, rest = line.partition(":")
        columns = rest.split()
        if not colon or len(columns) < 16 or not all(each.isdecimal() for each in columns):
            raise ValueError(f"{path} has the line {line[:64]!r}")
        counted[name.strip()] = [int(each[:MAX_DIGITS]) for each in columns]
    return counted
