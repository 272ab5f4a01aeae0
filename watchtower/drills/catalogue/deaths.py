"""Ranks whose process ends during training. `patient` peers wait, as NCCL's do."""

from __future__ import annotations

import signal

from watchtower.drills.catalogue.stalls import event, happen
from watchtower.drills.drill_run import Drill, DrillRun
from watchtower.drills.setup import Plan, Variables, names

ALLOWED_BYTES = 64 << 20
"""Bytes that the rank may still allocate: its steps need far less."""

LAUNCHER_DELAY_S = 0.5
"""Seconds after an error until the launcher of a drill ends the other ranks."""

VICTIMS_FIRST_S = 0.3
"""The rank that an error began with leaves so many seconds after the ranks that lost it."""

STEPS_BEFORE = 3
"""The limit comes so many steps before the rank begins to hoard memory."""


def _run_out_of_memory(run: DrillRun) -> None:
    run.launch()
    run.wait_for_step(max(1, run.variables.step - STEPS_BEFORE))
    run.limit_memory(run.rank, ALLOWED_BYTES)
    run.wait_for_fault()
    run.wait_for_final()


def _lose_all(variables: Variables) -> Plan:
    """Return a plan in which every rank raises the same error at the same step."""
    return {"events": [_nccl_error(variables, None, "closed")]}


def _lose_all_for_one(variables: Variables) -> Plan:
    """Return a plan in which every rank raises an error, and the text of one shows the cause."""
    others = [rank for rank in range(variables.ranks) if rank != variables.rank]
    first = _nccl_error(variables, variables.rank, "shared_memory", after_s=VICTIMS_FIRST_S)
    return {"events": [first, *(_nccl_error(variables, rank, "closed") for rank in others)]}


def _nccl_error(variables: Variables, rank: int | None, what: str, after_s: float = 0.0) -> Plan:
    arguments = {"what": what, "after_s": after_s}
    act = {"act": "raise_nccl_error", "arguments": arguments}
    return {**act, "rank": rank, "when": "before_step", "step": variables.step}


def _end_with_alert(run: DrillRun) -> None:
    happen(run)
    _check_alert(run)


def _check_alert(run: DrillRun) -> None:
    """Check what the alert `WatchtowerJobDied` is made from."""
    run.check_series("watchtower_incident_ended", f'domain="{run.expected.domain}"')


def _end_rest(run: DrillRun) -> None:
    run.launch()
    run.wait_for_fault()
    run.watch_for(LAUNCHER_DELAY_S)
    run.note("the launcher ends the other ranks")
    others = [rank for rank in run.job.log.pids if rank != run.rank]
    run.job.signal_all(signal.SIGTERM, others)
    run.wait_for_final()
    _check_alert(run)


CGROUP_OOM = Drill(
    name="cgroup_oom",
    shows="one rank exceeds the memory limit of its control group, and the kernel kills it "
    "(needs root)",
    expected=names("oom_killed", domain="user_code"),
    plan=event("hoard"),
    act=_run_out_of_memory,
)

EXCEPTION = Drill(
    name="exception",
    shows="one rank raises and its process exits, its peers lose their connections",
    expected=names("exception", "ValueError", domain="user_code"),
    plan=event("truncated_record"),
    act=happen,
)

EXIT_ZERO = Drill(
    name="exit_zero",
    shows="one rank returns from main early while its peers still need it",
    expected=names("exited_early", domain="user_code"),
    plan=event("stop_early", patient=True),
    act=happen,
)

CONSEQUENTIAL = Drill(
    name="consequential",
    shows="one rank exits silently (exit code 3), its peers raise connection errors",
    expected=names("process_died", domain="user_code"),
    plan=event("die"),
    act=happen,
)

NCCL_ERROR_EVERYWHERE = Drill(
    name="nccl_error_everywhere",
    shows="every rank raises the same NCCL error at one moment, and the job has ended",
    expected=names("exception", "ncclRemoteError", "socketProgress", domain="network"),
    plan=_lose_all,
    blames=lambda _: (),
    act=_end_with_alert,
)

NCCL_ERROR_OF_ONE = Drill(
    name="nccl_error_of_one",
    shows="every rank raises an NCCL error, and only the last line of one shows the cause",
    expected=names("exception", "ncclSystemError", "shm", domain="node"),
    plan=_lose_all_for_one,
    # torchrun would end the rank with the cause before that rank raises.
    bare_launch=True,
    act=_end_with_alert,
)

NCCL_ERROR_THEN_SIGTERM = Drill(
    name="nccl_error_then_sigterm",
    shows="one rank raises an NCCL error, and the launcher ends the others by SIGTERM",
    expected=names("exception", "ncclSystemError", "shm", domain="node"),
    plan=event("raise_nccl_error", arguments={"what": "shared_memory"}, patient=True),
    # The drill is the launcher here.
    bare_launch=True,
    act=_end_rest,
)
