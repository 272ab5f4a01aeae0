"""Ranks that somebody else holds or kills: nothing is wrong in the program."""

from __future__ import annotations

import signal

from watchtower.drills.drill import Drill, names
from watchtower.drills.scene import Scene


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
