"""Jobs that never train. The tower's startup grace is shortened, and the drill prints that."""

from __future__ import annotations

from collections.abc import Mapping

from watchtower.drills.catalogue.stalls import event, happen
from watchtower.drills.drill import Drill
from watchtower.drills.drill_run import DrillRun
from watchtower.drills.settings import DrillSettings
from watchtower.drills.setup import names


def short_grace(settings: DrillSettings) -> Mapping[str, object]:
    """Return the tower's settings for a drill about the start of a job."""
    return {"startup_grace_s": settings.startup_grace_s}


def _leave_out(run: DrillRun) -> None:
    run.launch(missing=frozenset({run.rank}))
    run.fault(f"every rank but {run.rank} is launched")
    run.wait_for_final()


NEVER_STARTED = Drill(
    name="never_started",
    shows="all ranks but one are launched",
    expected=names("never_started", domain="scheduler"),
    detection=short_grace,
    # torchrun would continue with the ranks that it has.
    bare_launch=True,
    act=_leave_out,
)

INIT_SLEEP = Drill(
    name="init_sleep",
    shows="one rank sleeps before it joins the process group",
    expected=names("init_stuck", domain="data"),
    detection=short_grace,
    plan=event("slow_storage", when="setup"),
    act=happen,
)
