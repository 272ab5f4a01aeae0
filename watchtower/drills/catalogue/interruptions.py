"""Healthy: jobs that are suspended, restarted or out of the tower's reach for a while."""

from __future__ import annotations

import signal

from watchtower.drills.drill import CALM, Drill, Expected
from watchtower.drills.scene import Scene

SUSPENDED = ("suspended",)
NOTICE_S = 30.0
"""How long the tower may take to see a change."""


def _suspend(scene: Scene) -> None:
    scene.launch()
    scene.warm_up()
    scene.note("SIGSTOP to every rank")
    scene.job.signal_all(signal.SIGSTOP)
    scene.wait_for_status(SUSPENDED, NOTICE_S)
    scene.watch_for(scene.settings.calm_s)


def _restart(scene: Scene) -> None:
    scene.launch()
    scene.warm_up()
    scene.note("every rank is killed and launched again")
    scene.job.kill_at_once()
    scene.wait_for_end(scene.settings.start_deadline_s)
    scene.launch()
    scene.warm_up()
    scene.watch_for(scene.settings.calm_s)
    scene.wait_for_status(CALM, NOTICE_S)


def _rerun(scene: Scene) -> None:
    scene.launch(steps=scene.variables.step + 1)
    scene.warm_up()
    scene.wait_for_end(scene.settings.start_deadline_s)
    scene.note("the job has ended; the same name runs again at once")
    scene.launch()
    scene.warm_up()
    scene.watch_for(scene.settings.calm_s)
    scene.wait_for_status(CALM, NOTICE_S)


def _cut_off(scene: Scene) -> None:
    scene.launch()
    scene.warm_up()
    scene.note("agents cannot reach the tower any more")
    scene.environment.cut()
    scene.watch_for(scene.settings.unreachable_s)
    scene.note("the tower can be reached again")
    scene.environment.mend()
    scene.watch_for(scene.settings.calm_s)
    scene.wait_for_status(CALM, NOTICE_S)


def _restart_unevenly(scene: Scene) -> None:
    nodes = scene.job.layout.nodes
    scene.launch(restart_counts=(0,) * nodes)
    scene.warm_up()
    scene.note("a worker of the last node failed; its launcher counts that, the others do not")
    scene.job.kill_at_once()
    scene.wait_for_end(scene.settings.start_deadline_s)
    scene.launch(restart_counts=(*(0,) * (nodes - 1), 1))
    scene.warm_up()
    scene.watch_for(scene.settings.calm_s)
    scene.wait_for_status(CALM, NOTICE_S)


def _step_clock(scene: Scene) -> None:
    step_s = scene.settings.clock_step_s
    scene.launch()
    scene.warm_up()
    for change_s in (step_s, -2 * step_s):
        scene.step_clock(change_s)
        scene.watch_for(scene.settings.calm_s)
    scene.wait_for_status(CALM, NOTICE_S)


def _live_together(scene: Scene) -> None:
    scene.launch()
    other = scene.launch_beside()
    scene.warm_up()
    scene.wait_for_training(other)
    scene.wait_until(lambda: scene.find_job(scene.job) is not None, NOTICE_S, "first job known")
    scene.wait_until(lambda: scene.find_job(other) is not None, NOTICE_S, "second job known")
    scene.follow(scene.job)
    scene.watch_for(scene.settings.calm_s)
    scene.note("the second job is cancelled, the first trains on")
    other.signal_all(signal.SIGTERM)
    scene.watch_for(scene.settings.calm_s)
    scene.wait_for_status(CALM, NOTICE_S)


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
    # torchrun keeps the count itself.
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
    shows="two jobs that nobody named (run id none) train on the same nodes, one is cancelled",
    expected=Expected(),
    named=False,
    # One machine plays all nodes here: two torchruns would be two jobs.
    bare_launch=True,
    act=_live_together,
)
