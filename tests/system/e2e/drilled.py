"""Drills as tests run them: which ones, how scaled, on which tower, and what must come out."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from watchtower.drills.catalogue import DRILLS, early, find_drill
from watchtower.drills.environment import Environment
from watchtower.drills.errors import DrillError
from watchtower.drills.plain import PlainDisplay
from watchtower.drills.result import Result
from watchtower.drills.runner import Request, can_share, make_environment, run_drill
from watchtower.drills.settings import read_config
from watchtower.service.interpreter import module_command

CONFIG = Path(__file__).parent / "fast.toml"

DRILL_DEADLINE_S = 240.0

RUN_EARLY = {"early_hang_dataloader_sleep_0", "early_hang_conditional_collective_2"}
"""Early hangs that run: a rank outside of any collective, and one alone in a collective."""

LEFT_OUT = {
    # Variants of drills that run, and long ones: `WATCHTOWER_DRILLS=all` runs them too.
    "tower_restart_suspect",
    "loader_worker_lock",
    "d_state_fuse",
    "frozen",
    "compile_first_step",
    "grad_accumulation",
    "gc_pause",
    "restart_counts_differ",
    "clock_step",
    "sigstop_no_heartbeat",
    "tp_dp_cascade_no_heartbeat",
    "d_state_no_heartbeat",
    "hung_then_cancelled_sigint",
    "hung_then_cancelled_apart",
    "long_imports",
    "late_rank",
    "compile_cache_lock",
    "eval_on_rank0",
    "gpu_errors_beside_eval",
    "stop_in_turn",
    *(drill.name for drill in early.EARLY_HANGS if drill.name not in RUN_EARLY),
}
NEED_MORE = {
    "d_state_fuse",
    "dead_storage",
    "frozen",
    "cgroup_oom",
    "cpu_limit",
    "clock_step",
    "sigkill",
    "launcher_kills_rest",
    "hostile_neighbour",
    "node_lost",
    "symmetric",
}
"""Drills that need root or a program that not every machine has, and say so."""

Done = subprocess.CompletedProcess[str]


LEFT_OUT_ON_TORCH = {
    # Strangers that are like others that run, or need other libraries: test_third_party.py has a
    # schedule of pipelining, too.
    "stranger_ddp",
    "stranger_pipelining",
    "stranger_accelerated",
    "stranger_lightning_fit",
    "stranger_transformers_trainer",
    # The tower, an agent or a node is what fails: the job only has to be there.
    "agent_dies",
    "node_lost",
    "tower_restart",
    "tower_restart_healthy",
    "tower_unreachable",
    "hung_then_cancelled_node_lost",
    # The kernel stops the rank, whatever its program is.
    "cgroup_oom",
    "cpu_limit",
    "d_state",
    "dead_storage",
    "checkpoint_fifo",
    "sigstop",
    "suspend_all",
    "throttled_straggler",
    # Other processes beside the job.
    "co_located_jobs",
    "hostile_neighbour",
    # Pace and ends as on stdlib: torch is in a drill of each kind that stays.
    "hung_then_cancelled_sigkill",
    "hung_then_cancelled_restarted",
    "hung_then_core",
    "cancel",
    "debugger",
    "eval_loop",
    "rank0_finishes_late",
    "renamed_ranks",
    "rare_pause",
    "same_name_twice",
    "sigkill",
    "terminated_rank",
    "unmarked_checkpoint",
    # The rank is outside of torch, and its peers wait as in the drills of loaders that stay.
    "busy_loop",
    "dataloader_sleep_no_heartbeat",
    "early_hang_conditional_collective_2",
    "early_hang_dataloader_sleep_0",
    "loader_after_monitored_barrier",
    "loader_worker",
    "rank0_download",
    "subprocess_upload",
    # The errors are raised by the program: the texts are those of real libraries on both.
    "nccl_error_everywhere",
    "nccl_error_of_one",
    "nccl_error_then_sigterm",
    "rerun",
    "staggered_exit",
    "straggler",
    "ten_times_slower",
    "unmarked_eval",
    # A program in test_third_party.py has the same fault on torch.
    "conditional_collective",  # nan_guard, and the drill without heartbeats
    "exit_zero",  # leaves_early
    "lock_deadlock",  # one_group_two_faults, pipeline_schedule, posted_receives
    "missing_send",  # stages
    "order_swap",  # crossed_groups; queued runs the drill
    "pipeline_stage_sleep",  # pipeline_schedule
    "uneven_inputs",  # short_epoch
}
"""They run on stdlib, or what they show of torch is shown by another test."""


RIGHT_ON_QUEUED = {
    "dataloader_sleep",
    "order_swap",
    "xid_79",
    "odd_gpu_in_named_collective",
}
"""The drills of the backend that run in every tier: each takes a minute of two processors.
`WATCHTOWER_DRILLS=all` runs all of them, `watchtower drill NAME --backend queued` one.
"""


def names_of_drills(backend: str) -> list[str]:
    """The drills to test on a backend."""
    run_all = os.environ.get("WATCHTOWER_DRILLS") == "all"
    names = [drill.name for drill in DRILLS if backend in drill.backends]
    if backend == "queued" and not run_all:
        return [name for name in names if name in RIGHT_ON_QUEUED]
    left_out = LEFT_OUT | (LEFT_OUT_ON_TORCH if backend == "torch" else set())
    return [name for name in names if run_all or name not in left_out]


class SharedEnvironment:
    """One tower and two agents for the drills of this process that can share them."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._stack = contextlib.ExitStack()
        self._environment: Environment | None = None

    def assert_right(self, name: str, backend: str) -> None:
        """Run a drill on the shared environment, or by its command on its own one."""
        config = read_config(CONFIG)
        request = Request(drill=find_drill(name), ranks=4, backend=backend, config=config)
        if can_share(request):
            self._assert_right_on(self._open(request), request)
        else:
            assert_right(run_by_command(name, backend))

    def close(self) -> None:
        """End tower and agents; the next drill gets new ones."""
        self._environment = None
        self._stack.close()

    def _assert_right_on(self, environment: Environment, request: Request) -> None:
        text = io.StringIO()
        try:
            result = run_drill(request, PlainDisplay(text), environment=environment)
        except DrillError as error:
            self.close()  # a part of it may be what failed
            skip_if_more_is_needed(request.drill.name, str(error))
            pytest.fail(f"{error}\n{error.help_text}\n{text.getvalue()[-3000:]}")
        assert result.judgement.is_right, explain(result, text.getvalue())

    def _open(self, request: Request) -> Environment:
        if self._environment is None:
            # Agents know the ranks by the folder's name: those of another run are not theirs.
            folder = self._folders.mktemp(f"environment-{os.getpid()}-")
            self._environment = self._stack.enter_context(
                make_environment(request, folder, shared=True)
            )
        return self._environment


def explain(result: Result, text: str) -> str:
    """The errors of a drill that was judged wrong."""
    return f"{json.dumps(result.to_json(), indent=1)}\n{text[-3000:]}"


def run_by_command(name: str, backend: str, python: str | Path = sys.executable, **options) -> Done:
    """Run one drill with four ranks and the scaled settings."""
    command = module_command("watchtower", "drill", name, "--json", "--ranks", "4", python=python)
    return subprocess.run(
        [*command, "--backend", backend, "--config", str(CONFIG)],
        capture_output=True,
        text=True,
        timeout=DRILL_DEADLINE_S,
        check=False,
        **options,
    )


def read_result(done: Done) -> dict:
    """Return the result that a drill printed. If it printed none, the test fails and shows the
    output of the drill."""
    assert done.stdout, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    if "reason" in result:
        skip_if_more_is_needed(result["drill"], result["reason"])
    assert "reason" not in result, result["reason"] + done.stderr[-3000:]
    return result


def assert_right(done: Done) -> None:
    """Fail unless rank and cause are right."""
    result = read_result(done)
    assert result["right_rank"], done.stdout + done.stderr[-3000:]
    assert result["right_cause"], done.stdout + done.stderr[-3000:]
    assert done.returncode == 0


def skip_if_more_is_needed(name: str, reason: str) -> None:
    """Skip the test of a drill that this machine does not have everything for."""
    if name in NEED_MORE:
        pytest.skip(reason)
