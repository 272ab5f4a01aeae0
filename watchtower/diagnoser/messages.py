"""Requests to a diagnosing process and its answers."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from watchtower.diagnoser.summaries import write_summary
from watchtower.diagnosis.diagnosed import Diagnosis
from watchtower.diagnosis.diagnosis import diagnose_picture
from watchtower.diagnosis.picture import take_picture
from watchtower.evidence.case import Case, CaseParts, join_case
from watchtower.fleet.found_live import add_written
from watchtower.views.summary import summarize
from watchtower.wire.dumps import DumpBatch

CPU_S = 2.0
CPU_PER_RANK_S = 0.0002
"""CPU seconds that one diagnosis may use. 16,384 ranks use 0.7 s, and 5.3 s are allowed."""

BRIEF_S = 0.15
BRIEF_PER_RANK_S = 0.0003
MAX_BRIEF_S = 4.0
"""CPU seconds, without those of the kernel, that a first, brief try may use: a diagnosis of eight
ranks uses 0.01 s, and one of 16,384 ranks 1.7 s. On a busy machine, with cold caches, it uses
twice as much: 8,192 ranks gave up 1.4 s, and their cause came 9 s later from the third process."""

BRIEF_BYTES = 2 << 20
BRIEF_BYTES_PER_RANK = 8192
"""Bytes of dumps with which a brief try begins at all. Two rounds of 16,384 ranks are 45 MB."""

MAX_ERROR = 8192
"""Characters sent from the end of a traceback, which contains the error."""

MEMORY_BYTES = 1 << 30
MEMORY_PER_RANK_BYTES = 64 * 1024
"""Bytes of address space that a diagnosing process may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisLimits:
    """Limits of one diagnosis. The process sets them for itself, and the kernel enforces them."""

    cpu_s: float
    memory_bytes: int
    brief_s: float = 0.0
    """CPU seconds after which a brief try gives up; 0 for none."""
    brief_bytes: int = 0
    """Bytes of dumps above which a brief try gives up before it begins."""


def limits_for(ranks: int) -> DiagnosisLimits:
    """Return the limits for a diagnosis of `ranks` ranks."""
    return DiagnosisLimits(
        cpu_s=CPU_S + CPU_PER_RANK_S * ranks,
        memory_bytes=MEMORY_BYTES + MEMORY_PER_RANK_BYTES * ranks,
        brief_s=min(BRIEF_S + BRIEF_PER_RANK_S * ranks, MAX_BRIEF_S),
        brief_bytes=BRIEF_BYTES + BRIEF_BYTES_PER_RANK * ranks,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One case to diagnose."""

    limits: DiagnosisLimits
    parts: CaseParts
    bodies: Sequence[bytes]
    """Batches of dumps as their agents sent them, JSON."""
    earlier: bytes | None = None
    """Evidence about the same stall from the tower's last run: a case as JSON."""

    def encode(self, *, brief: bool = False) -> list[bytes]:
        """Return the frames of this request, the limits first."""
        limits = self.limits if brief else replace(self.limits, brief_s=0.0)
        head = [_encode(limits), _encode(self.parts), self.earlier or b""]
        return [*head, *self.bodies]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result of a request."""

    diagnosis: Diagnosis | None
    evidence: bytes | None
    """The case as JSON; None if the request could not be decoded."""
    error: str = ""
    """Traceback if the diagnosis or the summary failed, else empty."""
    summary: bytes | None = None
    """The summary of the case (`summaries`); None without a diagnosis, or if it failed."""


_encode = msgspec.msgpack.Encoder().encode
_limits = msgspec.msgpack.Decoder(DiagnosisLimits)
_parts = msgspec.msgpack.Decoder(CaseParts)
_diagnoses = msgspec.msgpack.Decoder(Diagnosis)
_cases = msgspec.json.Decoder(Case)
_batches = msgspec.json.Decoder(DumpBatch)


def read_limits(frames: Sequence[bytes]) -> DiagnosisLimits:
    """Return the limits of a request."""
    return _limits.decode(frames[0])


def decode_case(frames: Sequence[bytes]) -> Case:
    """Return the case of a request. Raises ValueError if it cannot be decoded."""
    _, parts, earlier, *bodies = frames
    batches = [_batches.decode(body) for body in bodies]
    return add_written(join_case(_parts.decode(parts), batches, _read_earlier(earlier)))


def _read_earlier(earlier: bytes) -> Case | None:
    """Return the case from the tower's last run; None if this release cannot read it."""
    try:
        return _cases.decode(earlier) if earlier else None
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def write_success(case: Case) -> list[bytes]:
    """Diagnose a case and return the frames of the answer."""
    picture = take_picture(case)
    diagnosis = diagnose_picture(picture)
    summary, error = b"", ""
    try:
        summary = write_summary(summarize(picture, diagnosis))
    except Exception:  # the verdict is worth more than its picture
        error = write_traceback()
    return [
        _encode(diagnosis),
        msgspec.json.encode(case),
        error.encode("utf-8", "replace"),
        summary,
    ]


def write_failure(case: Case | None, error: str) -> list[bytes]:
    """Return the frames of an answer without a diagnosis."""
    evidence = msgspec.json.encode(case) if case else b""
    return [b"", evidence, error.encode("utf-8", "replace"), b""]


def write_traceback() -> str:
    """Return the traceback of the error that is being handled."""
    return traceback.format_exc()[-MAX_ERROR:]


def write_gave_up() -> list[bytes]:
    """Return the answer to a brief try that used up its CPU time: no frames."""
    return []


def read_answer(frames: Sequence[bytes]) -> Answer | None:
    """Return the answer in the frames; None if a brief try gave up.

    Raises ValueError if they are not a valid answer.
    """
    if not frames:
        return None
    diagnosis, evidence, error, summary = frames
    return Answer(
        diagnosis=_diagnoses.decode(diagnosis) if diagnosis else None,
        evidence=evidence or None,
        error=error.decode("utf-8", "replace"),
        summary=summary or None,
    )
