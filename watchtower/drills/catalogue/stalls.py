"""Ranks that stay behind in their own code: the program does it at a given step."""

from __future__ import annotations

from collections.abc import Callable

from watchtower.drills.drill import Drill, names, Plan, Variables
from watchtower.drills.scene import Scene


def event(name: str, when: str = "step_end", **plan: object) -> Callable[[Variables], Plan]:
    """Plan one event on the chosen rank; other keywords go into the plan as they are."""

    def make_plan(variables: Variables) -> Plan:
        step = 0 if when == "setup" else variables.step
        return {
            "events": [{"act": name, "rank": variables.rank, "when": when, "step": step}],
            **plan,
        }

    return make_plan


def happen(scene: Scene) -> None:
    """The story of every fault that comes from inside: train, wait for it, wait for the verdict."""
    scene.launch()
    scene.wait_for_fault()
    scene.wait_for_final()


DATALOADER_SLEEP = Drill(
    name="dataloader_sleep",
    shows="one rank sleeps while it fetches a batch",
    expected=names("dataloader_stall"),
    plan=event("slow_storage"),
    act=happen,
)

BUSY_LOOP = Drill(
    name="busy_loop",
    shows="one rank loops in user code and never gets to the collective",
    expected=names("busy_loop"),
    plan=event("endless_sampling"),
    act=happen,
)

LOCK_DEADLOCK = Drill(
    name="lock_deadlock",
    shows="one rank takes the same lock twice",
    expected=names("lock_deadlock"),
    plan=event("relock", when="optimizer_end"),
    act=happen,
)
