"""Whether a verdict is right. Pure: told the truth and the answer, says yes or no."""

from __future__ import annotations

import json
from dataclasses import dataclass

from watchtower.drills.drill import Expected

Verdict = dict[str, object]

FINAL = ("hung", "ended")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the tower said in the end, and what was seen on the way there."""

    verdict: Verdict | None
    statuses_seen: tuple[str, ...]
    incidents: tuple[str, ...]
    """Summaries of the incidents that were opened."""


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


def is_final(verdict: Verdict | None) -> bool:
    """Whether the verdict on a fault is the last word: the job is called hung, or has ended."""
    return bool(verdict and verdict.get("status") in FINAL and verdict.get("cause"))


def names_cause(verdict: Verdict | None) -> bool:
    """Whether the verdict says what is wrong; `unknown` does not."""
    if not verdict or verdict.get("status") == "healthy":
        return False
    return verdict.get("cause") not in (None, "unknown")


def suspect_ranks(verdict: Verdict | None) -> tuple[int, ...]:
    """The accused ranks, in order."""
    suspects = (verdict or {}).get("suspects")
    if not isinstance(suspects, list):
        return ()
    return tuple(sorted(suspect["rank"] for suspect in suspects))


def _judge_cause(expected: Expected, ranks: tuple[int, ...], answer: Answer) -> Judgement:
    verdict = answer.verdict
    accused, cause = suspect_ranks(verdict), (verdict or {}).get("cause")
    reasons = []
    if accused != ranks:
        reasons.append(f"accused {_listed(accused)}, right is {_listed(ranks)}")
    if cause != expected.cause:
        reasons.append(f"cause {cause}, right is {expected.cause}")
    elif expected.mentions not in json.dumps(verdict):
        reasons.append(f"the verdict does not mention {expected.mentions}")
    elif not is_final(verdict):
        reasons.append(f"the status stayed {(verdict or {}).get('status')}, no incident in time")
    right_rank = accused == ranks
    return Judgement(
        right_rank=right_rank,
        right_cause=len(reasons) == (0 if right_rank else 1),
        reasons=tuple(reasons),
    )


def _judge_status(expected: Expected, answer: Answer) -> Judgement:
    status = (answer.verdict or {}).get("status")
    reasons = [f"incident on a job with nothing wrong: {one}" for one in answer.incidents]
    if status not in expected.statuses:
        reasons.append(f"status {status}, right is {' or '.join(expected.statuses)}")
    if expected.passes and expected.passes not in answer.statuses_seen:
        reasons.append(f"status {expected.passes} was never shown")
    return Judgement(
        right_rank=not answer.incidents, right_cause=not reasons, reasons=tuple(reasons)
    )


def _listed(ranks: tuple[int, ...]) -> str:
    return "rank " + ", ".join(map(str, ranks)) if ranks else "nobody"
