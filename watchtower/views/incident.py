"""One incident: in a list, with its verdict and stacks, with its series, and for its page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from watchtower.incidents.incident import Incident, IncidentKind, StackGroup
from watchtower.incidents.similar import Likeness
from watchtower.jobs.keeper import Keeper
from watchtower.views import copy_fields
from watchtower.views.moment import Moment
from watchtower.views.people import (
    AckView,
    FeedbackView,
    SilenceView,
    subject_of,
    view_ack,
    view_silence,
)
from watchtower.views.verdict import (
    VerdictView,
    verdict_now,
    verdict_of,
    view_verdict,
)
from watchtower.wire.series import POINT_S, Lane, SeriesBatch
from watchtower.wire.verdict import Cause, SharedCause, Status, VerdictEntry
from watchtower.writing.ranksets import format_ranks
from watchtower.writing.times import rfc3339


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentHead:
    """What every answer about an incident has."""

    id: str
    job: str
    generation: int
    status: Status
    opened_at: str
    closed_at: str | None
    ack: AckView | None
    shadow: bool
    """Whether no alert is sent, because the tower or the cause is in shadow mode."""
    silence: SilenceView | None
    """The silence of its job, user or node; null if it is closed or not silenced."""
    outage: str | None
    """Id of the first incident of its outage; null without a shared cause. Incidents with the same
    one belong together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentSummary(IncidentHead):
    """An incident in a list."""

    cause: Cause | None
    suspect_ranks: str
    """Rank set, such as "0-6,8"."""
    summary: str
    shared_cause: SharedCause | None
    """Cause that other incidents may share; null if none is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentList:
    """Incidents, newest first."""

    items: list[IncidentSummary]
    next_cursor: str | None
    """For the next page: the parameter `cursor` of the same list. Null on the last page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictEntryView:
    """One verdict in the history of an incident."""

    at: str
    cause: Cause
    confidence: float
    suspect_ranks: str
    """Rank set, such as "0-6,8"."""
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentDetail(IncidentHead):
    """An incident with its verdict and its stacks."""

    verdict: VerdictView
    verdicts: list[VerdictEntryView]
    """All verdicts with their times, oldest first."""
    stacks: list[StackGroup]
    feedback: FeedbackView | None
    """The answer of a person about the verdict; null without one."""
    outputs: list[OutputView]
    """The last lines of the suspects. Empty unless their agents may send them."""


def _view_silence(moment: Moment, incident: Incident) -> SilenceView | None:
    is_open = incident.closed_at is None
    silence = moment.silence_of(subject_of(incident)) if is_open else None
    return view_silence(silence) if silence else None


def _view_head(moment: Moment, incident: Incident) -> dict[str, Any]:
    """Return the fields of `IncidentHead`."""
    head = IncidentHead(
        id=incident.id,
        job=incident.job,
        generation=incident.generation,
        status=incident.status,
        opened_at=rfc3339(incident.opened_at),
        closed_at=_when(incident.closed_at),
        ack=view_ack(incident.ack) if incident.ack else None,
        shadow=incident.shadow,
        silence=_view_silence(moment, incident),
        outage=incident.identity.outage or None,
    )
    return copy_fields(head, IncidentHead)


def summarize_incident(moment: Moment, incident: Incident) -> IncidentSummary:
    """Return an incident in a list."""
    verdict = incident.verdict
    return IncidentSummary(
        **_view_head(moment, incident),
        cause=verdict.cause,
        suspect_ranks=format_ranks(suspect.rank for suspect in verdict.suspects),
        summary=verdict.summary,
        shared_cause=verdict.shared_cause,
    )


def view_incident(
    moment: Moment,
    incident: Incident,
    *,
    stacks: list[StackGroup],
    feedback: FeedbackView | None,
    outputs: list[OutputView],
) -> IncidentDetail:
    """Return an incident with its verdict and what was read of it."""
    return IncidentDetail(
        **_view_head(moment, incident),
        verdict=view_verdict(verdict_of(moment, incident)),
        verdicts=[_view_entry(entry) for entry in incident.verdicts],
        stacks=stacks,
        feedback=feedback,
        outputs=outputs,
    )


def _view_entry(entry: VerdictEntry) -> VerdictEntryView:
    return VerdictEntryView(
        at=entry.at,
        cause=entry.cause,
        confidence=entry.confidence,
        suspect_ranks=entry.suspects,
        summary=entry.summary,
    )


def _when(wall: float | None) -> str | None:
    return None if wall is None else rfc3339(wall)


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentOverview:
    """One incident and its job. Times are UNIX seconds."""

    incident: Incident
    """Without its case. Its verdict and the facts about its job are those of now, or of its end.
    `verdict.stalled_for_s` is the length of the stall at its end, 0 before."""
    stalled_at: float | None
    """When the stall began; None for the end of a job."""
    silence: SilenceView | None

    @property
    def is_over(self) -> bool:
        """Whether the incident is closed."""
        return self.incident.closed_at is not None


def survey_incident(moment: Moment, incident: Incident) -> IncidentOverview:
    """Return what is known of one incident. Nothing in it changes with time alone."""
    job = _find_live(moment, incident)
    verdict, facts, since = incident.verdict, incident.facts, None
    if job is not None:
        verdict, facts = verdict_now(moment, job), job.facts().or_before(facts)
        stall = job.judged.watch.stall
        since = moment.wall_of(stall.since) if stall else None
    current = replace(
        verdict,
        stalled_for_s=verdict.stalled_for_s if incident.closed_at is not None else 0.0,
        progress_text="",
        hung_in_s=None,
    )
    return IncidentOverview(
        incident=replace(incident, verdict=current, facts=facts, evidence=None),
        stalled_at=_find_start(incident) if since is None else since,
        silence=_view_silence(moment, incident),
    )


def _find_live(moment: Moment, incident: Incident) -> Keeper | None:
    """Return the live job of an open incident; None if it is closed or its job is not reported."""
    job = moment.find(incident.job)
    own = job.judged.incident if job is not None else None
    return job if own is not None and own.id == incident.id and incident.closed_at is None else None


def _find_start(incident: Incident) -> float | None:
    """Return when the stall of a stored incident began."""
    if incident.identity.kind is IncidentKind.ENDED:
        return None
    return incident.updated_at - incident.verdict.stalled_for_s


DECIMALS = 3


class Received(NamedTuple):
    """A stored message of a node with series, and when it was taken (UNIX seconds)."""

    node: str
    taken_at: float
    batch: SeriesBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneView:
    """One measured quantity."""

    name: str
    """"step", "cpu", "moved", "state", and of a GPU "utilization", "power", "tensor", ..."""
    unit: str
    """"cores", "B/s", "W", "MHz", "%"; empty for a count. "state": the code of the letter of a
    process state."""
    values: list[float | None]
    """Oldest first; null where nothing was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesView:
    """The lanes of one rank's process, or of a GPU that the rank uses."""

    rank: int
    node: str
    is_suspect: bool
    """False for a healthy peer."""
    gpu: int | None
    """Number of the GPU in NVML; null for the process itself."""
    gpu_address: str
    """PCI address of the GPU; empty for the process itself."""
    ends_at: str
    """RFC 3339: time of the last value of each lane."""
    interval_s: float
    """Seconds between two values."""
    lanes: list[LaneView]
    """The measured quantities, each with its values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentSeries:
    """Values of the suspects of an incident and of a few healthy ranks in the 15 minutes before."""

    incident: str
    items: list[SeriesView]
    """Suspects first."""
    outputs: list[OutputView]
    """Empty unless the agents may send lines of the output."""


def view_series(
    incident: str, received: Sequence[Received], suspects: tuple[int, ...]
) -> IncidentSeries:
    """Return the series of an incident from the stored messages of its nodes."""
    items = [view for each in received for view in _view_series(each, suspects)]
    return IncidentSeries(
        incident=incident,
        items=sorted(items, key=lambda each: (not each.is_suspect, each.rank, each.gpu_address)),
        outputs=list(view_outputs(received)),
    )


def _view_series(received: Received, suspects: tuple[int, ...]) -> list[SeriesView]:
    return [
        SeriesView(
            rank=one.rank,
            node=received.node,
            is_suspect=one.rank in suspects,
            gpu=one.gpu_index,
            gpu_address=one.gpu.removeprefix("pci:"),
            ends_at=rfc3339(received.taken_at),
            interval_s=POINT_S,
            lanes=[_view_lane(lane) for lane in one.lanes],
        )
        for one in received.batch.series
    ]


def _view_lane(lane: Lane) -> LaneView:
    values = [None if each is None else round(each, DECIMALS) for each in lane.points()]
    return LaneView(name=lane.name, unit=lane.unit, values=values)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputView:
    """The last lines that a suspect wrote before its series were sent."""

    rank: int
    node: str
    stream: str
    """"stdout", "stderr", or "output" if both go to one file."""
    lines: list[str]
    """The last lines, oldest first, cleaned and cut."""
    written_at: str
    """RFC 3339: time of the last write."""


def view_outputs(received: Iterable[Received]) -> Iterator[OutputView]:
    """Return the lines in these messages."""
    for row in received:
        for output in row.batch.outputs:
            yield OutputView(
                rank=output.rank,
                node=row.node,
                stream=output.stream,
                lines=list(output.lines),
                written_at=rfc3339(row.taken_at - output.age_s),
            )


WINDOW_DAYS = 30
"""Days before the incident in which the incidents of its nodes are counted."""


MAX_COUNTED = 100
"""Incidents of one node that are counted. A node with more needs no exact number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarIncident:
    """An earlier incident, and what is the same in it."""

    id: str
    job: str
    status: Status
    cause: Cause | None
    suspect_ranks: str
    """Rank set, such as "0-6,8"."""
    summary: str
    opened_at: str
    closed_at: str | None
    same_nodes: list[str]
    """Nodes of ranks that both verdicts name."""
    same_lines: list[str]
    """Lines of code of ranks that both verdicts name."""
    same_cause: bool
    """Whether both verdicts name the same cause."""
    why: str
    """The shared properties, as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHistory:
    """How often verdicts named ranks on a node in the 30 days before an incident."""

    node: str
    incident_count: int
    """At most 100 are counted."""
    same_line_count: int
    """Those of them with a line of this incident."""
    same_cause_count: int
    """Those of them with the cause of this incident."""
    text: str
    """The same as a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarList:
    """Earlier incidents with the same node, line or cause, newest first."""

    items: list[SimilarIncident]
    node_counts: list[NodeHistory]
    """For the first nodes that the verdict names, if they had earlier incidents."""


def count_history(node: str, recent: Sequence[Likeness]) -> NodeHistory:
    """Return how often earlier incidents named a node. `recent`: what is the same in each."""
    count, lines = len(recent), sum(bool(each.lines) for each in recent)
    causes = sum(each.cause for each in recent)
    text = "1 earlier incident" if count == 1 else f"{count} earlier incidents"
    text = f"at least {text}" if count == MAX_COUNTED else text
    at_line = f", {lines} at the same line" if lines else ""
    with_cause = f", {causes} with the same cause" if causes else ""
    return NodeHistory(
        node=node,
        incident_count=count,
        same_line_count=lines,
        same_cause_count=causes,
        text=f"{node}: {text} in {WINDOW_DAYS} days{at_line}{with_cause}",
    )


def view_similar(incident: Incident, likeness: Likeness) -> SimilarIncident:
    """Return an earlier incident, and what is the same in it."""
    verdict = incident.verdict
    return SimilarIncident(
        id=incident.id,
        job=incident.job,
        status=incident.status,
        cause=verdict.cause,
        suspect_ranks=format_ranks(suspect.rank for suspect in verdict.suspects),
        summary=verdict.summary,
        opened_at=rfc3339(incident.opened_at),
        closed_at=_when(incident.closed_at),
        same_nodes=list(likeness.nodes),
        same_lines=list(likeness.lines),
        same_cause=likeness.cause,
        why=_write_why(likeness),
    )


def _write_why(likeness: Likeness) -> str:
    """Return "same node gpu-042, same line data.py:88 in __next__, same cause"."""
    parts = [
        *(f"same node {node}" for node in likeness.nodes),
        *(f"same line {line}" for line in likeness.lines),
        *(("same cause",) if likeness.cause else ()),
    ]
    return ", ".join(parts)
