"""Ranks that another process stops or kills: the program has no fault."""

from __future__ import annotations

import signal

from watchtower.drills.drill_run import Drill, DrillRun
from watchtower.drills.setup import names

LAUNCHER_DELAY_S = 0.5
"""Seconds after the first death until the launcher of a drill kills the other ranks."""


def stop(run: DrillRun) -> None:
    """Stop a rank at the step of the fault."""
    run.launch()
    run.warm_up()
    run.fault(f"rank {run.rank} gets SIGSTOP")
    run.job.signal(run.rank, signal.SIGSTOP)
    run.wait_for_final()


def _kill(run: DrillRun) -> None:
    run.launch()
    run.warm_up()
    run.fault(f"rank {run.rank} gets SIGKILL")
    run.vanish()
    run.wait_for_final()


def _terminate(run: DrillRun) -> None:
    run.launch()
    run.warm_up()
    run.fault(f"rank {run.rank} gets SIGTERM")
    run.job.signal(run.rank, signal.SIGTERM)
    run.wait_for_final()


def _kill_rest(run: DrillRun) -> None:
    run.launch()
    run.warm_up()
    run.fault(f"rank {run.rank} aborts")
    run.abort()
    run.watch_for(LAUNCHER_DELAY_S)
    run.note("the launcher kills the other ranks")
    others = [rank for rank in run.job.log.pids if rank != run.rank]
    run.job.signal_all(signal.SIGKILL, others)
    run.wait_for_final()


def trace(run: DrillRun) -> None:
    """Let another process trace a rank at the step of the fault."""
    run.launch()
    run.warm_up()
    run.trace(run.rank)
    run.wait_for_final()


SIGSTOP = Drill(
    name="sigstop",
    shows="one rank is stopped by a signal from outside",
    expected=names("process_stopped", domain="operator"),
    act=stop,
)

SIGKILL = Drill(
    name="sigkill",
    shows="one rank is killed and its peers stay in the collective",
    expected=names("process_died", domain="unknown"),
    plan=lambda _: {"patient": True},
    networked=("torch",),
    act=_kill,
)

DEBUGGER = Drill(
    name="debugger",
    shows="another process traces one rank and holds it",
    expected=names("process_traced", domain="operator"),
    act=trace,
)

TERMINATED_RANK = Drill(
    name="terminated_rank",
    shows="one rank gets SIGTERM, its peers lose their connections",
    expected=names("process_died", "SIGTERM", domain="operator"),
    # torchrun sends SIGTERM to the other ranks of the node at its next check, which may be
    # milliseconds later. Half of this small job has then got SIGTERM, as if it was cancelled.
    bare_launch=True,
    act=_terminate,
)

LAUNCHER_KILLS_REST = Drill(
    name="launcher_kills_rest",
    shows="one rank aborts, half a second later its launcher kills the others",
    expected=names("process_died", "SIGABRT", domain="unknown"),
    plan=lambda _: {"patient": True},
    networked=("torch",),
    # The drill is the launcher here: it kills at once, without SIGTERM before.
    bare_launch=True,
    act=_kill_rest,
)
