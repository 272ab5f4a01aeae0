"""Reports whether this tower can detect hangs, and the limitations of its agents."""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.tower.diagnosis_runner import BEHIND_S
from watchtower.tower.ownership import Role
from watchtower.tower.tower import Tower
from watchtower.views.node import ALL_WATCHED, UnwatchedList, list_unwatched
from watchtower.wire.drills import is_drill
from watchtower.wire.verdict import Status
from watchtower.writing.text import format_count
from watchtower.writing.times import rfc3339

TICK_IS_LATE_S = 10.0
"""After this many seconds without a check of the jobs, the tower is not ready."""

SHARED_S = 60.0
"""Two agents with one node name are detected within two reports. After this many seconds without
a new detection, the tower no longer reports them."""

MAX_LIMITS_SHOWN = 50
"""Limits that are listed. The rest is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Whether the tower can decide, and what agents cannot do."""

    ready: bool
    detail: str
    store: str
    """"works", or why and since when it fails. Detection continues without the store."""
    agents: int
    agents_silent: int
    limits: list[str]
    """Limitations that agents report, with the names of their nodes."""
    unwatched: UnwatchedList = ALL_WATCHED
    """Processes that seem to be ranks and are not watched."""
    notes: list[str]
    """Sentences for operators about alerts: shadow mode, two routes."""
    role: str = Role.SINGLE.value
    """`owner` of the jobs of a database that several towers use; else `single`. A tower on
    `standby` answers 503 with this field and `detail`."""
    lease: str = ""
    """What the owner knows of its lease and of the other towers."""


def check_health(tower: Tower) -> Health:
    """Check the ticks, the diagnoses, and the gaps that agents report."""
    now = tower.clock.now()
    trouble = _find_trouble(tower, now)
    nodes = tower.fleet.nodes
    nodes_of: dict[str, list[str]] = {}
    for name, node in sorted(nodes.items()):
        for text in node.gaps.sentences():
            nodes_of.setdefault(text, []).append(name)
    limits = [_with_nodes(text, names) for text, names in nodes_of.items()]
    shared = [name for name, node in sorted(nodes.items()) if now - node.shared_at < SHARED_S]
    if shared:
        limits.append(
            _with_nodes("two agents report with this name: use one name per node", shared)
        )
    limits += [
        f"job {job} is not diagnosed for now: its diagnosis exceeded its limits several times"
        for job in sorted(k.name for k in tower.fleet.jobs.values() if now < k.tries.again_at)
    ]
    hidden = len(limits) - MAX_LIMITS_SHOWN
    if hidden > 0:
        limits = [*limits[:MAX_LIMITS_SHOWN], f"and {hidden} more"]
    return Health(
        ready=not trouble,
        detail=trouble or "able to decide",
        store=_describe_store(tower),
        agents=len(nodes),
        agents_silent=sum(
            1 for node in nodes.values() if tower.detector.is_silent(node.reporter, now)
        ),
        limits=limits,
        unwatched=list_unwatched(tower.moment()),
        notes=list(tower.notes),
        role=tower.ownership.role.value,
        lease=tower.ownership.describe() if tower.ownership.lease is not None else "",
    )


def _find_trouble(tower: Tower, now: float) -> str:
    """Return why the tower cannot detect hangs now; "" if it can."""
    late_s, behind_s = now - tower.counters.last_tick_at, tower.runner.behind_s()
    if late_s >= TICK_IS_LATE_S:
        return f"the last check of the jobs was {late_s:.0f} s ago"
    return f"diagnoses are {behind_s:.0f} s behind" if behind_s >= BEHIND_S else ""


def describe_state(tower: Tower) -> str:
    """Return one line for `systemctl status`."""
    jobs = [job for job in tower.moment().live() if not is_drill(job.name)]
    hung = [job.name for job in jobs if job.judged.watch.status is Status.HUNG]
    counts = f"{format_count(len(jobs), 'job')} on {format_count(len(tower.fleet.nodes), 'node')}"
    return f"{counts}; hung: {', '.join(hung)}" if hung else counts


def _describe_store(tower: Tower) -> str:
    store_writer = tower.store_writer
    if store_writer.failing_since is None:
        aside = store_writer.store.set_aside
        return (
            f"works; the file of the last run was damaged and is now {aside}" if aside else "works"
        )
    loss = tower.ownership.describe_loss(tower.clock.wall())
    return (
        f"fails since {rfc3339(store_writer.failing_since)}: {store_writer.failure}; incidents "
        f"stay in memory, dumps are refused; {f'{loss}; ' if loss else ''}"
        f"{store_writer.store.advice}"
    )


def _with_nodes(text: str, names: list[str]) -> str:
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"{shown}: {text}"
