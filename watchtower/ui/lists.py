"""The pages with lists: the jobs of the fleet, the nodes, the incidents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf
from urllib.parse import urlencode

from pydantic import ValidationError
from starlette.exceptions import HTTPException

from watchtower.api.incidents import IncidentQuery
from watchtower.api.problems import describe_mistake
from watchtower.incidents.incident_filter import IncidentFilter
from watchtower.service.sharing import by_turns
from watchtower.tower.acts import RequestRefusedError
from watchtower.tower.health import Health
from watchtower.ui.words import NO_TONE, find_tone
from watchtower.views.advisories import NO_ADVISORIES, AdvisoryList
from watchtower.views.fleet import FleetJob
from watchtower.views.incident import IncidentList, IncidentSummary
from watchtower.views.node import NodeOverview, sort_nodes
from watchtower.views.outage import OutageView
from watchtower.wire.verdict import Cause, Domain, Status, rank_severity

MAX_JOBS = 200
"""Jobs on the page: about 100 kB. If there are more, owners take turns, so that nobody can push
the hung job of another owner off the page. The others are counted."""

NOTHING_CHOSEN: Mapping[str, str] = {}

MAX_OUTAGES = 10
"""Outages on the page. A person works on the newest ones."""


NOT_JUDGED = "not judged yet"

JOB_FIELDS = ("state", "user", "partition", "job", "sort")
"""Parameters of the address of the page of the fleet."""

SORTS: dict[str, Callable[[FleetJob], tuple[float, str]]] = {
    "name": lambda job: (0.0, job.job),
    "ranks": lambda job: (-job.world_size, job.job),
    "since": lambda job: (inf if job.since is None else job.since, job.job),
}
"""Orders of the jobs besides the worst first. `since`: what has lasted longest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetShown:
    """The content of the page."""

    hung: int
    """Hung jobs."""
    hung_ranks: int
    """Ranks of hung jobs."""
    counts: list[tuple[str, int, str]]
    """State, number of jobs and tone, the worst state first."""
    chosen: dict[str, str]
    """The parameters that were given."""
    jobs: list[FleetJob]
    """Those that `chosen` chooses."""
    drills: list[FleetJob]
    hidden: int
    """Chosen jobs that are not shown."""
    outages: list[OutageView]
    health: Health
    advised: AdvisoryList
    agents: str
    """"2 agents report, and they have found no rank.": what a page without jobs shows."""


def show_fleet(
    jobs: Sequence[FleetJob],
    outages: Sequence[OutageView],
    health: Health,
    advised: AdvisoryList = NO_ADVISORIES,
    chosen: Mapping[str, str] = NOTHING_CHOSEN,
) -> FleetShown:
    """Return what the page shows. `chosen`: the parameters of its address."""
    real = [each for each in jobs if not each.is_drill]
    found = [each for each in real if _is_chosen(each, chosen)]
    statuses = Counter(each.status for each in real if each.not_judged is None)
    worst = sorted(statuses, key=lambda each: rank_severity(each.value))
    counts = [(each.value, statuses[each], find_tone(each)) for each in worst]
    if not_judged := sum(each.not_judged is not None for each in real):
        unjudged = rank_severity("", is_judged=False)
        place = sum(rank_severity(each.value) < unjudged for each in worst)
        counts.insert(place, (NOT_JUDGED, not_judged, NO_TONE))
    return FleetShown(
        hung=statuses[Status.HUNG],
        hung_ranks=sum(each.world_size for each in real if each.status is Status.HUNG),
        counts=counts,
        chosen=dict(chosen),
        jobs=_sort(choose_jobs(found), chosen.get("sort", "")),
        drills=choose_jobs(each for each in jobs if each.is_drill),
        hidden=max(0, len(found) - MAX_JOBS),
        outages=list(outages[:MAX_OUTAGES]),
        health=health,
        advised=advised,
        agents=_describe_agents(health),
    )


def _is_chosen(job: FleetJob, chosen: Mapping[str, str]) -> bool:
    """Return whether a job is like the parameters; the text is in its name or its number."""
    state = job.status.value if job.not_judged is None else NOT_JUDGED
    names = f"{job.job}\n{job.labels.get('scheduler_id', '')}".casefold()
    return (
        chosen.get("state") in (None, state)
        and chosen.get("user") in (None, job.labels.get("user"))
        and chosen.get("partition") in (None, job.labels.get("partition"))
        and chosen.get("job", "").casefold() in names
    )


def _sort(jobs: list[FleetJob], name: str) -> list[FleetJob]:
    """Return the jobs, which are sorted by the worst, in another order if it has a name."""
    return sorted(jobs, key=SORTS[name]) if name else jobs


def _describe_agents(health: Health) -> str:
    reporting = health.agents - health.agents_silent
    if not reporting:
        return "No agent reports."
    if reporting == 1:
        return "1 agent reports, and it has found no rank."
    return f"{reporting} agents report, and they have found no rank."


def choose_jobs(jobs: Iterable[FleetJob]) -> list[FleetJob]:
    """Return the jobs that the page shows, the worst first."""
    turns = by_turns((each.sharer, each) for each in sort_jobs(jobs))
    return sort_jobs(islice(turns, MAX_JOBS))


def sort_jobs(jobs: Iterable[FleetJob]) -> list[FleetJob]:
    """Return the jobs, the worst first: by status (those not judged yet before healthy ones), then
    unacknowledged ones, then the largest."""

    def key(job: FleetJob) -> tuple[float, bool, bool, int, str]:
        is_known = job.acked_by is not None
        severity = rank_severity(job.status.value, job.not_judged is None)
        return severity, is_known, job.is_silenced, -job.world_size, job.job

    return sorted(jobs, key=key)


MAX_NODES = 300
"""Nodes on the page, those with trouble first: about 100 kB. The others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesShown:
    """The content of the page."""

    reporting: int
    silent: int
    limited: int
    """Reporting agents that cannot observe everything."""
    advised: AdvisoryList
    nodes: list[NodeOverview]
    hidden: int


def show_nodes(nodes: Sequence[NodeOverview], advised: AdvisoryList = NO_ADVISORIES) -> NodesShown:
    """Return what the page shows."""
    silent = sum(each.silent_since is not None for each in nodes)
    return NodesShown(
        reporting=sum(each.has_agent for each in nodes) - silent,
        silent=silent,
        limited=sum(each.silent_since is None and bool(each.limits) for each in nodes),
        advised=advised,
        nodes=sort_nodes(nodes)[:MAX_NODES],
        hidden=max(0, len(nodes) - MAX_NODES),
    )


FIELDS = ("status", "cause", "domain", "node", "user", "job", "since", "cursor")
"""Parameters of the address. They are those of /api/v1/incidents."""

CHOICES = {"status": Status, "cause": Cause, "domain": Domain}


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentsShown:
    """The content of the page."""

    items: list[IncidentSummary]
    chosen: dict[str, str]
    """The parameters that were given."""
    choices: dict[str, list[str]]
    """The choices of the form, by parameter."""
    older: str
    """The query of the next page; empty on the last one."""


def read_address(parameters: Mapping[str, str], fields: Sequence[str]) -> dict[str, str]:
    """Return the known parameters of an address that are not empty."""
    found = {name: parameters.get(name, "").strip() for name in fields}
    return {name: text for name, text in found.items() if text}


def check_choice(chosen: Mapping[str, str]) -> None:
    """Raise HTTPException 422 if the parameters of the page of the fleet have unknown values."""
    states = [NOT_JUDGED, *(each.value for each in Status)]
    for name, known in (("state", states), ("sort", list(SORTS))):
        if chosen.get(name, known[0]) not in known:
            raise HTTPException(422, f"{name} is one of {', '.join(known)}")


def make_filter(chosen: Mapping[str, str]) -> IncidentFilter:
    """Return which incidents the parameters choose. Raises HTTPException 422.

    Incidents of drills are listed, too: people open them to try the pages.
    """
    try:
        return IncidentQuery.model_validate({**chosen, "drills": True}).as_filter()
    except RequestRefusedError as error:
        raise HTTPException(422, str(error)) from None
    except ValidationError as error:
        mistakes = ({**each, "loc": ("query", *each["loc"])} for each in error.errors())
        raise HTTPException(422, "; ".join(map(describe_mistake, mistakes))) from None


def show_incidents(page: IncidentList, chosen: Mapping[str, str]) -> IncidentsShown:
    """Return what the page shows."""
    given = {name: text for name, text in chosen.items() if name != "cursor"}
    cursor = page.next_cursor
    return IncidentsShown(
        items=page.items,
        chosen=given,
        choices={name: [each.value for each in kind] for name, kind in CHOICES.items()},
        older=urlencode({**given, "cursor": cursor}) if cursor else "",
    )
