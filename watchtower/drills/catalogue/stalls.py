"""Ranks that hang in their own code, at a given step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from watchtower.drills.drill import Drill
from watchtower.drills.drill_run import DrillRun
from watchtower.drills.setup import Plan, Variables, names


def event(
    name: str,
    when: str = "step_end",
    arguments: Mapping[str, object] | None = None,
    **plan: object,
) -> Callable[[Variables], Plan]:
    """Return a plan with one event on the chosen rank. Other keywords are added to the plan."""

    what: Plan = {"act": name, "arguments": arguments or {}}

    def make_plan(variables: Variables) -> Plan:
        step = 0 if when == "setup" else variables.step
        return {
            "events": [{**what, "rank": variables.rank, "when": when, "step": step}],
            **plan,
        }

    return make_plan


def write(name: str) -> Callable[[Variables], Plan]:
    """Return a plan with a checkpoint of the chosen rank, and an event just before it."""

    def make_plan(variables: Variables) -> Plan:
        rhythm = {"every": variables.step, "seconds": 1.0, "rank": variables.rank}
        return event(name, when="optimizer_end", checkpoint=rhythm)(variables)

    return make_plan


def happen(run: DrillRun) -> None:
    """Run a fault inside the program: train, wait for the fault, wait for the verdict."""
    run.launch()
    run.wait_for_fault()
    run.wait_for_final()


DATALOADER_SLEEP = Drill(
    name="dataloader_sleep",
    shows="one rank sleeps while it fetches a batch",
    expected=names("dataloader_stall", domain="data"),
    plan=event("slow_storage"),
    act=happen,
)

BUSY_LOOP = Drill(
    name="busy_loop",
    shows="one rank loops in user code and never gets to the collective",
    expected=names("busy_loop", domain="user_code"),
    plan=event("endless_sampling"),
    act=happen,
)

LOCK_DEADLOCK = Drill(
    name="lock_deadlock",
    shows="one rank takes the same lock twice",
    expected=names("lock_deadlock", domain="user_code"),
    plan=event("relock", when="optimizer_end"),
    act=happen,
)

CHECKPOINT_FIFO = Drill(
    name="checkpoint_fifo",
    shows="one rank writes a checkpoint into a full pipe without a reader",
    expected=names("checkpoint_stall", domain="user_code"),
    plan=write("undrained_pipe"),
    act=happen,
)
