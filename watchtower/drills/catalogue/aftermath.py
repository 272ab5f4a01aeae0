"""The job is killed after a hang, in one of several ways. The incident must not change.

The first fault is that of `dataloader_sleep`. The drill judges the incident `aftermath_s` seconds
after the job was killed.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from signal import Signals

from watchtower.drills.catalogue.stalls import event
from watchtower.drills.drill_run import Drill, DrillRun
from watchtower.drills.setup import names

Kill = Callable[[DrillRun], None]


def _hang_then(kill: Kill) -> Callable[[DrillRun], None]:
    """Return a run: hang, wait for the incident, kill, and read the incident again a minute
    later.
    """

    def act(run: DrillRun) -> None:
        run.launch()
        run.wait_for_fault()
        run.wait_for_final()
        incident = str((run.observed.verdict or {}).get("incident"))
        kill(run)
        run.watch_for(run.settings.aftermath_s)
        run.read_incident(incident)

    return act


def _signal_launcher(number: Signals) -> Kill:
    def kill(run: DrillRun) -> None:
        run.note(f"{number.name} to the launcher")
        run.job.signal_launchers(number)

    return kill


def _kill_all(run: DrillRun) -> None:
    run.note("SIGKILL to every rank")
    run.job.signal_all(signal.SIGKILL)


def _end_apart(run: DrillRun) -> None:
    for node in range(run.job.layout.nodes):
        run.note(f"SIGTERM to the launcher of node {node}")
        run.job.signal_launchers(signal.SIGTERM, node)
        run.watch_for(run.settings.leave_gap_s)


def _restart(run: DrillRun) -> None:
    run.note("the launcher kills every rank and starts the job again")
    run.job.kill_at_once()
    run.wait_for_end(run.settings.start_deadline_s)
    run.launch(events=[])


def _lose_node(run: DrillRun) -> None:
    nodes = range(run.job.layout.nodes)
    lost = next((node for node in nodes if node != run.node), run.node)
    run.note(f"node {lost} drops out: its agent and its ranks are gone")
    run.environment.kill_agent(lost)
    run.job.signal_all(signal.SIGKILL, run.job.layout.local_ranks(lost))
    run.watch_for(run.settings.aftermath_s)
    run.note("SIGTERM to the launcher")
    run.job.signal_launchers(signal.SIGTERM)


def _dump_core(run: DrillRun) -> None:
    run.watch_for(run.settings.core_after_s)
    run.note(f"SIGSEGV to rank {run.rank}: it dumps core")
    run.job.allow_core(run.rank)
    run.job.signal(run.rank, signal.SIGSEGV)


def _cancelled(way: str, shows: str, kill: Kill, *, breaks_parts: bool = False) -> Drill:
    return Drill(
        name=f"hung_then_cancelled{way}",
        shows=f"one rank sleeps while it fetches a batch; when the job hangs, {shows}",
        expected=names("dataloader_stall", domain="data"),
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
        expected=names("dataloader_stall", "SIGSEGV", domain="data"),
        plan=event("slow_storage"),
        act=_hang_then(_dump_core),
    ),
)
