"""Parts of the product, or a whole node, that disappear without a warning: kill -9."""

from __future__ import annotations

from collections.abc import Callable

from watchtower.drills.catalogue.stalls import event
from watchtower.drills.drill_run import Drill, DrillRun
from watchtower.drills.setup import CALM, Expected, names

NOTICE_S = 30.0
"""Seconds for the tower to detect a change."""
AWAY_S = 1.0
"""Seconds without a tower. Its supervisor restarts it about this fast."""
LOST = ("monitoring_lost",)
KEPT = ("id", "opened_at")
"""Fields of an incident that a restart must not change."""

Json = dict[str, object]


def _lose_node(run: DrillRun) -> None:
    run.launch()
    run.warm_up()
    run.wait_until_known(run.job)
    run.fault(f"the node of ranks {', '.join(map(str, run.ranks))} is gone, agent and all")
    run.environment.kill_agent(run.node)
    run.vanish()
    run.wait_for_final()


def _lose_agent(run: DrillRun) -> None:
    run.launch()
    run.warm_up()
    run.wait_until_known(run.job)
    run.note("one agent is killed, the job continues")
    run.environment.kill_agent(run.node)
    run.wait_for_status(LOST, NOTICE_S)
    run.watch_for(run.settings.calm_s)


def _restart_while_healthy(run: DrillRun) -> None:
    run.launch()
    run.warm_up()
    _restart(run)
    run.watch_for(run.settings.calm_s)
    run.wait_for_status(CALM, NOTICE_S)


def _restart_while(*statuses: str) -> Callable[[DrillRun], None]:
    """Return a run in which the tower dies when the job has one of these statuses."""

    def act(run: DrillRun) -> None:
        run.launch()
        run.wait_for_fault()
        run.wait_for_status(statuses, run.settings.verdict_deadline_s)
        before = run.incidents()
        _restart(run)
        run.wait_for_final()
        run.watch_for(run.settings.calm_s / 2)
        _compare(run, before, run.incidents())

    return act


def _restart(run: DrillRun) -> None:
    run.note("the tower is killed")
    run.environment.kill_tower()
    run.watch_for(AWAY_S)
    run.environment.restart_tower()
    run.forget_final()
    run.note("the tower is back, on the same data")


def _compare(run: DrillRun, before: list[Json], after: list[Json]) -> None:
    """Check that one hang is one incident, and that a restart does not lose or change it."""
    if len(after) != 1:
        run.complain(f"{len(after)} incidents for one hang")
    kept = [[one.get(name) for name in KEPT] for one in after]
    for incident in before:
        if [incident.get(name) for name in KEPT] not in kept:
            run.complain(f"incident {incident.get('id')} is another one after the restart")
    for incident in after:
        if not incident.get("stacks"):
            run.complain(f"incident {incident.get('id')} has no stacks after the restart")


NODE_LOST = Drill(
    name="node_lost",
    shows="a node vanishes, its agent and all its ranks at once",
    expected=names("node_lost", domain="node"),
    plan=lambda _: {"patient": True},
    networked=("torch",),
    whole_node=True,
    breaks_parts=True,
    act=_lose_node,
)

AGENT_DIES = Drill(
    name="agent_dies",
    shows="one agent is killed, the job trains on",
    expected=Expected(statuses=LOST),
    breaks_parts=True,
    act=_lose_agent,
)

TOWER_RESTART = Drill(
    name="tower_restart",
    shows="one rank sleeps while it fetches a batch; the tower is killed after the incident opens",
    expected=names("dataloader_stall", domain="data"),
    plan=event("slow_storage"),
    breaks_parts=True,
    act=_restart_while("hung"),
)

TOWER_RESTART_SUSPECT = Drill(
    name="tower_restart_suspect",
    shows="one rank sleeps while it fetches a batch; the tower is killed before an incident opens",
    expected=names("dataloader_stall", domain="data"),
    plan=event("slow_storage"),
    breaks_parts=True,
    act=_restart_while("suspect", "hung"),
)

TOWER_RESTART_HEALTHY = Drill(
    name="tower_restart_healthy",
    shows="the tower is killed and started again while the job trains",
    expected=Expected(),
    breaks_parts=True,
    act=_restart_while_healthy,
)
