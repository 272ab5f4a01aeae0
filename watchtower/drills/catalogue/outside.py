"""Ranks that somebody else holds or kills: nothing is wrong in the program."""

from __future__ import annotations

import signal

from watchtower.drills.drill import Drill
from watchtower.drills.scene import Scene
from watchtower.drills.setup import names

LAUNCHER_DELAY_S = 0.5
"""How long after the first death the launcher of a drill kills the other ranks."""


def _stop(scene: Scene) -> None:
    scene.launch()
    scene.warm_up()
    scene.fault(f"rank {scene.rank} gets SIGSTOP")
    scene.job.signal(scene.rank, signal.SIGSTOP)
    scene.wait_for_final()


def _kill(scene: Scene) -> None:
    scene.launch()
    scene.warm_up()
    scene.fault(f"rank {scene.rank} gets SIGKILL")
    scene.vanish()
    scene.wait_for_final()


def _terminate(scene: Scene) -> None:
    scene.launch()
    scene.warm_up()
    scene.fault(f"rank {scene.rank} gets SIGTERM")
    scene.job.signal(scene.rank, signal.SIGTERM)
    scene.wait_for_final()


def _kill_rest(scene: Scene) -> None:
    scene.launch()
    scene.warm_up()
    scene.fault(f"rank {scene.rank} aborts")
    scene.abort()
    scene.watch_for(LAUNCHER_DELAY_S)
    scene.note("the launcher kills the other ranks")
    others = [rank for rank in scene.job.log.pids if rank != scene.rank]
    scene.job.signal_all(signal.SIGKILL, others)
    scene.wait_for_final()


def _trace(scene: Scene) -> None:
    scene.launch()
    scene.warm_up()
    scene.trace(scene.rank)
    scene.wait_for_final()


SIGSTOP = Drill(
    name="sigstop",
    shows="one rank is stopped by a signal from outside",
    expected=names("process_stopped"),
    act=_stop,
)

SIGKILL = Drill(
    name="sigkill",
    shows="one rank is killed and its peers stay in the collective",
    expected=names("process_died"),
    plan=lambda _: {"patient": True},
    networked=("torch",),
    act=_kill,
)

DEBUGGER = Drill(
    name="debugger",
    shows="another process traces one rank and holds it",
    expected=names("process_traced"),
    act=_trace,
)

TERMINATED_RANK = Drill(
    name="terminated_rank",
    shows="one rank gets SIGTERM, its peers lose their connections",
    expected=names("process_died", "SIGTERM"),
    act=_terminate,
)

LAUNCHER_KILLS_REST = Drill(
    name="launcher_kills_rest",
    shows="one rank aborts, half a second later its launcher kills the others",
    expected=names("process_died", "SIGABRT"),
    plan=lambda _: {"patient": True},
    networked=("torch",),
    # The drill is the launcher here: it kills at once, without SIGTERM before.
    bare_launch=True,
    act=_kill_rest,
)
