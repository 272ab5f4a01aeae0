"""The page of one incident: what it shows, from what the tower knows. Pure.

An incident that is over is described in the past tense: the verdict itself is, and what was seen
while the job hung stands below its own heading with its time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from watchtower.alerts.alert import describe_incident
from watchtower.alerts.labels import AlertLinks
from watchtower.alerts.message import (
    AlertFacts,
    find_loss,
    write_message,
    write_whom_to_call,
    write_whom_to_call_again,
)
from watchtower.incidents.incident import IncidentKind, JobFacts
from watchtower.ui.settings import Link, LinkSubject, fill_links
from watchtower.ui.words import (
    list_evidence,
    list_labels,
    list_suspects,
    stamp,
)
from watchtower.views.headline import write_headline, write_past_headline
from watchtower.views.incident import IncidentOverview
from watchtower.views.people import AckView, SilenceView, view_ack
from watchtower.views.scheduler_commands import Command, write_commands
from watchtower.wire.report import LABELS
from watchtower.wire.verdict import (
    Aftermath,
    Cause,
    Evidence,
    KillLoss,
    Status,
    Suspect,
    Verdict,
    VerdictEntry,
)
from watchtower.writing.cause_names import format_cause, write_candidate
from watchtower.writing.ranksets import name_ranks, name_set, parse_ranks
from watchtower.writing.text import capitalise, format_count, format_percent
from watchtower.writing.times import find_time

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
    incident, verdict = overview.incident, overview.incident.verdict
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
    return sorted(events, key=lambda event: find_time(event.at) or 0.0)


def _describe_verdict(entry: VerdictEntry) -> Event:
    sure = "" if entry.cause is Cause.UNKNOWN else f" ({format_percent(entry.confidence)})"
    text = f"Verdict: {format_cause(entry.cause)}{sure}. {entry.summary}"
    return Event(at=entry.at, kind="verdict", text=text)


def _describe_aftermath(item: Aftermath) -> Event:
    ranks = f"{capitalise(name_set(item.ranks))} " if item.ranks else ""
    return Event(at=item.at, kind="after", text=f"{ranks}{item.text}")


def _at(wall: float) -> str:
    return stamp(wall) or ""


MAX_STEPS = 6
"""Pieces of advice. A person reads the first ones."""


MAX_LINES = 12
"""Doubts, alternatives, and things that are not known, of each kind. A verdict of a job with
thousands of ranks may have a line for each of its nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentShown:
    """The content of the page besides its parts."""

    id: str
    job: str
    attempt: int
    headline: str
    """"Hung", "Recovered"."""
    tone: str
    """The class of the headline: "bad", "warn", "good", "over"."""
    is_over: bool
    is_acked: bool
    about: list[str]
    """"slurm 48213", "alice", "64 nodes", "512 ranks"."""
    stalled_at: str | None
    closed_at: str | None
    stalled_for_s: float
    """Of an incident that is over."""
    diagnosed_at: str | None
    sentence: str
    detail: str
    """The summary of the verdict; empty if it adds nothing to `sentence`."""
    detail_at: str | None
    """The time of `detail`, if it is in the present tense of then."""
    cause: str
    runbook: str
    """Address of the runbook of the cause; empty without the setting."""
    confidence: float | None
    """Null if the cause is not known."""
    doubts: list[str]
    suspects: list[Suspect]
    all_suspects: str
    """"ranks 0-7", if more than one."""
    waiting: int
    waiting_ranks: str
    call: str
    shared: str
    """"12 other jobs hang on the same mount nfs1:/data", or empty."""
    steps: list[str]
    commands: list[Command]
    kill: KillLoss | None
    step: int | None
    evidence: list[Evidence]
    not_known: list[str]
    more_not_known: int
    """Things that are not known and not shown."""
    alternatives: list[str]
    events: list[Event]
    ack: AckView | None
    silence: SilenceView | None
    node: str
    """The one node of all suspects; empty if there is none."""
    channel: list[str]
    """Lines of plain text for a chat."""
    links: list[Link]
    is_shadow: bool


def show_incident(
    overview: IncidentOverview, links: AlertLinks, templates: Mapping[str, str], now: float
) -> IncidentShown:
    """Return what the page shows of an incident. `now`: UNIX seconds."""
    incident = overview.incident
    verdict, facts = incident.verdict, incident.facts
    alert = describe_incident(incident)
    alert = replace(alert, stalled_s=alert.stalled_s if overview.is_over else None)
    node = _find_node(verdict)
    is_recovered = incident.status is Status.RECOVERED
    has_hung = overview.is_over and incident.identity.kind is not IncidentKind.ENDED
    summary = capitalise(verdict.summary)
    sentence = write_past_headline(verdict) if has_hung else write_headline(verdict)
    detail = "" if sentence == summary or (has_hung and is_recovered) else summary
    commands = [] if overview.is_over else write_commands(facts, verdict.domain, node)
    steps = () if is_recovered else verdict.next_steps
    return IncidentShown(
        id=incident.id,
        job=incident.job,
        attempt=incident.generation,
        headline=find_headline(overview),
        tone=find_tone(overview),
        is_over=overview.is_over,
        is_acked=incident.ack is not None,
        about=list_facts(facts),
        stalled_at=stamp(overview.stalled_at),
        closed_at=stamp(incident.closed_at),
        stalled_for_s=verdict.stalled_for_s,
        diagnosed_at=verdict.diagnosed_at,
        sentence=sentence,
        detail=detail,
        detail_at=None if has_hung else verdict.diagnosed_at,
        cause=verdict.cause.value if verdict.cause else "",
        runbook=links.cause(verdict.cause.value) if verdict.cause else "",
        confidence=None if verdict.cause in (None, Cause.UNKNOWN) else verdict.confidence,
        doubts=[doubt.text for doubt in verdict.doubts[:MAX_LINES]],
        suspects=list_suspects(verdict),
        all_suspects=name_ranks(each.rank for each in verdict.suspects)
        if len(verdict.suspects) > 1
        else "",
        waiting=len(parse_ranks(verdict.waiting)),
        waiting_ranks=verdict.waiting,
        call=_write_call(alert, is_over=overview.is_over),
        shared=_write_shared(verdict),
        steps=list(steps[:MAX_STEPS]),
        commands=commands,
        kill=find_loss(alert, now),
        step=verdict.step,
        evidence=list_evidence(verdict),
        not_known=list(verdict.missing_evidence[:MAX_LINES]),
        more_not_known=max(0, len(verdict.missing_evidence) - MAX_LINES),
        alternatives=[
            write_candidate(each, is_awaited=bool(verdict.waiting))
            for each in verdict.alternatives[:MAX_LINES]
        ],
        events=list_events(overview),
        ack=view_ack(incident.ack) if incident.ack else None,
        silence=overview.silence,
        node=incident.only_node,
        channel=write_channel_text(alert, links),
        links=fill_links(templates, _make_subject(overview, node)),
        is_shadow=incident.shadow,
    )


def find_headline(overview: IncidentOverview) -> str:
    """Return the state of the incident in a few words."""
    incident = overview.incident
    if not overview.is_over:
        is_start = incident.identity.kind is IncidentKind.NEVER_STARTED
        return "Never started" if is_start else "Hung"
    if incident.identity.kind is IncidentKind.ENDED:
        return "Job died"
    words = {
        Status.RECOVERED: "Recovered",
        Status.ENDED: "Hung, then ended",
        Status.MONITORING_LOST: "Hung, then not reported",
    }
    return words.get(incident.status, "Over")


def find_tone(overview: IncidentOverview) -> str:
    """Return the class of the headline's colour."""
    if not overview.is_over:
        return "warn" if overview.incident.ack else "bad"
    return "good" if overview.incident.status is Status.RECOVERED else "over"


def list_facts(facts: JobFacts) -> list[str]:
    """Return what is known of a job, in short."""
    about = list_labels({name: getattr(facts, name) for name in LABELS})
    sizes = {"node": facts.nodes, "rank": facts.ranks}
    return [*about, *(format_count(number, word) for word, number in sizes.items() if number)]


def write_channel_text(facts: AlertFacts, links: AlertLinks) -> list[str]:
    """Return the message of an alert for a chat, with the address of this page if it is known."""
    return list(write_message(replace(facts, url=links.details(facts.incident))))


def _write_call(facts: AlertFacts, *, is_over: bool) -> str:
    """Return whom to call, for a place whose heading says so."""
    call = (
        write_whom_to_call_again(facts.domain)
        if is_over
        else write_whom_to_call(facts.domain, facts.user)
    )
    return capitalise(call.removeprefix("Call "))


def _find_node(verdict: Verdict) -> str:
    nodes = {suspect.node for suspect in verdict.suspects}
    return nodes.pop() if len(nodes) == 1 else ""


def _write_shared(verdict: Verdict) -> str:
    cause, number = verdict.shared_cause, verdict.shared_with
    if cause is None or not number:
        return ""
    others = "1 other job hangs" if number == 1 else f"{number} other jobs hang"
    return f"{others} on the same {cause.kind} {cause.name}"


def _make_subject(overview: IncidentOverview, node: str) -> LinkSubject:
    incident = overview.incident
    facts, suspects = incident.facts, incident.verdict.suspects
    began_at = incident.opened_at if overview.stalled_at is None else overview.stalled_at
    return LinkSubject(
        job=incident.job,
        incident=incident.id,
        node=node,
        rank=suspects[0].rank if suspects else None,
        user=facts.user,
        scheduler_id=facts.scheduler_id,
        began_at=began_at,
        ended_at=incident.closed_at,
    )
