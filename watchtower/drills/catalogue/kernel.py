"""Ranks that sleep in the kernel without reacting to signals, and that no debugger may touch."""

from __future__ import annotations

from watchtower.drills.catalogue.stalls import event, write
from watchtower.drills.drill_run import Drill, DrillRun
from watchtower.drills.setup import names

JOBS = 3
"""Jobs that read from the dead storage."""

TOGETHER_S = 60.0
"""Seconds for the other jobs to get as far as the first one."""


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


def _lose_storage(run: DrillRun) -> None:
    """The jobs read different files: only one process at a time may wait for the same name."""
    storage = run.set_up("fuse_mount.py", str(run.job.folder))
    files = [f"{storage['path']}/{number:04}.tar" for number in range(JOBS)]
    run.launch(outlet=files[0])
    others = [run.launch_beside(f"job-{number}", outlet=files[number]) for number in range(1, JOBS)]
    run.wait_for_fault()
    run.forbid_tracing(run.rank)

    def all_blocked() -> bool:
        return all(job.log.fault_at is not None for job in others)

    run.wait_until(all_blocked, TOGETHER_S, "fault of the other jobs")
    run.wait_for_final()
    run.check_outage(JOBS, "storage", TOGETHER_S)


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

DEAD_STORAGE = Drill(
    name="dead_storage",
    shows="three jobs read from one file system that never answers (FUSE, needs root): one outage",
    expected=names("uninterruptible_io", domain="storage"),
    plan=event("move_index"),
    # An incident that opens before the second round of dumps has no shared cause.
    detection=lambda _: {"hung_floor_s": 10.0},
    act=_lose_storage,
)

FROZEN = Drill(
    name="frozen",
    shows="one rank is frozen by its control group (needs root)",
    expected=names("process_frozen", domain="operator"),
    act=_freeze,
)
