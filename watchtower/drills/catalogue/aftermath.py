"""What follows a hang: the job is killed in one of several ways. The incident must not change.

The first fault is that of `dataloader_sleep`. Each drill is judged by what the incident reports
`aftermath_s` after the job was killed.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from signal import Signals

from watchtower.drills.catalogue.stalls import event
from watchtower.drills.drill import Drill, names
from watchtower.drills.scene import Scene

Kill = Callable[[Scene], None]


def _hang_then(kill: Kill) -> Callable[[Scene], None]:
    """The story: hang, wait for the incident, kill, and a minute later read the incident again."""

    def act(scene: Scene) -> None:
        scene.launch()
        scene.wait_for_fault()
        scene.wait_for_final()
        incident = str((scene.observed.verdict or {}).get("incident"))
        kill(scene)
        scene.watch_for(scene.settings.aftermath_s)
        scene.read_incident(incident)

    return act


def _signal_launcher(number: Signals) -> Kill:
    def kill(scene: Scene) -> None:
        scene.note(f"{number.name} to the launcher")
        scene.job.signal_launchers(number)

    return kill


def _kill_all(scene: Scene) -> None:
    scene.note("SIGKILL to every rank")
    scene.job.signal_all(signal.SIGKILL)


def _end_apart(scene: Scene) -> None:
    for node in range(scene.job.layout.nodes):
        scene.note(f"SIGTERM to the launcher of node {node}")
        scene.job.signal_launchers(signal.SIGTERM, node)
        scene.watch_for(scene.settings.leave_gap_s)


def _restart(scene: Scene) -> None:
    scene.note("the launcher kills every rank and starts the job again")
    scene.job.kill_at_once()
    scene.wait_for_end(scene.settings.start_deadline_s)
    scene.launch(events=[])


def _lose_node(scene: Scene) -> None:
    nodes = range(scene.job.layout.nodes)
    lost = next((node for node in nodes if node != scene.node), scene.node)
    scene.note(f"node {lost} drops out: its agent and its ranks are gone")
    scene.environment.kill_agent(lost)
    scene.job.signal_all(signal.SIGKILL, scene.job.layout.local_ranks(lost))
    scene.watch_for(scene.settings.aftermath_s)
    scene.note("SIGTERM to the launcher")
    scene.job.signal_launchers(signal.SIGTERM)


def _dump_core(scene: Scene) -> None:
    scene.watch_for(scene.settings.core_after_s)
    scene.note(f"SIGSEGV to rank {scene.rank}: it dumps core")
    scene.job.allow_core(scene.rank)
    scene.job.signal(scene.rank, signal.SIGSEGV)


def _cancelled(way: str, shows: str, kill: Kill, *, breaks_parts: bool = False) -> Drill:
    return Drill(
        name=f"hung_then_cancelled{way}",
        shows=f"one rank sleeps while it fetches a batch; when the job hangs, {shows}",
        expected=names("dataloader_stall"),
        plan=event("slow_storage"),
        breaks_parts=breaks_parts,
        act=_hang_then(kill),
    )


HUNG_THEN = (
    _cancelled("", "the launcher gets SIGTERM", _signal_launcher(signal.SIGTERM)),
    _cancelled("_sigint", "the launcher gets SIGINT", _signal_launcher(signal.SIGINT)),
    _cancelled("_sigkill", "every rank gets SIGKILL", _kill_all),
    _cancelled("_apart", "its nodes are ended one after the other", _end_apart),
    _cancelled("_restarted", "the launcher starts it again", _restart),
    _cancelled(
        "_node_lost", "a node drops out, then the rest is ended", _lose_node, breaks_parts=True
    ),
    Drill(
        name="hung_then_core",
        shows="one rank sleeps while it fetches a batch; after the incident opened it dumps core",
        expected=names("dataloader_stall", "SIGSEGV"),
        plan=event("slow_storage"),
        act=_hang_then(_dump_core),
    ),
)
