"""Scores of runs, from the rows of the results file. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The scores of watchtower on the runs of one fault and backend."""

    runs: int
    rank_right: int
    cause_right: int
    accused: float
    """Mean number of accused ranks over the runs with an accused rank; 0.0 without such runs."""
    abstained: int
    """Runs without an accused rank although a rank was injected."""
    p50_s: float | None
    p95_s: float | None


def score(rows: list[dict[str, Any]]) -> Score:
    """Return the scores of the runs of one fault."""
    sizes = [len(accused(row)) for row in rows]
    times = [row["fault_to_verdict_s"] for row in rows if row["fault_to_verdict_s"] is not None]
    accusing = [size for size in sizes if size]
    return Score(
        runs=len(rows),
        rank_right=sum(row["right_rank"] for row in rows),
        cause_right=sum(row["right_cause"] for row in rows),
        accused=sum(accusing) / len(accusing) if accusing else 0.0,
        abstained=sum(not accused(row) and bool(row["injected"]["ranks"]) for row in rows),
        p50_s=quantile(times, 0.50),
        p95_s=quantile(times, 0.95),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolScore:
    """The scores of a tool on the runs of one fault that it could judge."""

    runs: int
    rank_right: int
    accused: float
    """Mean number of accused ranks over the runs with an accused rank; 0.0 without such runs."""
    abstained: int
    """Runs without an accused rank although a rank was injected, and runs in which the tool
    failed.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The ranks that one tool accused in one run."""

    accused: frozenset[int]
    injected: frozenset[int]
    failed: bool = False

    @property
    def is_right(self) -> bool:
        """Return whether exactly the injected ranks are accused. A tool that failed is never
        right.
        """
        return not self.failed and self.accused == self.injected


WATCHTOWER = "watchtower"


def answers_of(row: dict[str, Any]) -> dict[str, Answer]:
    """Return the answer of each tool that could judge this run, by its name."""
    injected = frozenset(row["injected"]["ranks"])
    if "tool" in row:
        return {} if row.get("why_not") else {row["tool"]: _as_answer(row, injected)}
    own = Answer(accused=frozenset(accused(row)), injected=injected)
    peers = row.get("peers", {}).items()
    asked = {name: _as_answer(told, injected) for name, told in peers if not told["why_not"]}
    return {WATCHTOWER: own, **asked}


def _as_answer(told: dict[str, Any], injected: frozenset[int]) -> Answer:
    failed = bool(told.get("failed"))
    return Answer(accused=frozenset(told["accused"]), injected=injected, failed=failed)


def score_answers(answers: list[Answer]) -> ToolScore:
    """Return the scores of one tool's answers."""
    sizes = [len(answer.accused) for answer in answers if answer.accused]
    return ToolScore(
        runs=len(answers),
        rank_right=sum(answer.is_right for answer in answers),
        accused=sum(sizes) / len(sizes) if sizes else 0.0,
        abstained=sum(
            not answer.accused and bool(answer.injected or answer.failed) for answer in answers
        ),
    )


def accused(row: dict[str, Any]) -> set[int]:
    """Return the ranks in the final verdict."""
    return {suspect["rank"] for suspect in (row["verdict"] or {}).get("suspects", ())}


def quantile(values: list[float], share: float) -> float | None:
    """Return the smallest value that `share` of the values do not exceed; None without values."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
