"""Healthy: jobs that end, rank by rank, or because they were cancelled."""

from __future__ import annotations

import signal
from collections.abc import Callable

from watchtower.drills.drill_run import Drill, DrillRun
from watchtower.drills.settings import DrillSettings
from watchtower.drills.setup import Expected, Plan, Variables

ENDED = ("ended",)
NOTICE_S = 30.0
"""Seconds for the tower to detect that a job is over."""


def _finish(late: Callable[[Variables], float]) -> Callable[[DrillRun], None]:
    """Return a run of a job that finishes: wait for the last process, then for the status."""

    def act(run: DrillRun) -> None:
        run.launch()
        run.warm_up()
        run.note("training is over, ranks leave one after the other")
        late_s = late(run.variables)
        run.wait_for_end(run.settings.start_deadline_s + 2 * late_s)
        run.wait_for_status(ENDED, NOTICE_S)

    return act


def _stagger_s(variables: Variables) -> float:
    return variables.settings.leave_gap_s * variables.ranks


def _plan_stagger(variables: Variables) -> Plan:
    return {"steps": variables.step + 1, "leave_gap_s": variables.settings.leave_gap_s}


def _plan_export(variables: Variables) -> Plan:
    return {"steps": variables.step + 1, "export_s": variables.settings.export_s}


def _cancel(run: DrillRun) -> None:
    run.launch()
    run.warm_up()
    run.note("SIGTERM to every rank")
    run.job.signal_all(signal.SIGTERM)
    run.wait_for_end(run.settings.start_deadline_s)
    run.wait_for_status(ENDED, NOTICE_S)
    run.watch_for(_short(run.settings))


def _short(settings: DrillSettings) -> float:
    return settings.calm_s / 4


STAGGERED_EXIT = Drill(
    name="staggered_exit",
    shows="training is over and ranks leave one by one, seconds apart",
    expected=Expected(statuses=ENDED),
    plan=_plan_stagger,
    act=_finish(_stagger_s),
)

RANK0_FINISHES_LATE = Drill(
    name="rank0_finishes_late",
    shows="rank 0 exports the model long after the others have left",
    expected=Expected(statuses=ENDED),
    plan=_plan_export,
    act=_finish(lambda variables: variables.settings.export_s),
)

CANCEL = Drill(
    name="cancel",
    shows="the job is cancelled: SIGTERM to all ranks",
    expected=Expected(statuses=ENDED),
    act=_cancel,
)
