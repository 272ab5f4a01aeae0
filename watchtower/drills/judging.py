"""Decides whether a verdict is right. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from watchtower.drills.setup import FINAL, Expected

Verdict = dict[str, object]


JOB_SLOW = "job_slow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The tower's last verdict, and the observations before it."""

    verdict: Verdict | None
    statuses_seen: tuple[str, ...]
    incidents: tuple[str, ...]
    """Summaries of the opened incidents."""
    fault_to_verdict_s: float | None = None
    complaints: tuple[str, ...] = ()
    """Problems that the drill itself found, such as a forgotten incident."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Whether the verdict is right, and the reasons if it is not."""

    right_rank: bool
    right_cause: bool
    reasons: tuple[str, ...] = ()

    @property
    def is_right(self) -> bool:
        """Return whether both rank and cause are right."""
        return self.right_rank and self.right_cause


def judge(expected: Expected, ranks: tuple[int, ...], answer: Answer) -> Judgement:
    """Compare the answer with the injected fault."""
    if expected.cause is None:
        return _judge_status(expected, answer)
    return _judge_cause(expected, ranks, answer)


def is_final(verdict: Verdict | None, statuses: tuple[str, ...] = FINAL) -> bool:
    """Return whether the verdict on a fault is final: the job is hung or has ended.

    For a slow job, the cause `job_slow` is not final: finding the slow rank takes longer.
    """
    if not verdict or verdict.get("status") not in statuses:
        return False
    return verdict.get("cause") not in (None, JOB_SLOW)


def names_cause(verdict: Verdict | None) -> bool:
    """Return whether the verdict contains a cause. `unknown` and `job_slow` do not count."""
    if not verdict or verdict.get("status") == "healthy":
        return False
    return verdict.get("cause") not in (None, "unknown", JOB_SLOW)


def suspect_ranks(verdict: Verdict | None) -> tuple[int, ...]:
    """Return the accused ranks in ascending order."""
    suspects = (verdict or {}).get("suspects")
    if not isinstance(suspects, list):
        return ()
    return tuple(sorted(suspect["rank"] for suspect in suspects))


def _judge_cause(expected: Expected, ranks: tuple[int, ...], answer: Answer) -> Judgement:
    accused = suspect_ranks(answer.verdict)
    right_rank = accused == ranks
    who = () if right_rank else (f"accused {_listed(accused)}, expected {_listed(ranks)}",)
    why = tuple(_wrong_with_cause(expected, answer))
    return Judgement(right_rank=right_rank, right_cause=not why, reasons=who + why)


def _wrong_with_cause(expected: Expected, answer: Answer) -> Iterator[str]:
    verdict = answer.verdict or {}
    if verdict.get("cause") not in (expected.cause, *expected.or_causes):
        yield f"cause {verdict.get('cause')}, expected {expected.cause}"
    elif expected.domain not in (None, verdict.get("domain")):
        yield f"domain {verdict.get('domain')}, expected {expected.domain}"
    elif unsaid := [word for word in expected.mentions if not _mentions(verdict, word)]:
        yield f"the verdict does not mention {', '.join(unsaid)}"
    elif verdict.get("status") not in expected.statuses:
        right = " or ".join(expected.statuses)
        yield f"the status stayed {verdict.get('status')}, expected {right}"
    took_s = answer.fault_to_verdict_s
    if expected.within_s is not None and took_s is not None and took_s > expected.within_s:
        yield f"the first verdict took {took_s:.1f} s, allowed are {expected.within_s:g} s"
    if not expected.is_incident:
        yield from (f"unexpected incident: {one}" for one in answer.incidents)
    yield from answer.complaints


def _mentions(verdict: Verdict, word: str) -> bool:
    """Return whether the verdict contains the whole word: 120 does not mention pid 12."""
    return re.search(rf"\b{re.escape(word)}\b", json.dumps(verdict)) is not None


def _judge_status(expected: Expected, answer: Answer) -> Judgement:
    status = (answer.verdict or {}).get("status")
    reasons = [f"incident on a healthy job: {one}" for one in answer.incidents]
    if status not in expected.statuses:
        reasons.append(f"status {status}, expected {' or '.join(expected.statuses)}")
    if expected.passes and expected.passes not in answer.statuses_seen:
        reasons.append(f"status {expected.passes} was never shown")
    reasons += answer.complaints
    return Judgement(
        right_rank=not answer.incidents, right_cause=not reasons, reasons=tuple(reasons)
    )


def _listed(ranks: tuple[int, ...]) -> str:
    return "rank " + ", ".join(map(str, ranks)) if ranks else "no rank"
