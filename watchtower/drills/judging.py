"""Whether a verdict is right. Pure: told the truth and the answer, says yes or no."""

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
    """What the tower said in the end, and what was seen on the way there."""

    verdict: Verdict | None
    statuses_seen: tuple[str, ...]
    incidents: tuple[str, ...]
    """Summaries of the incidents that were opened."""
    complaints: tuple[str, ...] = ()
    """What the drill itself found wrong on the way, such as an incident that was forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Right or not, and where not, why."""

    right_rank: bool
    right_cause: bool
    reasons: tuple[str, ...] = ()

    @property
    def is_right(self) -> bool:
        """Whether both are right."""
        return self.right_rank and self.right_cause


def judge(expected: Expected, ranks: tuple[int, ...], answer: Answer) -> Judgement:
    """Compare the answer with what was injected."""
    if expected.cause is None:
        return _judge_status(expected, answer)
    return _judge_cause(expected, ranks, answer)


def is_final(verdict: Verdict | None, statuses: tuple[str, ...] = FINAL) -> bool:
    """Whether the verdict on a fault is the last word: the job is called hung, or has ended.

    Of a slow job, that it is slow is only the first word: who makes it so takes a while to see.
    """
    if not verdict or verdict.get("status") not in statuses:
        return False
    return verdict.get("cause") not in (None, JOB_SLOW)


def names_cause(verdict: Verdict | None) -> bool:
    """Whether the verdict says what is wrong; `unknown` does not, nor that the job is slow."""
    if not verdict or verdict.get("status") == "healthy":
        return False
    return verdict.get("cause") not in (None, "unknown", JOB_SLOW)


def suspect_ranks(verdict: Verdict | None) -> tuple[int, ...]:
    """The accused ranks, in order."""
    suspects = (verdict or {}).get("suspects")
    if not isinstance(suspects, list):
        return ()
    return tuple(sorted(suspect["rank"] for suspect in suspects))


def _judge_cause(expected: Expected, ranks: tuple[int, ...], answer: Answer) -> Judgement:
    accused = suspect_ranks(answer.verdict)
    right_rank = accused == ranks
    who = () if right_rank else (f"accused {_listed(accused)}, right is {_listed(ranks)}",)
    why = tuple(_wrong_with_cause(expected, answer))
    return Judgement(right_rank=right_rank, right_cause=not why, reasons=who + why)


def _wrong_with_cause(expected: Expected, answer: Answer) -> Iterator[str]:
    verdict = answer.verdict or {}
    if verdict.get("cause") != expected.cause:
        yield f"cause {verdict.get('cause')}, right is {expected.cause}"
    elif unsaid := [word for word in expected.mentions if not _mentions(verdict, word)]:
        yield f"the verdict does not mention {', '.join(unsaid)}"
    elif not is_final(verdict, expected.statuses):
        right = " or ".join(expected.statuses)
        yield f"the status stayed {verdict.get('status')}, right is {right}"
    if not expected.is_incident:
        yield from (f"incident where none belongs: {one}" for one in answer.incidents)
    yield from answer.complaints


def _mentions(verdict: Verdict, word: str) -> bool:
    """Whether it is there as a whole word: pid 12 is not mentioned by a 120."""
    return re.search(rf"\b{re.escape(word)}\b", json.dumps(verdict)) is not None


def _judge_status(expected: Expected, answer: Answer) -> Judgement:
    status = (answer.verdict or {}).get("status")
    reasons = [f"incident on a job with nothing wrong: {one}" for one in answer.incidents]
    if status not in expected.statuses:
        reasons.append(f"status {status}, right is {' or '.join(expected.statuses)}")
    if expected.passes and expected.passes not in answer.statuses_seen:
        reasons.append(f"status {expected.passes} was never shown")
    reasons += answer.complaints
    return Judgement(
        right_rank=not answer.incidents, right_cause=not reasons, reasons=tuple(reasons)
    )


def _listed(ranks: tuple[int, ...]) -> str:
    return "rank " + ", ".join(map(str, ranks)) if ranks else "nobody"
