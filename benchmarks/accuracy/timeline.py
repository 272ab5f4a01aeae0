"""How a verdict came about: every change of it, and what was said before it was right. Pure."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import Any

from watchtower.drills.setup import FINAL
from watchtower.drills.watch import Observed

Entry = dict[str, Any]
ACCUSING = ("suspect", "hung", "slow", "ended")
"""Statuses in which a verdict accuses: pages and alerts show its ranks."""


def write_history(observed: Observed) -> list[Entry]:
    """Return every change of the verdict, with seconds from the fault, or from the start.

    What was said before the fault has negative seconds.
    """
    begun = observed.started_at if observed.fault_at is None else observed.fault_at
    return [
        {
            "at_s": round(shown.at - begun, 2),
            "status": shown.status,
            "cause": shown.cause,
            "domain": shown.domain,
            "ranks": list(shown.ranks),
            "confidence": shown.confidence,
        }
        for shown in observed.history
    ]


def measure_watched_s(observed: Observed, ended_at: float) -> float:
    """Return for how long the tower knew the job: the start of both does not count."""
    return round(ended_at - observed.history[0].at, 2) if observed.history else 0.0


def find_suspect_s(history: list[Entry]) -> float | None:
    """Return when the job was first suspected after the fault."""
    suspected = (one["at_s"] for one in history if one["status"] in ACCUSING and one["at_s"] >= 0)
    return next(suspected, None)


def find_incident_s(history: list[Entry]) -> float | None:
    """Return when the job was hung, or had ended, after the fault: the incident is open then."""
    opened = (one["at_s"] for one in history if one["status"] in FINAL and one["at_s"] >= 0)
    return next(opened, None)


def find_right_s(history: list[Entry], ranks: list[int], causes: list[str]) -> float | None:
    """Return since when the verdict is right without a break; None if the last one is wrong."""
    since = None
    for one in history:
        is_right = one["ranks"] == ranks and one["cause"] in causes
        since = (one["at_s"] if since is None else since) if is_right else None
    return since


def find_passing(history: list[Entry], ranks: list[int]) -> list[Entry]:
    """Return the accusations of innocent ranks, each with how long it was shown.

    While the same ranks are accused it is one accusation, as sure as it ever was, although the
    cause or the confidence changes. The last verdict is not among them: it does not pass. `ranks`
    are those to blame; before the fault nobody is.
    """
    groups = groupby(history, lambda one: _accused_wrongly(one, ranks))
    shown = [(wrongly, list(group)) for wrongly, group in groups]
    return [
        {
            **max(group, key=lambda one: one["confidence"] or 0.0),
            "at_s": group[0]["at_s"],
            "for_s": round(following[0]["at_s"] - group[0]["at_s"], 2),
        }
        for (wrongly, group), (_, following) in pairwise(shown)
        if wrongly
    ]


def _accused_wrongly(one: Entry, ranks: list[int]) -> tuple[int, ...]:
    """Return the accused ranks if one of them is innocent, else none."""
    to_blame = set(ranks) if one["at_s"] >= 0 else set()
    is_wrong = one["status"] in ACCUSING and not set(one["ranks"]) <= to_blame
    return tuple(one["ranks"]) if is_wrong else ()
