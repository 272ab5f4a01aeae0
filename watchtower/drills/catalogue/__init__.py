"""All drills, in the order of the lists and the documentation."""

from __future__ import annotations

from watchtower.drills.catalogue import (
    absences,
    aftermath,
    collectives,
    deaths,
    endings,
    gpus,
    interruptions,
    kernel,
    neighbours,
    no_heartbeat,
    outside,
    pauses,
    queued,
    stalls,
    work,
)
from watchtower.drills.drill_run import Drill
from watchtower.drills.errors import DrillError
from watchtower.service.command_line import suggest

DRILLS: tuple[Drill, ...] = (
    stalls.DATALOADER_SLEEP,
    stalls.BUSY_LOOP,
    stalls.LOCK_DEADLOCK,
    outside.SIGSTOP,
    outside.SIGKILL,
    deaths.EXCEPTION,
    deaths.EXIT_ZERO,
    deaths.CGROUP_OOM,
    collectives.UNEVEN_INPUTS,
    collectives.CONDITIONAL_COLLECTIVE,
    collectives.ORDER_SWAP,
    collectives.SHAPE_MISMATCH,
    collectives.AFTER_MONITORED_BARRIER,
    collectives.LOADER_AFTER_MONITORED_BARRIER,
    collectives.TP_DP_CASCADE,
    collectives.COLLECTIVE_CYCLE,
    collectives.MISSING_SEND,
    collectives.PIPELINE_STAGE_SLEEP,
    stalls.NEVER_STARTED,
    stalls.INIT_SLEEP,
    outside.DEBUGGER,
    stalls.CHECKPOINT_FIFO,
    kernel.D_STATE,
    kernel.D_STATE_FUSE,
    kernel.DEAD_STORAGE,
    kernel.FROZEN,
    stalls.LOADER_WORKER,
    stalls.LOADER_WORKER_LOCK,
    absences.NODE_LOST,
    absences.TOWER_RESTART,
    absences.TOWER_RESTART_SUSPECT,
    pauses.STRAGGLER,
    pauses.CPU_LIMIT,
    collectives.SYMMETRIC,
    deaths.CONSEQUENTIAL,
    deaths.NCCL_ERROR_EVERYWHERE,
    deaths.NCCL_ERROR_OF_ONE,
    deaths.NCCL_ERROR_THEN_SIGTERM,
    *aftermath.HUNG_THEN,
    outside.TERMINATED_RANK,
    outside.LAUNCHER_KILLS_REST,
    neighbours.SAME_NAME_TWICE,
    neighbours.HOSTILE_NEIGHBOUR,
    *no_heartbeat.NO_HEARTBEAT,
    no_heartbeat.RENAMED_RANKS,
    *queued.QUEUED_FAULTS,
    *gpus.GPU_FAULTS,
    pauses.LONG_CHECKPOINT,
    pauses.UNMARKED_CHECKPOINT,
    pauses.EVAL_LOOP,
    pauses.UNMARKED_EVAL,
    work.COMPILE_FIRST_STEP,
    work.RANK0_DOWNLOAD,
    work.SUBPROCESS_UPLOAD,
    work.GRAD_ACCUMULATION,
    pauses.TEN_TIMES_SLOWER,
    work.GC_PAUSE,
    interruptions.ELASTIC_RESTART,
    absences.AGENT_DIES,
    absences.TOWER_RESTART_HEALTHY,
    interruptions.TOWER_UNREACHABLE,
    endings.STAGGERED_EXIT,
    endings.RANK0_FINISHES_LATE,
    pauses.RARE_PAUSE,
    endings.CANCEL,
    interruptions.SUSPEND_ALL,
    interruptions.RERUN,
    interruptions.RESTART_COUNTS_DIFFER,
    interruptions.CLOCK_STEP,
    interruptions.CO_LOCATED_JOBS,
    *queued.QUEUED_HEALTHY,
)


def find_drill(name: str) -> Drill:
    """Return the drill with this name. Raises DrillError."""
    for drill in DRILLS:
        if drill.name == name:
            return drill
    raise DrillError(
        f"no drill is called {name!r}.{suggest(name, (drill.name for drill in DRILLS))}",
        "list all drills with: watchtower drill --list",
    )
