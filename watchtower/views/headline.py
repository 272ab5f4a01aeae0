"""The headline of a verdict: which rank and why, in a few plain words. Pure.

The summary of a verdict has the ages of its moment. A page that shows since when a job hangs needs
a sentence that stays true while time passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from watchtower.diagnosis.diagnosed import Diagnosis
from watchtower.wire.verdict import Cause, NotJudged, Suspect, Verdict
from watchtower.writing.cause_names import format_cause, write_candidate
from watchtower.writing.ranksets import measure, name_ranks
from watchtower.writing.text import capitalise, count_ranks
from watchtower.writing.times import format_moment


def write_headline(found: Diagnosis | Verdict) -> str:
    """Return "Rank 5: waiting for a lock. 7 ranks wait for it."."""
    if found.cause is None or found.cause is Cause.UNKNOWN:
        if not found.alternatives:
            return capitalise(found.summary)
        likely = write_candidate(found.alternatives[0], is_awaited=bool(found.waiting))
        return f"The cause is not certain. Most likely: {likely}."
    if not found.suspects:
        return f"{capitalise(format_cause(found.cause))}."
    accused = (
        f"{capitalise(ranks)}: {format_cause(cause)}."
        for cause, ranks in _name_accused(found.suspects)
    )
    return " ".join(filter(None, [*accused, _write_waiting(found)]))


def write_past_headline(verdict: Verdict) -> str:
    """Return "Rank 5 held up the job: waiting for a lock.", for an incident that is over."""
    if verdict.cause is None or verdict.cause is Cause.UNKNOWN:
        return write_headline(verdict)
    if not verdict.suspects:
        return f"No rank was named: {format_cause(verdict.cause)}."
    return " ".join(
        f"{capitalise(ranks)} held up the job: {format_cause(cause)}."
        for cause, ranks in _name_accused(verdict.suspects)
    )


def write_not_judged(not_judged: NotJudged) -> str:
    """Return "No rank has heartbeats. If nothing changes, it is suspect at TIME at the latest."."""
    missing = f"{capitalise('; '.join(not_judged.missing))}."
    if not_judged.until is None:
        return missing
    until = format_moment(not_judged.until)
    return f"{missing} If nothing changes, it is suspect at {until} at the latest."


def _name_accused(suspects: Sequence[Suspect]) -> Iterator[tuple[Cause, str]]:
    """Yield the causes, each with its ranks."""
    for cause in dict.fromkeys(suspect.cause for suspect in suspects):
        yield cause, name_ranks(each.rank for each in suspects if each.cause is cause)


def _write_waiting(found: Diagnosis | Verdict) -> str:
    number = measure(found.waiting)
    whom = "it" if len(found.suspects) == 1 else "them"
    verb = "waits" if number == 1 else "wait"
    return f"{count_ranks(number)} {verb} for {whom}." if number else ""
