"""What clients of a cluster were promised, and whether what it answers afterwards keeps it.

An acknowledgement and the reason of a silence are registers, which a write replaces. A write
without an answer may have happened, at any time after it began.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Operation:
    """One request. Times are of the monotonic clock."""

    subject: str
    """Which register: an incident, or the silence of a job."""
    value: str
    """What it wrote, or read."""
    is_write: bool
    began: float
    ended: float
    """Infinite without an answer."""


@dataclass
class History:
    """All that was acknowledged. For several threads."""

    dumps: set[str] = field(default_factory=set)
    operations: list[Operation] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def write(self, subject: str, value: str, request: Callable[[], object]) -> bool:
        """Do a write and note it. Return whether it was acknowledged."""
        began = time.monotonic()
        try:
            request()
            ended = time.monotonic()
        except Exception:
            ended = float("inf")
        self._note(Operation(subject, value, True, began, ended))
        return ended < float("inf")

    def read(self, subject: str, request: Callable[[], str | None]) -> None:
        """Do a read and note it, unless there was no answer (None)."""
        began = time.monotonic()
        value = request()
        if value is not None:
            self._note(Operation(subject, value, False, began, time.monotonic()))

    def _note(self, operation: Operation) -> None:
        with self._lock:
            self.operations.append(operation)


def check_registers(operations: list[Operation]) -> Iterator[str]:
    """Yield each read that no order of the writes explains.

    A read may return a write that began before the read ended, and that no other write, which began
    after it ended, had replaced before the read began. "" is the value before the first write.
    """
    for subject in sorted({one.subject for one in operations}):
        mine = [one for one in operations if one.subject == subject]
        writes = [one for one in mine if one.is_write]
        for read in (one for one in mine if not one.is_write):
            if not any(_explains(write, read, writes) for write in _candidates(read, writes)):
                yield f"{subject}: {read.value!r} was read at {read.began:.2f}"


def _candidates(read: Operation, writes: list[Operation]) -> list[Operation]:
    start = Operation(read.subject, "", True, float("-inf"), float("-inf"))
    return [one for one in [start, *writes] if one.value == read.value]


def _explains(write: Operation, read: Operation, writes: list[Operation]) -> bool:
    replaced = any(other.began > write.ended and other.ended < read.began for other in writes)
    return write.began < read.ended and not replaced


def check_dumps(acknowledged: set[str], stored: set[str]) -> Iterator[str]:
    """Yield each dump that was acknowledged and is not stored."""
    yield from (f"dump {ident} was acknowledged and is lost" for ident in acknowledged - stored)


def check_job(
    job: str, hangs: int, incidents: list[dict[str, Any]], keys: list[str], fired: list[str]
) -> Iterator[str]:
    """Yield what is wrong with the incidents and the alerts of a job that hung so often.

    `keys` are those of its messages that fire, and `fired` the incidents of these.
    """
    if len(incidents) != hangs:
        yield f"{job}: {len(incidents)} incidents of {hangs} hangs"
    if len(set(fired)) != hangs:
        yield f"{job}: {len(set(fired))} alerts of {hangs} hangs"
    if unknown := set(fired) - {one["id"] for one in incidents}:
        yield f"{job}: an alert about {sorted(unknown)}, which is not stored"
    first = [key for key in set(keys) if key.endswith(":1")]
    if len(first) > hangs:
        yield f"{job}: {len(first)} first messages of {hangs} hangs"
