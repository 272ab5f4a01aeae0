"""The timeline of an incident: last step, verdicts, opening, acknowledgement, aftermath, end."""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.incidents.incident import IncidentKind
from watchtower.tower.incident_overviews import IncidentOverview
from watchtower.ui.words import stamp
from watchtower.wire.verdict import Aftermath, Cause, Status, VerdictEntry
from watchtower.writing.cause_names import format_cause
from watchtower.writing.text import format_percent
from watchtower.writing.times import read_time

_ENDS = {
    Status.RECOVERED: "The job made steps again. The incident was closed.",
    Status.ENDED: "The job ended. The incident was closed.",
    Status.MONITORING_LOST: "No agent reported the job any more. The incident was closed.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of the timeline."""

    at: str
    """RFC 3339."""
    kind: str
    """"step", "verdict", "opened", "ack", "after", "closed": the class of its mark."""
    text: str


def list_events(overview: IncidentOverview) -> list[Event]:
    """Return the events in the order of their times. Those of one time keep their order here."""
    incident, verdict = overview.incident, overview.verdict
    events: list[Event] = []
    if overview.stalled_at is not None:
        step = "" if verdict.step is None else f": all ranks had made step {verdict.step}"
        events.append(Event(at=_at(overview.stalled_at), kind="step", text=f"Last step{step}."))
    events += map(_describe_verdict, incident.verdicts)
    if incident.identity.kind is IncidentKind.ENDED:
        events.append(Event(at=_at(incident.opened_at), kind="opened", text="The job had died."))
    else:
        text = "The job counted as hung. The incident was opened."
        events.append(Event(at=_at(incident.opened_at), kind="opened", text=text))
    if incident.ack is not None:
        who = f" by {incident.ack.by}" if incident.ack.by else ""
        note = f": {incident.ack.note}" if incident.ack.note else ""
        text = f"Acknowledged{who}{note}"
        events.append(Event(at=_at(incident.ack.at), kind="ack", text=text))
    events += map(_describe_aftermath, verdict.aftermath)
    if incident.closed_at is not None and incident.identity.kind is not IncidentKind.ENDED:
        text = _ENDS.get(incident.status, "The incident was closed.")
        events.append(Event(at=_at(incident.closed_at), kind="closed", text=text))
    return sorted(events, key=lambda event: _time_of(event.at))


def _describe_verdict(entry: VerdictEntry) -> Event:
    sure = "" if entry.cause is Cause.UNKNOWN else f" ({format_percent(entry.confidence)})"
    text = f"Verdict: {format_cause(entry.cause)}{sure}. {entry.summary}"
    return Event(at=entry.at, kind="verdict", text=text)


def _describe_aftermath(item: Aftermath) -> Event:
    name = "Rank" if item.ranks.isdigit() else "Ranks"
    ranks = f"{name} {item.ranks} " if item.ranks else ""
    return Event(at=item.at, kind="after", text=f"{ranks}{item.text}")


def _at(wall: float) -> str:
    return stamp(wall) or ""


def _time_of(stamp: str) -> float:
    """Return the UNIX seconds of a time; 0 for text of another release that is not a time."""
    try:
        return read_time(stamp).timestamp()
    except ValueError:
        return 0.0
