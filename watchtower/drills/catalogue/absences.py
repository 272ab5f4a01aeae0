"""Parts of the product, or a whole node, that are gone all of a sudden: kill -9, no last words."""

from __future__ import annotations

from collections.abc import Callable

from watchtower.drills.catalogue.stalls import event
from watchtower.drills.drill import CALM, Drill, Expected, names
from watchtower.drills.scene import Scene

NOTICE_S = 30.0
"""How long the tower may take to see a change."""
AWAY_S = 1.0
"""How long the tower is away: what supervises it starts it again about this fast."""
LOST = ("monitoring_lost",)
KEPT = ("id", "opened_at")
"""What a restart must not change about an incident."""

Json = dict[str, object]


def _lose_node(scene: Scene) -> None:
    scene.launch()
    scene.warm_up()
    scene.fault(f"the node of ranks {', '.join(map(str, scene.ranks))} is gone, agent and all")
    scene.environment.kill_agent(scene.node)
    scene.vanish()
    scene.wait_for_final()


def _lose_agent(scene: Scene) -> None:
    scene.launch()
    scene.warm_up()
    scene.note("one agent is killed, the job trains on")
    scene.environment.kill_agent(scene.node)
    scene.wait_for_status(LOST, NOTICE_S)
    scene.watch_for(scene.settings.calm_s)


def _restart_while_healthy(scene: Scene) -> None:
    scene.launch()
    scene.warm_up()
    _restart(scene)
    scene.watch_for(scene.settings.calm_s)
    scene.wait_for_status(CALM, NOTICE_S)


def _restart_while(*statuses: str) -> Callable[[Scene], None]:
    """The story of a tower that dies when the hang has come to one of these statuses."""

    def act(scene: Scene) -> None:
        scene.launch()
        scene.wait_for_fault()
        scene.wait_for_status(statuses, scene.settings.verdict_deadline_s)
        before = scene.incidents()
        _restart(scene)
        scene.wait_for_final()
        scene.watch_for(scene.settings.calm_s / 2)
        _compare(scene, before, scene.incidents())

    return act


def _restart(scene: Scene) -> None:
    scene.note("the tower is killed")
    scene.environment.kill_tower()
    scene.watch_for(AWAY_S)
    scene.environment.restart_tower()
    scene.forget_final()
    scene.note("the tower is back, on the same data")


def _compare(scene: Scene, before: list[Json], after: list[Json]) -> None:
    """One hang is one incident, and a restart neither forgets nor changes it."""
    if len(after) != 1:
        scene.complain(f"{len(after)} incidents for one hang")
    kept = [[one.get(name) for name in KEPT] for one in after]
    for incident in before:
        if [incident.get(name) for name in KEPT] not in kept:
            scene.complain(f"incident {incident.get('id')} is another one after the restart")
    for incident in after:
        if not incident.get("stacks"):
            scene.complain(f"incident {incident.get('id')} has no stacks after the restart")


NODE_LOST = Drill(
    name="node_lost",
    shows="a node vanishes, its agent and all its ranks at once",
    expected=names("node_lost"),
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
    shows="one rank sleeps while it fetches a batch, and the tower is killed once that is an incident",
    expected=names("dataloader_stall"),
    plan=event("slow_storage"),
    breaks_parts=True,
    act=_restart_while("hung"),
)

TOWER_RESTART_SUSPECT = Drill(
    name="tower_restart_suspect",
    shows="one rank sleeps while it fetches a batch, and the tower is killed before that is an incident",
    expected=names("dataloader_stall"),
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
