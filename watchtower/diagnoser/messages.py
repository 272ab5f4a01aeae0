"""What is asked of a diagnosing process, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from watchtower.core.case import Case
from watchtower.core.case_parts import CaseParts, join_case
from watchtower.core.diagnosed import Diagnosis
from watchtower.core.diagnosis.diagnosis import diagnose
from watchtower.wire.dumps import DumpBatch

CPU_S = 2.0
CPU_PER_RANK_S = 0.0002
"""CPU time that one diagnosis may take. 16,384 ranks take 0.7 s, where 5.3 s are allowed."""

MEMORY_BYTES = 1 << 30
MEMORY_PER_RANK_BYTES = 64 * 1024
"""Address space that a diagnosing process may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one diagnosis may cost. The process sets them for itself, the kernel enforces them."""

    cpu_s: float
    memory_bytes: int


def limits_for(ranks: int) -> Limits:
    """Return the limits of a diagnosis of so many ranks."""
    return Limits(
        cpu_s=CPU_S + CPU_PER_RANK_S * ranks,
        memory_bytes=MEMORY_BYTES + MEMORY_PER_RANK_BYTES * ranks,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One case to diagnose."""

    limits: Limits
    parts: CaseParts
    bodies: Sequence[bytes]
    """Batches of dumps as their agents sent them, JSON."""
    earlier: bytes | None = None
    """Evidence that the tower's last run left of the same stall: a case as JSON."""

    def encode(self) -> list[bytes]:
        """Return the frames of this request, the limits first."""
        head = [_encode(self.limits), _encode(self.parts), self.earlier or b""]
        return [*head, *self.bodies]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of a request."""

    diagnosis: Diagnosis | None
    evidence: bytes | None
    """The case as JSON; null if none could be made."""
    error: str = ""
    """Traceback if the diagnosis failed, else empty."""


_encode = msgspec.msgpack.Encoder().encode
_limits = msgspec.msgpack.Decoder(Limits)
_parts = msgspec.msgpack.Decoder(CaseParts)
_diagnoses = msgspec.msgpack.Decoder(Diagnosis)
_cases = msgspec.json.Decoder(Case)
_batches = msgspec.json.Decoder(DumpBatch)


def read_limits(frames: Sequence[bytes]) -> Limits:
    """Read the limits of a request."""
    return _limits.decode(frames[0])


def decode_case(frames: Sequence[bytes]) -> Case:
    """Make the case of a request."""
    _, parts, earlier, *bodies = frames
    batches = [_batches.decode(body) for body in bodies]
    return join_case(_parts.decode(parts), batches, _read_earlier(earlier))


def _read_earlier(earlier: bytes) -> Case | None:
    """Read what the tower's last run left. Null if this release cannot read it."""
    try:
        return _cases.decode(earlier) if earlier else None
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def write_success(case: Case) -> list[bytes]:
    """Diagnose a case; returns the frames of the answer."""
    return [_encode(diagnose(case)), msgspec.json.encode(case), b""]


def write_failure(case: Case | None, error: str) -> list[bytes]:
    """Return the frames of an answer without a diagnosis."""
    return [b"", msgspec.json.encode(case) if case else b"", error.encode("utf-8", "replace")]


def read_answer(frames: Sequence[bytes]) -> Answer:
    """Read an answer. Raises ValueError if the frames are not a valid one."""
    diagnosis, evidence, error = frames
    return Answer(
        diagnosis=_diagnoses.decode(diagnosis) if diagnosis else None,
        evidence=evidence or None,
        error=error.decode("utf-8", "replace"),
    )
