"""Ranks that sleep in the kernel without reacting to signals, and that no debugger may touch."""

from __future__ import annotations

from watchtower.drills.catalogue.stalls import event, write
from watchtower.drills.drill import Drill
from watchtower.drills.drill_run import DrillRun
from watchtower.drills.setup import names


def _spawn(run: DrillRun) -> None:
    pipe = run.set_up("pipe.py", str(run.job.folder))
    run.launch(outlet=pipe["path"])
    _wait(run)


def _mount(run: DrillRun) -> None:
    storage = run.set_up("fuse_mount.py", str(run.job.folder))
    run.launch(outlet=f"{storage['path']}/checkpoint.bin")
    _wait(run)


def _wait(run: DrillRun) -> None:
    run.wait_for_fault()
    run.forbid_tracing(run.rank)
    run.wait_for_final()


def _freeze(run: DrillRun) -> None:
    run.launch()
    run.warm_up()
    run.forbid_tracing(run.rank)
    run.freeze(run.rank)
    run.wait_for_final()


D_STATE = Drill(
    name="d_state",
    shows="one rank starts a helper and sleeps in the kernel (state D) until it has started",
    expected=names("uninterruptible_io", domain="user_code"),
    plan=event("spawn_uploader"),
    act=_spawn,
)

D_STATE_FUSE = Drill(
    name="d_state_fuse",
    shows="one rank writes to a file system that never answers (FUSE, needs root)",
    expected=names("uninterruptible_io", domain="storage"),
    plan=write("change_outlet"),
    act=_mount,
)

FROZEN = Drill(
    name="frozen",
    shows="one rank is frozen by its control group (needs root)",
    expected=names("process_frozen", domain="operator"),
    act=_freeze,
)
