"""Healthy: jobs that are suspended, restarted or unreachable for the tower for a while."""

from __future__ import annotations

import signal

from watchtower.drills.drill_run import Drill, DrillRun
from watchtower.drills.setup import CALM, Expected

SUSPENDED = ("suspended",)
STOPPED_S = 4.0
"""Seconds for which each rank is stopped: as a tool that dumps one process after the other does."""
NOTICE_S = 30.0
"""Seconds for the tower to detect a change."""


def _suspend(run: DrillRun) -> None:
    run.launch()
    run.warm_up()
    run.note("SIGSTOP to every rank")
    run.job.signal_all(signal.SIGSTOP)
    run.wait_for_status(SUSPENDED, NOTICE_S)
    run.watch_for(run.settings.calm_s)


def _restart(run: DrillRun) -> None:
    run.launch()
    run.warm_up()
    run.note("every rank is killed and launched again")
    run.job.kill_at_once()
    run.wait_for_end(run.settings.start_deadline_s)
    run.launch()
    run.warm_up()
    run.watch_for(run.settings.calm_s)
    run.wait_for_status(CALM, NOTICE_S)


def _stop_in_turn(run: DrillRun) -> None:
    run.launch()
    run.warm_up()
    for rank in range(run.job.layout.ranks):
        run.note(f"rank {rank} is stopped, and goes on after {STOPPED_S:g} s")
        run.job.signal(rank, signal.SIGSTOP)
        run.watch_for(STOPPED_S)
        run.job.signal(rank, signal.SIGCONT)
    run.watch_for(run.settings.calm_s)
    run.wait_for_status(CALM, NOTICE_S)


def _rerun(run: DrillRun) -> None:
    run.launch(steps=run.variables.step + 1)
    run.warm_up()
    run.wait_for_end(run.settings.start_deadline_s)
    run.note("the job has ended; the same name runs again at once")
    run.launch()
    run.warm_up()
    run.watch_for(run.settings.calm_s)
    run.wait_for_status(CALM, NOTICE_S)


def _cut_off(run: DrillRun) -> None:
    run.launch()
    run.warm_up()
    run.note("agents cannot reach the tower any more")
    run.environment.cut()
    run.watch_for(run.settings.unreachable_s)
    run.note("the tower can be reached again")
    run.environment.mend()
    run.watch_for(run.settings.calm_s)
    run.wait_for_status(CALM, NOTICE_S)


def _restart_unevenly(run: DrillRun) -> None:
    nodes = run.job.layout.nodes
    run.launch(restart_counts=(0,) * nodes)
    run.warm_up()
    run.note("a worker of the last node failed; its launcher counts that, the others do not")
    run.job.kill_at_once()
    run.wait_for_end(run.settings.start_deadline_s)
    run.launch(restart_counts=(*(0,) * (nodes - 1), 1))
    run.warm_up()
    run.watch_for(run.settings.calm_s)
    run.wait_for_status(CALM, NOTICE_S)


def _step_clock(run: DrillRun) -> None:
    step_s = run.settings.clock_step_s
    run.launch()
    run.warm_up()
    for change_s in (step_s, -2 * step_s):
        run.step_clock(change_s)
        run.watch_for(run.settings.calm_s)
    run.wait_for_status(CALM, NOTICE_S)


def _live_together(run: DrillRun) -> None:
    run.launch()
    other = run.launch_beside()
    run.warm_up()
    run.wait_for_training(other)
    run.wait_until(lambda: run.find_job(run.job) is not None, NOTICE_S, "first job known")
    run.wait_until(lambda: run.find_job(other) is not None, NOTICE_S, "second job known")
    run.follow(run.job)
    run.watch_for(run.settings.calm_s)
    run.note("the second job is cancelled, the first trains on")
    other.signal_all(signal.SIGTERM)
    run.watch_for(run.settings.calm_s)
    run.wait_for_status(CALM, NOTICE_S)


SUSPEND_ALL = Drill(
    name="suspend_all",
    shows="the whole job is suspended: SIGSTOP to all ranks",
    expected=Expected(statuses=SUSPENDED),
    act=_suspend,
)

ELASTIC_RESTART = Drill(
    name="elastic_restart",
    shows="the launcher kills all ranks and starts them again, with new pids",
    expected=Expected(),
    act=_restart,
)

STOP_IN_TURN = Drill(
    name="stop_in_turn",
    shows="each rank in turn is stopped for 4 s, as by a tool that dumps processes",
    expected=Expected(),
    act=_stop_in_turn,
)

RERUN = Drill(
    name="rerun",
    shows="a job ends well and the same name runs again at once",
    expected=Expected(),
    act=_rerun,
)

TOWER_UNREACHABLE = Drill(
    name="tower_unreachable",
    shows="agents cannot reach the tower for a while, the job trains on",
    expected=Expected(passes="monitoring_lost"),
    forwarded=True,
    act=_cut_off,
)

RESTART_COUNTS_DIFFER = Drill(
    name="restart_counts_differ",
    shows="after a restart the launchers of two nodes count restarts differently",
    expected=Expected(),
    # torchrun has its own restart count.
    bare_launch=True,
    act=_restart_unevenly,
)

CLOCK_STEP = Drill(
    name="clock_step",
    shows="the wall clock of tower, agents and ranks jumps an hour forward, then two hours back",
    expected=Expected(),
    own_clock=True,
    act=_step_clock,
)

CO_LOCATED_JOBS = Drill(
    name="co_located_jobs",
    shows="two jobs without names (run id none) train on the same nodes, one is cancelled",
    expected=Expected(),
    named=False,
    # One machine simulates all nodes: two torchruns would be two jobs.
    bare_launch=True,
    act=_live_together,
)
