"""Advisories as they are shown: by the API, the command, the pages and a metric."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain

from watchtower.fleet.advisories import (
    ROWS,
    Advisory,
    Level,
    advise_job,
    advise_node,
    advise_only_job,
)
from watchtower.fleet.half_started import list_deadlocks
from watchtower.fleet.job_findings import Scene, find_writers
from watchtower.views.moment import Moment
from watchtower.views.people import Subject
from watchtower.wire.drills import is_drill
from watchtower.writing.times import rfc3339

LEVELS = tuple(Level)

SINCE_S = 60.0
"""Times are whole minutes: what is measured again and again would change every second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvisoryView:
    """One thing that is wrong although no job hangs because of it."""

    advisory: str
    """Its name, such as "nan_loss": docs/advisories.md describes all."""
    level: Level
    """"fatal": the job cannot work, or its results are wrong or lost. "suspicious": it works, and
    is likely to fail or to waste time."""
    job: str
    """The job that it is about; empty if it is about a node."""
    node: str
    """The node that it is about; empty if it is about a job."""
    subject: str
    """What of the job or node it is about: "ranks 3-4", "nic:mlx5_0"; empty for all of it."""
    since: str
    """When it began, or was last seen to happen, RFC 3339 in UTC."""
    text: str
    why: str
    """Why it matters."""
    advice: str
    """What to do."""
    how_to_silence: str
    """How to silence it."""
    silenced_until: str | None
    """End of the silence of the job or node; null if it is not silenced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvisoryList:
    """Advisories, the worst first. They open no incident."""

    items: list[AdvisoryView]
    left_out: int
    """Number of advisories beyond `limit`."""


NO_ADVISORIES = AdvisoryList(items=[], left_out=0)


def list_advisories(
    moment: Moment,
    job: str = "",
    node: str = "",
    *,
    limit: int = 100,
    jobs: bool = True,
    drills: bool = False,
) -> AdvisoryList:
    """Return the advisories of one job and its nodes, of one node, or of all.

    Without `jobs`, only of nodes.
    """
    found = sorted(_find(moment, job, node, jobs=jobs, drills=drills), key=_rank)
    shown = [_view(moment, each) for each in found[:limit]]
    return AdvisoryList(items=shown, left_out=len(found) - len(shown))


def count_advisories(moment: Moment) -> dict[str, int]:
    """Return the number of jobs and nodes by advisory, without those that are silenced."""
    named = {
        (each.row.name, each.job, each.node)
        for each in _find(moment)
        if _silence_of(moment, each) is None
    }
    counts = Counter(name for name, _, _ in named)
    return {row.name: counts[row.name] for row in ROWS}


def _find(
    moment: Moment, job: str = "", node: str = "", *, jobs: bool = True, drills: bool = False
) -> Iterator[Advisory]:
    scene, off = make_scene(moment), moment.advisories_off
    if job:
        keeper = moment.find(job)
        found = [advise_job(scene, keeper)] if keeper is not None else []
    elif node:
        found = [advise_node(scene, node)]
    else:
        of_jobs = (each for each in moment.live() if drills or not is_drill(each.name))
        found = [advise_only_job(scene, each) for each in of_jobs] if jobs else []
        found += [advise_node(scene, name) for name in moment.nodes]
    return (each for each in chain(*found) if each.row.name not in off)


def make_scene(moment: Moment) -> Scene:
    """Return what the rows of advisories may ask for."""
    observations = cache(
        lambda name: (
            moment.nodes[name].observations.aged(moment.now) if name in moment.nodes else ()
        )
    )
    return Scene(
        now=moment.now,
        nodes=moment.nodes,
        configurations=moment.configurations,
        deadlocks=cache(
            lambda: list_deadlocks(moment.keepers, moment.nodes, moment.detector, moment.now)
        ),
        silent=lambda node: moment.detector.is_silent(node.reporter, moment.now),
        observations=observations,
        writers=cache(
            lambda: find_writers(
                ((name, each) for name in moment.nodes for each in observations(name)), moment.now
            )
        ),
    )


_ORDER = {row.name: (LEVELS.index(row.level), number) for number, row in enumerate(ROWS)}


def _rank(each: Advisory) -> tuple[tuple[int, int], str, str, str]:
    return _ORDER[each.row.name], each.job, each.node, each.found.subject


def _silence_of(moment: Moment, each: Advisory) -> float | None:
    silence = moment.silence_of(Subject(job=each.job, node=each.node))
    return silence.until if silence is not None else None


def _view(moment: Moment, each: Advisory) -> AdvisoryView:
    until = _silence_of(moment, each)
    return AdvisoryView(
        advisory=each.row.name,
        level=each.row.level,
        job=each.job,
        node=each.node,
        subject=each.found.subject,
        since=rfc3339(moment.wall_of(each.found.since) // SINCE_S * SINCE_S),
        text=each.found.text,
        why=each.row.why,
        advice=each.advice,
        how_to_silence=each.how_to_silence,
        silenced_until=rfc3339(until) if until is not None else None,
    )
