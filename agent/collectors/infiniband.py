"""Collector: the ports of InfiniBand and RoCE: state, rate, bytes and errors.

The kernel asks the firmware of a card for some of these files, and waits for it, for a minute at
most. So a thread reads all ports, one thread at a time, every 10 s.

A reading of 16 ports takes 4 ms of CPU. Thresholds are those of other monitors of data centres
(NVSentinel). Counters are compared with the reading before, so that old errors of a port, and a
reset of its counters, show nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from agent.collectors.collector import Collector, name_nic
from agent.procfs import read_text
from watchtower.service.metric_spec import Sample, counter, gauge
from watchtower.wire.observations import Observation

UP = gauge("watchtower_rdma_port_up", "port", "1 if the port of InfiniBand or RoCE is active.")
RATE = gauge("watchtower_rdma_port_rate_gbps", "port", "Rate of the port in Gbit/s.")
BYTES = counter(
    "watchtower_rdma_port_bytes_total",
    "port direction",
    "Bytes of a port of InfiniBand or RoCE: `received`, `sent`.",
)
ERRORS = counter(
    "watchtower_rdma_port_errors_total",
    "port kind",
    "Errors of a port of InfiniBand or RoCE, by the name of the kernel's counter. "
    "`local_ack_timeout_err` is of the path or the far end.",
)

FOLDER = "sys/class/infiniband"

EVERY_S = 10.0
"""Seconds between two readings. Each takes some 30 file reads for a port."""

MAX_PORTS = 32
"""Ports that are read: a node has up to 16, with those of storage and of a second plane."""

MAX_BYTES = 64
"""Bytes of a state, a rate or a counter that are read."""

MAX_DIGITS = 17
"""Digits of a number that are read: the value of an observation is at most 1e18."""

REPORTED_S = 900.0
"""Seconds for which a lost link or a burst of errors is reported."""

MISSING_READINGS = 3
"""Readings in a row without a port, until it counts as gone: its driver may start it anew."""

WORD_BYTES = 4
"""Bytes of one unit of `port_rcv_data` and `port_xmit_data`."""

ACTIVE = "ACTIVE"

LINK_DOWNED = "link_downed"

PER_S = {
    "excessive_buffer_overrun_errors": 0.0,
    "local_link_integrity_errors": 0.0,
    "rnr_nak_retry_err": 0.0,
    "symbol_error": 10.0,
    "link_error_recovery": 5.0 / 60.0,
    "port_rcv_errors": 10.0,
    "port_xmit_discards": 100.0,
    "roce_slow_restart": 10.0,
}
"""Errors of a port in a second above which they are reported."""

FAR_PER_S = {
    "local_ack_timeout_err": 1.0,
    "retrans_timeout_events": 1.0,
    "unresponsive_remote_events": 0.0,
    "impaired_remote_conn_events": 0.0,
}
"""The same of requests that the far end does not answer. The last three are of Amazon's EFA."""

COUNTED = (LINK_DOWNED, *PER_S, *FAR_PER_S)


@dataclass(frozen=True, slots=True)
class Port:
    """One port at one moment."""

    is_active: bool
    gbps: float
    counts: dict[str, int]
    """By name of the counter; those that the card does not have are left out."""
    received: int
    sent: int


def find_bursts(before: Port, port: Port, elapsed_s: float) -> Iterator[tuple[str, float]]:
    """Yield the counters of errors that grew too fast, and by how much in a second."""
    for name, limit in (*PER_S.items(), *FAR_PER_S.items()):
        count = port.counts.get(name, 0)
        rate = (count - before.counts.get(name, count)) / elapsed_s
        if rate > limit:
            yield name, rate


@dataclass(slots=True)
class _Known:
    """One port since the agent started."""

    now: Port
    at: float
    lost: tuple[float, str] | None = None
    """When it went, and in which words, if it went while the agent ran."""
    bursts: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By counter: when there were last many errors, and how many in a second."""
    absent: int = 0

    def take(self, port: Port, at: float) -> None:
        """Add a reading."""
        before, elapsed_s = self.now, max(at - self.at, 1.0)
        grown = {name: n - before.counts.get(name, n) for name, n in port.counts.items()}
        if before.is_active and not port.is_active:
            self.lost = at, "is no longer active"
        elif grown.get(LINK_DOWNED, 0) > 0:
            self.lost = at, "lost its link and has it again"
        elif port.is_active and self.lost and not before.is_active:
            self.lost = self.lost[0], "was not active for a while"
        for name, rate in find_bursts(before, port, elapsed_s):
            self.bursts[name] = at, rate
        self.now, self.at, self.absent = port, at, 0

    def miss(self, at: float) -> None:
        """Note a reading without this port."""
        self.absent += 1
        if self.absent == MISSING_READINGS:
            self.lost = at, "has disappeared"


class Infiniband(Collector):
    """Reads the ports of one root."""

    name = "infiniband"
    metrics = (UP, RATE, BYTES, ERRORS)

    def __init__(self, root: str = "/") -> None:
        self._folder = os.path.join(root, FOLDER)
        self._ports: dict[str, _Known] = {}
        self._begun_at = float("-inf")
        self._reader: threading.Thread | None = None
        self._read: dict[str, Port] | None = None

    def collect(self, now: float) -> Iterator[Observation]:
        """Return lost links and bursts of errors of the last 15 minutes, and slow ports."""
        self._take(now)
        for name, port in self._ports.items():
            if port.lost is not None:
                at, words = port.lost
                yield from self._observe(now, name, "nic_link_lost", at, 1.0, words)
            for kind, (at, rate) in port.bursts.items():
                what = "nic_far_end" if kind in FAR_PER_S else "nic_errors"
                words = f"had {rate:.3g} {kind} a second"
                yield from self._observe(now, name, f"{what}.{kind}", at, rate, words)
        yield from self._find_slow(now)

    def wait(self, timeout_s: float) -> None:
        """Wait until the running read has ended."""
        if self._reader is not None:
            self._reader.join(timeout_s)

    def samples(self, wall_now: float) -> Iterator[Sample]:
        """Return the values of all ports."""
        for name, known in self._ports.items():
            port = known.now
            yield Sample(UP, (name,), float(port.is_active and not known.absent))
            yield Sample(RATE, (name,), port.gbps)
            yield Sample(BYTES, (name, "received"), port.received)
            yield Sample(BYTES, (name, "sent"), port.sent)
            for kind, count in port.counts.items():
                yield Sample(ERRORS, (name, kind), count)

    @property
    def can_read(self) -> bool:
        """Whether a port was read."""
        return bool(self._ports)

    @property
    def is_absent(self) -> bool:
        """Whether the node has no port. Before the first read has ended, this is false."""
        return not self._ports and self._reader is None

    def _take(self, now: float) -> None:
        """Use what a thread has read, and start the next one when it is due."""
        if self._reader is not None and self._reader.is_alive():
            return
        if self._reader is not None:
            self._reader = None
            read = self._read or {}
            for name, port in read.items():
                self._ports.setdefault(name, _Known(now=port, at=now)).take(port, now)
            for name in self._ports.keys() - read.keys():
                self._ports[name].miss(now)
        if now - self._begun_at >= EVERY_S and os.path.isdir(self._folder):
            self._begun_at, self._read = now, None
            self._reader = threading.Thread(target=self._fill, name="infiniband", daemon=True)
            self._reader.start()

    def _fill(self) -> None:
        self._read = dict(islice(read_ports(self._folder), MAX_PORTS))

    def _find_slow(self, now: float) -> Iterator[Observation]:
        active = {name: each for name, each in self._ports.items() if each.now.is_active}
        usual = max((each.now.gbps for each in active.values()), default=0.0)
        alike = [each for each in active.values() if each.now.gbps == usual]
        for name, each in active.items():
            if each.now.gbps < usual and 2 * len(alike) > len(active):
                words = f"runs at {each.now.gbps:g} Gbit/s, the other ports at {usual:g}"
                yield from self._observe(now, name, "nic_rate", now, each.now.gbps, words)

    def _observe(
        self, now: float, name: str, what: str, at: float, value: float, words: str
    ) -> Iterator[Observation]:
        if now - at <= REPORTED_S:
            yield Observation(
                source=self.name,
                subject=name_nic(name),
                name=what,
                age_s=now - at,
                value=value,
                text=f"{name} {words}",
            )


def read_ports(folder: str) -> Iterator[tuple[str, Port]]:
    """Yield all ports: "mlx5_0", or "mlx5_0/2" of a card with several."""
    for device in _list(folder):
        ports = _list(os.path.join(folder, device, "ports"))
        for port in ports:
            path = os.path.join(folder, device, "ports", port)
            name = device if len(ports) == 1 else f"{device}/{port}"
            if state := read_text(f"{path}/state", MAX_BYTES):
                yield name, _read_port(path, state)


def _read_port(path: str, state: str) -> Port:
    found = {
        name: number
        for name in COUNTED
        for kind in ("counters", "hw_counters")
        if (number := _read_number(f"{path}/{kind}/{name}")) is not None
    }
    rate = read_text(f"{path}/rate", MAX_BYTES).partition(" ")[0]
    return Port(
        is_active=state.strip().endswith(f": {ACTIVE}"),
        gbps=float(rate) if rate.replace(".", "", 1).isdecimal() else 0.0,
        counts=found,
        received=WORD_BYTES * (_read_number(f"{path}/counters/port_rcv_data") or 0),
        sent=WORD_BYTES * (_read_number(f"{path}/counters/port_xmit_data") or 0),
    )


def _read_number(path: str) -> int | None:
    text = read_text(path, MAX_BYTES).strip()
    return int(text[:MAX_DIGITS]) if text.isdecimal() else None


def _list(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
