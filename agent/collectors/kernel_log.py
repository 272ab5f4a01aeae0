"""Collector: lines of the kernel log about GPUs, memory, hung tasks, file servers and network.

/dev/kmsg returns one record per read: "priority,sequence,microseconds,flags;text". Only records of
the facility "kernel" count. A process can write to /dev/kmsg, too, but the kernel gives its records
another facility, so that it cannot forge a line.

The kernel stores the time since boot of every record. After a restart the agent reads the whole
buffer again, and recent lines have their true age.

Which lines can explain a hang is data: `watchtower/readers/kernel_lines.toml`.

The report of an OOM kill comes before the line with the killed process (mm/oom_kill.c). If a memory
cgroup was full, it has the use and limit of the cgroup, then a table of its processes, in pages.
Else the memory of the node was full, and the table has all processes of the node. They are summed
up by name: PyTorch calls the workers of a DataLoader `pt_data_worker`.
"""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from agent.collectors.collector import Collector
from watchtower.readers.kernel_lines import MAX_LINE, KernelLine, read_line
from watchtower.service.metric_spec import Sample, counter, gauge
from watchtower.service.sharing import by_turns
from watchtower.service.xid_table import explain_xid
from watchtower.wire.observations import MAX_OBSERVATION_TEXT, Observation
from watchtower.wire.report import KERNEL_LOG_GAP
from watchtower.writing.printable import printable

MAX_NAMES = 256
"""Names of processes that are counted one by one. Further ones are summed up as "others"."""

MAX_SHOWN = 3
"""Names in the text, those with the most memory first."""

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

_BEGIN = re.compile(r".{1,64} invoked oom-killer: ")
_CGROUP = re.compile(r"memory: usage (?P<usage>\d{1,18})kB, limit (?P<limit>\d{1,18})kB, ")
_ROW = re.compile(
    r"\[ {0,10}(?P<pid>\d{1,10})\] +\d{1,10} +\d{1,10} +\d{1,18} +(?P<rss>\d{1,18})"
    r"(?: +-?\d{1,18}){3,8} +(?P<name>\S.{0,15})$"
)
"""pid, uid, tgid, total_vm, rss; its parts from Linux 6.8 on; page tables, swap, score, name."""

_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


class OomReport:
    """The newest report of the kernel, as far as it was read."""

    def __init__(self) -> None:
        self._cgroup: tuple[int, int] | None = None
        """Bytes used, and the limit."""
        self._held = Counter[str]()
        """Resident bytes by name. Memory that processes share counts for each of them."""
        self._processes = Counter[str]()

    def take(self, line: str) -> None:
        """Add one line of the kernel log; other lines change nothing."""
        if _BEGIN.match(line):
            self._forget()
        elif match := _CGROUP.match(line):
            self._cgroup = int(match["usage"]) * 1024, int(match["limit"]) * 1024
        elif match := _ROW.match(line):
            name = printable(match["name"], 16)
            if name not in self._held and len(self._held) >= MAX_NAMES:
                name = "others"
            self._held[name] += int(match["rss"]) * PAGE_BYTES
            self._processes[name] += 1

    def finish(self) -> str:
        """Return the sum of the report and forget it; empty if none was read.

        "its memory cgroup was full (64 GiB of 64 GiB: 8 pt_data_worker 50 GiB, 1 python 14 GiB)"
        """
        text = self._write()
        self._forget()
        return text

    def _forget(self) -> None:
        self._cgroup = None
        self._held.clear()
        self._processes.clear()

    def _write(self) -> str:
        if not self._held:
            return ""
        shown = self._held.most_common(MAX_SHOWN)
        users = [f"{self._processes[name]} {name} {format_bytes(held)}" for name, held in shown]
        if rest := self._held.total() - sum(held for _, held in shown):
            users.append(f"others {format_bytes(rest)}")
        used_by = ", ".join(users)
        if self._cgroup is None:
            return f"the memory of the node was full ({used_by})"
        used, limit = map(format_bytes, self._cgroup)
        return f"its memory cgroup was full ({used} of {limit}: {used_by})"


def format_bytes(count: int) -> str:
    """Return "380 GiB", "1.5 MiB", "12 KiB"."""
    for unit, size in _UNITS:
        if count >= size:
            shown = count / size
            return f"{shown:.0f} {unit}" if shown >= 10 else f"{shown:.1f} {unit}"
    return f"{count} B"


XIDS = counter(
    "watchtower_xids_total",
    "gpu xid",
    "Xid errors of a GPU in the kernel log since boot. `gpu` is the PCI address.",
)
XID_LAST = gauge(
    "watchtower_xid_last_timestamp_seconds",
    "gpu xid fatal action",
    "Time of the newest Xid of a GPU, if it came in the last 15 minutes. `fatal` is true if the "
    "GPU is to blame. `action` is what NVIDIA's catalogue asks for.",
)
OOM_KILLS = counter(
    "watchtower_oom_kills_total", "", "Processes that the OOM killer ended on this node since boot."
)
LOST_LINES = counter(
    "watchtower_kernel_log_gaps_total",
    "",
    "Lines of the kernel log that were overwritten before the agent could read them.",
)

KEPT_S = 900.0
"""Seconds that a line is reported. A stall that is diagnosed began more recently."""

MAX_OF_FAMILY = 16
"""Lines reported per family, the newest of each owner in turn. A user's processes can cause
thousands of segmentation faults, and must not displace an Xid or another user's OOM kill."""

MAX_XID_SERIES = 256
"""Series of Xid errors: 16 GPUs with as many codes. Further codes are not counted."""

XID, OOM_KILL = "xid", "oom_kill"

MAX_STORED = 64
"""Lines stored per family. Beyond that the oldest are dropped."""

MAX_RECORDS_PER_TICK = 1000
"""Records read at one interval: about 5 ms. If there are more, they wait in the kernel, which
overwrites the oldest."""

RECORD_BYTES = 8192
"""Size of a read: the kernel refuses a buffer that is smaller than the record."""

_KERNEL_FACILITY = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record of /dev/kmsg."""

    facility: int
    sequence: int
    at_s: float
    """Seconds since boot, on the clock of CLOCK_MONOTONIC."""
    text: str


def parse_record(line: bytes) -> Record | None:
    """Parse the first line of a record; None for the lines with its device, and for other text."""
    head, semicolon, text = line.partition(b";")
    fields = head.split(b",", 3)
    if not semicolon or len(fields) < 3 or not all(each.isdigit() for each in fields[:3]):
        return None
    if max(map(len, fields[:3])) > 20:
        return None
    priority, sequence, microseconds = map(int, fields[:3])
    return Record(
        facility=priority >> 3,
        sequence=sequence,
        at_s=microseconds / 1e6,
        text=text[:MAX_LINE].decode("utf-8", "replace"),
    )


class KernelLog(Collector):
    """Reads /dev/kmsg of one root. It never blocks."""

    name = "kernel_log"
    metrics = (XIDS, XID_LAST, OOM_KILLS, LOST_LINES)

    def __init__(self, root: str = "/") -> None:
        self._path = os.path.join(root, "dev/kmsg")
        self._fd = -1
        self._trouble = ""
        self._rest = b""
        self._next_sequence: int | None = None
        self._lost, self._lost_at, self._lost_in_all = 0, float("-inf"), 0
        self._oom_kills = 0
        self._oom_report = OomReport()
        self._xids = Counter[tuple[str, str]]()
        """By PCI address and code."""
        self._collected_at = 0.0
        self._read_to_end_at = float("-inf")
        self._found: dict[tuple[str, str], tuple[float, KernelLine]] = {}
        """By name and subject: when the newest such line was written, and the line."""

    def collect(self, now: float) -> Iterator[Observation]:
        """Return the recognised lines of the last 15 minutes, newest first in each family."""
        self._open()
        is_at_end = self._read(now)
        if is_at_end:
            self._read_to_end_at = now
        self._collected_at = now
        self._forget_old(now)
        newest = sorted(self._found.values(), key=lambda item: -item[0])
        counts = Counter[str]()
        keyed = (((_family_of(line), line.owner), (at, line)) for at, line in newest)
        for at, line in by_turns(keyed):
            family = _family_of(line)
            counts[family] += 1
            if counts[family] <= MAX_OF_FAMILY:
                yield Observation(
                    source=self.name,
                    subject=line.subject,
                    name=line.name,
                    age_s=max(0.0, now - at),
                    value=line.value,
                    unit=line.unit,
                    text=line.text,
                    pid=line.pid,
                )

    def samples(self, wall_now: float) -> Iterator[Sample]:
        """Return how many Xid errors, OOM kills and lost lines there were; nothing if unknown."""
        if not self.can_read:
            return
        for (gpu, code), count in self._xids.items():
            yield Sample(XIDS, (gpu, code), count)
        for at, line in self._found.values():
            code = line.name.partition(".")[2]
            if _family_of(line) == XID:
                meaning, gpu = explain_xid(int(code)), line.subject.removeprefix("pci:")
                labels = gpu, code, str(meaning.is_fault).lower(), meaning.action
                yield Sample(XID_LAST, labels, wall_now - (self._collected_at - at))
        yield Sample(OOM_KILLS, (), self._oom_kills)
        yield Sample(LOST_LINES, (), self._lost_in_all)

    @property
    def can_read(self) -> bool:
        """Whether /dev/kmsg is open."""
        return self._fd >= 0

    def gap(self) -> str:
        """Return why lines of the kernel log are missing; empty if none is."""
        if self._trouble:
            return (
                f"{KERNEL_LOG_GAP}{self._path} cannot be read ({self._trouble}), so that OOM kills "
                "and GPU errors (Xid) stay unknown: give the agent CAP_SYSLOG"
            )
        if self._lost:
            return f"{KERNEL_LOG_GAP}{self._lost} lines were overwritten before they could be read"
        return ""

    def stop(self) -> None:
        """Close the device."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _open(self) -> None:
        if self._fd >= 0:
            return
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self._trouble = ""
        except OSError as error:
            self._trouble = os.strerror(error.errno or 0)

    def _read(self, now: float) -> bool:
        """Read the new records. Return whether none is left."""
        for _ in range(MAX_RECORDS_PER_TICK):
            try:
                part = os.read(self._fd, RECORD_BYTES) if self._fd >= 0 else b""
            except BlockingIOError:
                return True
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten; the next read returns the oldest left
                    continue
                self._trouble = os.strerror(error.errno or 0)
                self.stop()
                return True
            if not part:
                return True
            # One record of the device. A file below another root returns several, and parts.
            *lines, self._rest = (self._rest + part).split(b"\n")
            self._rest = self._rest[:RECORD_BYTES]
            for line in lines:
                self._take(line, now)
        return False

    def _take(self, raw: bytes, now: float) -> None:
        record = parse_record(raw)
        if record is None:
            return
        self._count_lost(record.sequence, now)
        line = self._recognise(record)
        if line is None:
            return
        # The clock of the kernel log drifts from CLOCK_MONOTONIC. A record that was not there at
        # the last read was written after it.
        at = min(now, max(record.at_s, self._read_to_end_at))
        self._count(line)
        key = line.name, line.subject
        self._found.pop(key, None)
        if not line.clears:
            self._found[key] = at, line
            self._drop_oldest(_family_of(line))

    def _recognise(self, record: Record) -> KernelLine | None:
        if record.facility != _KERNEL_FACILITY:
            return None
        self._oom_report.take(record.text)
        line = read_line(record.text)
        if line is None or line.name != OOM_KILL or not (text := self._oom_report.finish()):
            return line
        return replace(line, text=f"{text}. {line.text}"[:MAX_OBSERVATION_TEXT])

    def _count(self, line: KernelLine) -> None:
        if line.name == OOM_KILL:
            self._oom_kills += 1
        elif _family_of(line) == XID:
            key = line.subject.removeprefix("pci:"), line.name.partition(".")[2]
            if key in self._xids or len(self._xids) < MAX_XID_SERIES:
                self._xids[key] += 1

    def _count_lost(self, sequence: int, now: float) -> None:
        expected = self._next_sequence
        if expected is not None and sequence > expected:
            missed = sequence - expected
            self._lost, self._lost_at = self._lost + missed, now
            self._lost_in_all += missed
        self._next_sequence = sequence + 1

    def _drop_oldest(self, family: str) -> None:
        """Drop the oldest line of the owner with the most lines, if a family has too many."""
        keys = [key for key, (_, line) in self._found.items() if _family_of(line) == family]
        if len(keys) > MAX_STORED:
            owners = Counter(self._found[key][1].owner for key in keys)
            most = owners.most_common(1)[0][0]
            del self._found[next(key for key in keys if self._found[key][1].owner == most)]

    def _forget_old(self, now: float) -> None:
        self._found = {key: item for key, item in self._found.items() if now - item[0] <= KEPT_S}
        if now - self._lost_at > KEPT_S:
            self._lost = 0


def _family_of(line: KernelLine) -> str:
    return line.name.partition(".")[0]
