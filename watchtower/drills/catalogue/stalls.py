"""Ranks that hang in their own code or wait for a child of theirs, and jobs that never train."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping

from watchtower.drills.drill_run import Drill, DrillRun
from watchtower.drills.settings import DrillSettings
from watchtower.drills.setup import Plan, Variables, names


def event(
    name: str,
    when: str = "before_step",
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
        step = variables.step
        rhythm = {"every": step + 1, "first": step, "seconds": 1.0, "rank": variables.rank}
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


def short_grace(settings: DrillSettings) -> Mapping[str, object]:
    """Return the tower's settings for a drill about the start of a job."""
    return {"startup_grace_s": settings.startup_grace_s}


def _leave_out(run: DrillRun) -> None:
    run.launch(missing=frozenset({run.rank}))
    run.fault(f"every rank but {run.rank} is launched")
    run.wait_for_final()


NEVER_STARTED = Drill(
    name="never_started",
    shows="all ranks but one are launched",
    expected=names("never_started", domain="scheduler"),
    detection=short_grace,
    # torchrun would continue with the ranks that it has.
    bare_launch=True,
    act=_leave_out,
)

INIT_SLEEP = Drill(
    name="init_sleep",
    shows="one rank sleeps before it joins the process group",
    expected=names("init_stuck", domain="data"),
    detection=short_grace,
    plan=event("slow_storage", when="setup"),
    act=happen,
)


def _stop_worker(run: DrillRun) -> None:
    run.launch()
    run.warm_up()
    worker = run.job.worker(run.rank)
    run.want_mentioned(str(worker))
    run.fault(f"the worker of rank {run.rank} gets SIGSTOP")
    os.kill(worker, signal.SIGSTOP)
    run.wait_for_final()


def _lock_worker(run: DrillRun) -> None:
    run.launch()
    run.wait_for_fault()
    run.want_mentioned(str(run.job.worker(run.rank)))
    run.wait_for_final()


LOADER_WORKER = Drill(
    name="loader_worker",
    shows="the process that prefetches batches for one rank is stopped",
    expected=names("dataloader_stall", domain="operator"),
    plan=lambda _: {"workers": 1},
    act=_stop_worker,
)

LOADER_WORKER_LOCK = Drill(
    name="loader_worker_lock",
    shows="the process that prefetches batches for one rank waits for a lock that stays locked",
    expected=names("dataloader_stall", domain="user_code"),
    plan=event("keep_index_lock", workers=1),
    act=_lock_worker,
)
