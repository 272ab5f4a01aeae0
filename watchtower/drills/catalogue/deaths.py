"""Ranks whose process ends during training. `patient` peers wait, as NCCL's do."""

from __future__ import annotations

from watchtower.drills.catalogue.stalls import event, happen
from watchtower.drills.drill import Drill
from watchtower.drills.drill_run import DrillRun
from watchtower.drills.setup import names

ALLOWED_BYTES = 64 << 20
"""Bytes that the rank may still allocate: its steps need far less."""

STEPS_BEFORE = 3
"""The limit comes so many steps before the rank begins to hoard memory."""


def _run_out_of_memory(run: DrillRun) -> None:
    run.launch()
    run.wait_for_step(max(1, run.variables.step - STEPS_BEFORE))
    run.limit_memory(run.rank, ALLOWED_BYTES)
    run.wait_for_fault()
    run.wait_for_final()


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
