"""Hangs in the first steps, and healthy jobs that only need long until their first step."""

from __future__ import annotations

from dataclasses import replace

from watchtower.drills.catalogue import collectives, stalls
from watchtower.drills.catalogue.pauses import AFTERWARDS_STEPS, SETTLE_S
from watchtower.drills.drill_run import Drill, DrillRun
from watchtower.drills.setup import CALM, Expected, Plan, Variables

WITHIN_S = 20.0
"""Most seconds to a verdict on a hang in the first steps. People at a debug run wait no longer."""
BUSY_WITHIN_S = 70.0
"""The same for a rank that computes before any step: it may as well prepare its data. Such a job is
not healthy after a minute."""
FIRST_STEPS = (0, 2, 12)
"""Before anything, with hardly a pace, and with the pace that later steps have."""
TRYING_RANK = 3
"""The rank whose service comes up late, as far as the job has so many."""


def early_hang(drill: Drill, step: int) -> Drill:
    """Return the drill with its fault at this step, and with a deadline for the verdict."""
    is_busy = drill is stalls.BUSY_LOOP and step == 0
    within_s = BUSY_WITHIN_S if is_busy else WITHIN_S
    return replace(
        drill,
        name=f"early_hang_{drill.name}_{step}",
        shows=f"{drill.shows}; at step {step}",
        expected=replace(drill.expected, within_s=within_s),
        step=step,
    )


EARLY_HANGS = tuple(
    early_hang(drill, step)
    for step in FIRST_STEPS
    for drill in (
        stalls.DATALOADER_SLEEP,
        stalls.BUSY_LOOP,
        stalls.LOCK_DEADLOCK,
        collectives.CONDITIONAL_COLLECTIVE,
        stalls.CHECKPOINT_FIFO,
    )
)


def _begin(run: DrillRun) -> None:
    run.launch()
    _see_first_steps(run, run.settings.late_s)


def _see_first_steps(run: DrillRun, late_s: float) -> None:
    run.wait_for_step(AFTERWARDS_STEPS, extra_s=2 * late_s)
    run.wait_for_status(CALM, SETTLE_S)


def _begin_with_late_node(run: DrillRun) -> None:
    late = run.job.layout.local_ranks(run.node)
    run.launch(missing=frozenset(late))
    run.watch_for(run.settings.late_s)
    run.note(f"the node of ranks {', '.join(map(str, late))} is up")
    run.job.launch_late(late)
    _see_first_steps(run, 0.0)


def _compile_once(run: DrillRun) -> None:
    run.launch()
    _see_first_steps(run, run.settings.compile_s)


def _download_first(run: DrillRun) -> None:
    run.launch(outlet=run.set_up("file_server.py")["url"])
    _see_first_steps(run, run.settings.transfer_s)


def _at_setup(act: str, rank: int | None, seconds: float) -> Plan:
    return _first(act, "setup", rank, seconds)


def _first(act: str, when: str, rank: int | None, seconds: float) -> Plan:
    event = {"act": act, "rank": rank, "when": when, "step": 0, "arguments": {"seconds": seconds}}
    return {"events": [event]}


def _plan_imports(variables: Variables) -> Plan:
    return _at_setup("import_modules", None, variables.settings.late_s)


def _plan_late_rank(variables: Variables) -> Plan:
    rank = min(TRYING_RANK, variables.ranks - 1)
    return _at_setup("reach_service", rank, variables.settings.late_s)


def _plan_compile_once(variables: Variables) -> Plan:
    return _first("compile_once", "before_step", None, variables.settings.compile_s)


def _plan_first_download(variables: Variables) -> Plan:
    return _first("download", "before_step", None, variables.settings.transfer_s)


LONG_IMPORTS = Drill(
    name="long_imports",
    shows="every rank imports modules before it joins, the last one for a minute",
    expected=Expected(),
    plan=_plan_imports,
    act=_begin,
)

LATE_NODE = Drill(
    name="late_node",
    shows="the ranks of one node start a minute late, and the others wait for them to join",
    expected=Expected(),
    # torchrun starts no rank until every node is there.
    bare_launch=True,
    act=_begin_with_late_node,
)

LATE_RANK = Drill(
    name="late_rank",
    shows="one rank tries for a minute to reach a service, less and less often, before it joins",
    expected=Expected(),
    plan=_plan_late_rank,
    act=_begin,
)

FIRST_DOWNLOAD = Drill(
    name="first_download",
    shows="before the first step rank 0 downloads, the others wait at a barrier",
    expected=Expected(),
    plan=_plan_first_download,
    act=_download_first,
)

COMPILE_CACHE_LOCK = Drill(
    name="compile_cache_lock",
    shows="one rank compiles before its first step, and the others wait for the lock of its cache",
    expected=Expected(),
    plan=_plan_compile_once,
    act=_compile_once,
)

EARLY_HEALTHY = (LONG_IMPORTS, LATE_NODE, LATE_RANK, FIRST_DOWNLOAD, COMPILE_CACHE_LOCK)
