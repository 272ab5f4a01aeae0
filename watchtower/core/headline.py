"""The headline of a verdict: which rank and why, in a few plain words. Pure.

The summary of a verdict has the ages of its moment. A page that shows since when a job hangs needs
a sentence that stays true while time passes.
"""

from __future__ import annotations

from collections.abc import Sequence

from watchtower.core.cause_names import format_cause, write_candidate
from watchtower.core.diagnosed import Diagnosis
from watchtower.core.ranksets import measure, name_ranks
from watchtower.core.text import capitalise, count_ranks
from watchtower.wire.verdict import Cause, Suspect, Verdict


def write_headline(found: Diagnosis | Verdict) -> str:
    """Return "Rank 5: waiting for a lock. 7 ranks wait for it."."""
    if found.cause is None or found.cause is Cause.UNKNOWN:
        if not found.alternatives:
            return capitalise(found.summary)
        return f"The cause is not certain. Most likely: {write_candidate(found.alternatives[0])}."
    if not found.suspects:
        return f"{capitalise(format_cause(found.cause))}."
    causes = dict.fromkeys(suspect.cause for suspect in found.suspects)
    return "".join(
        [*(_write_accused(found.suspects, cause) for cause in causes), _write_waiting(found)]
    ).lstrip()


def _write_accused(suspects: Sequence[Suspect], cause: Cause) -> str:
    ranks = name_ranks(suspect.rank for suspect in suspects if suspect.cause is cause)
    return f" {capitalise(ranks)}: {format_cause(cause)}."


def _write_waiting(found: Diagnosis | Verdict) -> str:
    number = measure(found.waiting)
    whom = "it" if len(found.suspects) == 1 else "them"
    verb = "waits" if number == 1 else "wait"
    return f" {count_ranks(number)} {verb} for {whom}." if number else ""
