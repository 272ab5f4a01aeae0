"""Healthy: jobs that are suspended, restarted or out of the tower's sight for a while."""

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
    scene.stage.cut()
    scene.watch_for(scene.settings.unreachable_s)
    scene.note("the tower can be reached again")
    scene.stage.mend()
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
