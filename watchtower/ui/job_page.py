"""The page of one job: what it shows, from what the tower knows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from watchtower.ui.words import (
    format_step_time,
    list_evidence,
    list_suspects,
    stamp,
)
from watchtower.views.fleet import FleetJob
from watchtower.views.incident import IncidentSummary
from watchtower.views.job import JobOverview, NodeOfJob
from watchtower.views.node import UnwatchedList
from watchtower.views.people import SilenceView
from watchtower.wire.verdict import Evidence, Progress, Status, Suspect, Verdict
from watchtower.writing.ranksets import name_ranks
from watchtower.writing.text import count_ranks, format_count

FEW_NODES = 8
"""So many nodes are all listed. Of more, those with trouble are, and the others are summed up."""

MAX_NODES = 64
"""Nodes with trouble on the page."""

MAX_GROUPS = 4
"""Groups of nodes without trouble, by their step."""

MAX_LINES = 12
"""Things that are not known: a verdict may have a line for each node."""

_WITH_VERDICT = (Status.SUSPECT, Status.SLOW)
"""Statuses whose verdict is on this page. That of an incident is on the page of the incident."""

_WITH_SUSPECTS = (*_WITH_VERDICT, Status.HUNG)
"""Statuses with nodes of suspects, which are first in their table."""

_PROGRESS = {
    Progress.STARTING: "The job has not made its first steps yet.",
    Progress.STEPPING: "The job makes steps.",
    Progress.NONE: "The job makes no steps.",
    Progress.IDLE: "No rank is known to wait for another: the job may wait for work.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """The ranks of the job on one node."""

    node: str
    ranks: str
    """"ranks 0-7"; several gaps are not listed."""
    steps: str
    """"12", "11 to 12"."""
    trouble: list[str]
    """The trouble of the node or its ranks."""
    silent_since: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobShown:
    """The content of the page besides its parts."""

    row: FleetJob
    began_at: str | None
    progress: str
    step: int | None
    pace: str
    """"1.2 s a step, 2.1 times as long as usual"."""
    size: list[str]
    """"512 ranks", "64 nodes", "2 ranks have ended"."""
    evidence_health: list[tuple[str, int]]
    """Source, and percent of the ranks that it covers."""
    dumps: str
    """"7 of 8 ranks", while the job stalls."""
    trained: str
    """"97 %"; empty before the job was watched."""
    phases: list[str]
    """"checkpoint: 3 ranks"."""
    hung_at: str | None
    hung_because: str
    silence: SilenceView | None
    suspects: list[Suspect]
    evidence: list[Evidence]
    doubts: list[str]
    not_known: list[str]
    steps: list[str]
    waits: list[tuple[int, int]]
    """Rank, and percent of its samples in which it waited: the ranks that waited least."""
    nodes: list[NodeRow]
    alike: list[str]
    """"511 nodes without trouble, gpu-001 to gpu-512: step 1207"."""
    unwatched: UnwatchedList
    has_trouble: bool
    """Whether anything is wrong with a node."""
    hidden_nodes: int
    incidents: list[IncidentSummary]


def show_job(overview: JobOverview, incidents: Sequence[IncidentSummary]) -> JobShown:
    """Return what the page shows of a live job."""
    summary, verdict, facts = overview.summary, overview.verdict, overview.facts
    has_verdict = summary.status in _WITH_VERDICT and summary.incident is None
    is_stalled = summary.status in (Status.SUSPECT, Status.HUNG) and bool(facts.dumps_wanted)
    accused = _list_accused(verdict) if summary.status in _WITH_SUSPECTS else {}
    rows = [_show_node(node, accused.get(node.node, [])) for node in overview.nodes]
    rows.sort(key=lambda row: (row.node not in accused, -len(row.trouble), row.node))
    listed = rows if len(rows) <= FEW_NODES else [row for row in rows if row.trouble]
    has_ended = summary.status is Status.ENDED
    return JobShown(
        row=summary,
        began_at=stamp(overview.began_at),
        progress="" if has_ended else _write_progress(overview),
        step=overview.step,
        pace=_write_pace(overview),
        size=_list_sizes(overview),
        evidence_health=[] if has_ended else _show_health(overview),
        dumps=f"{facts.dumps_in} of {count_ranks(facts.dumps_wanted or 0)}" if is_stalled else "",
        trained=_write_trained(overview),
        phases=[f"{phase}: {count_ranks(ranks)}" for phase, ranks in _list_phases(overview)],
        hung_at=stamp(overview.hung_at),
        hung_because=overview.hung_because,
        silence=overview.silence,
        suspects=list_suspects(verdict) if has_verdict else [],
        evidence=list_evidence(verdict) if has_verdict else [],
        doubts=[doubt.text for doubt in verdict.doubts] if has_verdict else [],
        not_known=list(verdict.missing_evidence[:MAX_LINES]) if has_verdict else [],
        steps=list(verdict.next_steps) if has_verdict else [],
        waits=[(rank, round(share * 100)) for rank, share in overview.waits.items()],
        nodes=listed[:MAX_NODES],
        alike=[] if listed is rows else _sum_up([row for row in rows if not row.trouble]),
        unwatched=overview.unwatched,
        has_trouble=any(row.trouble for row in rows),
        hidden_nodes=max(0, len(listed) - MAX_NODES),
        incidents=list(incidents),
    )


def _sum_up(rows: Sequence[NodeRow]) -> list[str]:
    """Return nodes without trouble in groups by their step, the largest groups first."""
    groups: dict[str, list[str]] = {}
    for row in rows:
        groups.setdefault(row.steps, []).append(row.node)
    largest = sorted(groups.items(), key=lambda group: -len(group[1]))
    lines = [
        f"{format_count(len(nodes), 'node')} without trouble, {_name_range(nodes)}: "
        f"{f'step {steps}' if steps else 'no step yet'}"
        for steps, nodes in largest[:MAX_GROUPS]
    ]
    rest = sum(len(nodes) for _, nodes in largest[MAX_GROUPS:])
    return [*lines, f"{rest} more without trouble, at other steps"] if rest else lines


def _name_range(nodes: Sequence[str]) -> str:
    return nodes[0] if len(nodes) == 1 else f"{min(nodes)} to {max(nodes)}"


def _write_progress(overview: JobOverview) -> str:
    summary = overview.summary
    if summary.not_judged is not None:
        return "Not known yet."
    if overview.progress is Progress.STEPPING and not summary.has_steps:
        return "No rank reports steps. The stacks of the ranks change."
    return "" if overview.progress is None else _PROGRESS[overview.progress]


def _write_pace(overview: JobOverview) -> str:
    pace = format_step_time(overview.summary.typical_step_s)
    is_slow = overview.summary.status is Status.SLOW and overview.slowdown > 1
    return (
        f"{pace} usually, now {overview.slowdown:.1f} times as long" if pace and is_slow else pace
    )


def _list_sizes(overview: JobOverview) -> list[str]:
    sizes = [
        count_ranks(overview.summary.world_size),
        format_count(overview.facts.nodes or 0, "node"),
    ]
    if overview.ended:
        has = "has" if overview.ended == 1 else "have"
        sizes.append(f"{count_ranks(overview.ended)} {has} ended")
    if overview.missing:
        is_not = "is" if overview.missing == 1 else "are"
        sizes.append(f"{count_ranks(overview.missing)} {is_not} not reported")
    return sizes


def _show_health(overview: JobOverview) -> list[tuple[str, int]]:
    names = {"process": "Reported", "heartbeat": "Heartbeats"}
    covered = overview.evidence.items()
    return [(names[source], int(share * 100)) for source, share in covered if source in names]


def _write_trained(overview: JobOverview) -> str:
    """Return "97 %". During a hang the share falls all the time, so that it is left out. Of a job
    that is not judged yet it is not known."""
    summary = overview.summary
    if overview.trained_share is None or summary.status is Status.HUNG or summary.not_judged:
        return ""
    return f"{int(overview.trained_share * 100)} %"


def _list_phases(overview: JobOverview) -> list[tuple[str, int]]:
    """Return the phases outside plain training, and their ranks."""
    phases = sorted(overview.phases.items(), key=lambda item: (-item[1], item[0]))
    return [(phase, ranks) for phase, ranks in phases if phase][:8]


def _list_accused(verdict: Verdict) -> dict[str, list[int]]:
    """Return the suspects of each node."""
    accused: dict[str, list[int]] = {}
    for suspect in verdict.suspects:
        accused.setdefault(suspect.node, []).append(suspect.rank)
    return accused


def _find_trouble(node: NodeOfJob, accused: Sequence[int]) -> list[str]:
    """Return what is wrong with a node: the worst first. `accused`: its suspects."""
    trouble = ["its agent does not report"] if node.silent_since is not None else []
    if accused:
        trouble.append(f"suspect: {name_ranks(accused)}")
    if node.ended:
        trouble.append(f"{count_ranks(node.ended)} ended")
    return [*trouble, *node.limits]


def _show_node(node: NodeOfJob, accused: Sequence[int]) -> NodeRow:
    low, high = node.lowest_step, node.highest_step
    steps = "" if low is None else str(low) if low == high else f"{low} to {high}"
    is_whole = node.last_rank - node.first_rank + 1 == node.ranks
    ranks = name_ranks(range(node.first_rank, node.last_rank + 1))
    return NodeRow(
        node=node.node,
        ranks=ranks if is_whole else f"{count_ranks(node.ranks)}, first {node.first_rank}",
        steps=steps,
        trouble=_find_trouble(node, accused),
        silent_since=stamp(node.silent_since),
    )
