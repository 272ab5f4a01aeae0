"""The timeline of a post-mortem: every event with its time, earliest first."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import NamedTuple

from watchtower.incidents.postmortem.facts import PostmortemFacts
from watchtower.wire.verdict import Cause, Status, VerdictEntry
from watchtower.writing.cause_names import format_cause
from watchtower.writing.text import clean, format_duration, format_percent
from watchtower.writing.times import read_time

MAX_ALERTS = 8
"""Destinations of alerts in one timeline."""

_OVER = {
    Status.RECOVERED: "the job made steps again",
    Status.ENDED: "the job ended",
    Status.MONITORING_LOST: "no agent reported the job any more",
}


class Event(NamedTuple):
    """One row. Events of the same second stay in the order of their list."""

    at: float
    text: str


def list_events(facts: PostmortemFacts) -> list[Event]:
    """Return what happened, earliest first."""
    events = [*_beginning(facts), *_verdicts(facts), *_opening(facts), *_afterwards(facts)]
    return sorted(events, key=lambda event: event.at)


def format_at(wall: float) -> str:
    """Return "2026-11-22 16:03:12 UTC"."""
    return f"{datetime.fromtimestamp(wall, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def format_clock(wall: float) -> str:
    """Return "16:03:12", for a table of one day."""
    return f"{datetime.fromtimestamp(wall, timezone.utc):%H:%M:%S}"


def _beginning(facts: PostmortemFacts) -> Iterator[Event]:
    step = facts.verdict.step
    if facts.kind == "never_started":
        yield Event(facts.stopped_at, "the first ranks of the job were seen")
    elif step is not None:
        yield Event(facts.stopped_at, f"the last step of all ranks: step {step}")
    elif facts.kind == "hung":
        yield Event(facts.stopped_at, "the last sign of progress")
    if facts.suspect_at is not None:
        text = "the job was suspect, and dumps of its ranks were due"
        yield Event(facts.suspect_at, text)


def _verdicts(facts: PostmortemFacts) -> Iterator[Event]:
    for number, entry in enumerate(facts.verdicts):
        at = _parse(entry.at)
        if at is not None:
            yield Event(at, f"{'verdict' if number == 0 else 'new verdict'}: {_describe(entry)}")


def _describe(entry: VerdictEntry) -> str:
    if entry.cause is Cause.UNKNOWN:
        return "the cause was unknown"
    name = "rank" if entry.suspects.isdigit() else "ranks"
    ranks = f"{name} {clean(entry.suspects, 120)}, " if entry.suspects else ""
    return f"{format_cause(entry.cause)} ({ranks}{format_percent(entry.confidence)})"


def _opening(facts: PostmortemFacts) -> Iterator[Event]:
    wanted, arrived = facts.kill.dumps_wanted, facts.kill.dumps_in
    dumps = ""
    if wanted and arrived is not None:
        dumps = f"; dumps of {min(arrived, wanted)} of {wanted} ranks were there"
    if facts.kind == "ended":
        yield Event(facts.opened_at, f"the end of the job was recorded{dumps}")
    elif facts.kind == "never_started":
        yield Event(facts.opened_at, f"the job had not started: the incident opened{dumps}")
    else:
        yield Event(facts.opened_at, f"the job was hung: the incident opened{dumps}")


def _afterwards(facts: PostmortemFacts) -> Iterator[Event]:
    for sent in facts.alerts[:MAX_ALERTS]:
        yield Event(sent.at, f"alert sent to {clean(sent.destination, 64)}")
    if facts.ack is not None:
        by = f" by {clean(facts.ack.by, 64)}" if facts.ack.by else ""
        note = f": {clean(facts.ack.note)}" if facts.ack.note else ""
        yield Event(facts.ack.at, f"acknowledged{by}{note}")
    for item in facts.verdict.aftermath:
        at = _parse(item.at)
        if at is not None:
            name = "rank" if item.ranks.isdigit() else "ranks"
            ranks = f"{name} {clean(item.ranks, 120)}: " if item.ranks else ""
            yield Event(at, f"{ranks}{clean(item.text)}")
    if facts.closed_at is not None and facts.kind != "ended":
        how = _OVER.get(facts.verdict.status, "the incident ended")
        yield Event(facts.closed_at, f"{how}; {format_duration(facts.lost_s)} without a step")


def _parse(stamp: str) -> float | None:
    with contextlib.suppress(ValueError, OverflowError):
        return read_time(stamp).timestamp()
    return None
