"""The catalogue: complete, well formed, and plans the training programs understand."""

import importlib.util
import json
import re
import sys
from dataclasses import replace

import pytest

from tests.system.e2e.drilled import LEFT_OUT, NEED_MORE
from watchtower.drills.catalogue import DRILLS, find_drill
from watchtower.drills.command import list_drills
from watchtower.drills.errors import DrillError
from watchtower.drills.launching import PROGRAM, PROGRAMS, choose_backend
from watchtower.drills.runner import Request, choose_step
from watchtower.drills.settings import Config, DrillSettings
from watchtower.drills.setup import BACKENDS, Variables
from watchtower.wire.verdict import Cause, Status

FAULTS = {
    "dataloader_sleep": "dataloader_stall",
    "busy_loop": "busy_loop",
    "lock_deadlock": "lock_deadlock",
    "sigstop": "process_stopped",
    "sigkill": "process_died",
    "exception": "exception",
    "exit_zero": "exited_early",
    "cgroup_oom": "oom_killed",
    "uneven_inputs": "uneven_inputs",
    "conditional_collective": "conditional_collective",
    "order_swap": "mismatched_collective",
    "shape_mismatch": "mismatched_collective",
    "after_monitored_barrier": "behind_collective",
    "loader_after_monitored_barrier": "dataloader_stall",
    "tp_dp_cascade": "dataloader_stall",
    "collective_cycle": "collective_cycle",
    "missing_send": "missing_send",
    "pipeline_stage_sleep": "dataloader_stall",
    "never_started": "never_started",
    "init_sleep": "init_stuck",
    "debugger": "process_traced",
    "checkpoint_fifo": "checkpoint_stall",
    "d_state": "uninterruptible_io",
    "d_state_fuse": "uninterruptible_io",
    "dead_storage": "uninterruptible_io",
    "frozen": "process_frozen",
    "loader_worker": "dataloader_stall",
    "loader_worker_lock": "dataloader_stall",
    "node_lost": "node_lost",
    "tower_restart": "dataloader_stall",
    "tower_restart_suspect": "dataloader_stall",
    "straggler": "straggler",
    "slow_device": "job_slow",
    "cpu_limit": "straggler",
    "throttled_straggler": "straggler",
    "symmetric": "symmetric_hang",
    "consequential": "process_died",
    "nccl_error_everywhere": "exception",
    "nccl_error_of_one": "exception",
    "nccl_error_then_sigterm": "exception",
    "hung_then_cancelled": "dataloader_stall",
    "hung_then_cancelled_sigint": "dataloader_stall",
    "hung_then_cancelled_sigkill": "dataloader_stall",
    "hung_then_cancelled_apart": "dataloader_stall",
    "hung_then_cancelled_restarted": "dataloader_stall",
    "hung_then_cancelled_node_lost": "dataloader_stall",
    "hung_then_core": "dataloader_stall",
    "terminated_rank": "process_died",
    "launcher_kills_rest": "process_died",
    "same_name_twice": "dataloader_stall",
    "hostile_neighbour": "dataloader_stall",
    "dataloader_sleep_no_heartbeat": "dataloader_stall",
    "sigstop_no_heartbeat": "process_stopped",
    "conditional_collective_no_heartbeat": "conditional_collective",
    "tp_dp_cascade_no_heartbeat": "dataloader_stall",
    "d_state_no_heartbeat": "uninterruptible_io",
    "renamed_ranks": "dataloader_stall",
    "device_stuck": "symmetric_hang",
    "xid_79": "gpu_fault",
    "kernel_without_end": "behind_collective",
    "odd_gpu_in_named_collective": "behind_collective",
    "idle_gpu_in_named_collective": "gpu_fault",
    "nvml_hang": "gpu_driver_stuck",
    "mtu_mismatch": "misconfigured",
    "ecc_uncorrected": "gpu_fault",
    "gpu_recovery_action": "gpu_fault",
    "pcie_lanes_lost": "gpu_fault",
    "pcie_fatal_error": "gpu_fault",
    "row_remap_failed": "gpu_fault",
    "fabric_state_lost": "fabric_fault",
    "link_cut": "symmetric_hang",
    "rank0_reads_loss_hung": "dataloader_stall",
    "fewer_micro_batches": "mismatched_collective",
    **{
        f"early_hang_{name}_{step}": cause
        for step in (0, 2, 12)
        for name, cause in {
            "dataloader_sleep": "dataloader_stall",
            "busy_loop": "busy_loop",
            "lock_deadlock": "lock_deadlock",
            "conditional_collective": "conditional_collective",
            "checkpoint_fifo": "checkpoint_stall",
        }.items()
    },
    **{
        f"stranger_{name}": "lock_deadlock"
        for name in (
            "ddp",
            "fsdp2",
            "pipelining",
            "accelerated",
            "lightning_fit",
            "transformers_trainer",
        )
    },
}
HEALTHY = [
    "gpu_errors_beside_eval",
    "long_checkpoint",
    "unmarked_checkpoint",
    "eval_loop",
    "unmarked_eval",
    "eval_on_rank0",
    "compile_first_step",
    "long_imports",
    "late_node",
    "late_rank",
    "first_download",
    "compile_cache_lock",
    "rank0_download",
    "subprocess_upload",
    "grad_accumulation",
    "ten_times_slower",
    "gc_pause",
    "elastic_restart",
    "agent_dies",
    "tower_restart_healthy",
    "tower_unreachable",
    "staggered_exit",
    "rank0_finishes_late",
    "rare_pause",
    "cancel",
    "suspend_all",
    "stop_in_turn",
    "rerun",
    "restart_counts_differ",
    "clock_step",
    "co_located_jobs",
    "rank0_reads_loss",
    "graph_replay",
    "recompile",
    "first_collective",
    "device_bound_steps",
    "idle_server",
]
VARIABLES = Variables(settings=DrillSettings(), rank=3, ranks=8, step=12)

each_drill = pytest.mark.parametrize("drill", DRILLS, ids=lambda drill: drill.name)


@pytest.fixture(scope="module")
def programs():
    """Import the training programs' plan and faults, which no package contains."""
    sys.path.insert(0, str(PROGRAMS))
    found = {}
    for name in ("plan", "faults"):
        spec = importlib.util.spec_from_file_location(f"drill_{name}", PROGRAMS / f"{name}.py")
        found[name] = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = found[name]
        spec.loader.exec_module(found[name])
    yield found
    sys.path.remove(str(PROGRAMS))
    for name in ("drill_plan", "drill_faults", "report"):
        sys.modules.pop(name, None)


def test_every_documented_drill_exists_with_its_answer():
    assert {drill.name: drill.expected.cause for drill in DRILLS if drill.is_fault} == FAULTS
    assert [drill.name for drill in DRILLS if not drill.is_fault] == HEALTHY


@each_drill
def test_the_right_answer_is_one_the_tower_can_give(drill):
    causes = {cause.value for cause in Cause}
    statuses = {status.value for status in Status}
    assert drill.expected.cause is None or drill.expected.cause in causes
    assert statuses.issuperset(drill.expected.statuses)
    assert drill.expected.passes is None or drill.expected.passes in statuses


@each_drill
def test_every_drill_has_a_sentence_and_a_backend(drill):
    assert drill.shows
    assert not drill.shows.endswith(".")
    assert drill.backends
    assert set(drill.backends) <= set(BACKENDS)
    assert set(drill.networked) <= set(drill.backends)
    assert all(PROGRAM[drill.parallelism][backend].is_file() for backend in drill.backends)


@each_drill
def test_the_training_program_understands_the_plan(drill, programs, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(drill.plan(VARIABLES)))
    plan = programs["plan"].read_plan(str(path))
    for event in plan.events:
        assert event["act"] in programs["faults"].ACTS
        assert event["when"] in ("setup", "optimizer_end", "before_step")
        assert event["rank"] in (*range(VARIABLES.ranks), None)
    for name in plan.exchanges:
        for backend in drill.backends:
            # The programs of `queued` inherit from those of `torch`.
            bases = ("torch", "queued") if backend == "queued" else (backend,)
            files = {PROGRAM[kind][base] for base in bases for kind in ("data", drill.parallelism)}
            assert any(f"    def {name}(self, " in path.read_text() for path in files)


NO_HEARTBEAT = [drill for drill in DRILLS if drill.name.endswith("_no_heartbeat")]


@pytest.mark.parametrize("drill", NO_HEARTBEAT)
def test_a_job_without_heartbeats_has_the_answer_of_the_one_with_them(drill):
    with_heartbeats = find_drill(drill.name.removesuffix("_no_heartbeat"))
    assert drill.expected == with_heartbeats.expected
    assert drill.plan(VARIABLES) == {**with_heartbeats.plan(VARIABLES), "beats": False}
    assert drill.backends == with_heartbeats.backends


EARLY = [drill for drill in DRILLS if drill.name.startswith("early_hang_")]


@pytest.mark.parametrize("drill", EARLY, ids=lambda drill: drill.name)
def test_an_early_hang_has_the_answer_of_its_fault_and_a_deadline(drill, programs, tmp_path):
    name, _, step = drill.name.removeprefix("early_hang_").rpartition("_")
    later = find_drill(name)
    assert drill.expected == replace(later.expected, within_s=drill.expected.within_s)
    is_busy = drill.name == "early_hang_busy_loop_0"  # it may as well prepare its data
    assert drill.expected.within_s == (70.0 if is_busy else 20.0)
    assert drill.step == int(step)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(drill.plan(replace(VARIABLES, step=drill.step))))
    plan = programs["plan"].read_plan(str(path))
    assert [event["step"] for event in plan.events] == [drill.step]
    if plan.checkpoint is not None:
        due = [step for step in range(20) if programs["plan"].is_due(plan.checkpoint, step)]
        assert due[0] == drill.step


def test_the_step_of_the_fault_is_given_or_drawn_after_the_warm_up():
    late, early = find_drill("dataloader_sleep"), find_drill("early_hang_dataloader_sleep_2")
    assert choose_step(Request(drill=early, config=Config())) == 2
    assert choose_step(Request(drill=early, step=7, config=Config())) == 7
    assert choose_step(Request(drill=late, step=0, config=Config())) == 0
    drawn = {choose_step(Request(drill=late, config=Config())) for _ in range(50)}
    assert drawn <= set(range(12, 17))
    with pytest.raises(DrillError, match="--step -1: allowed is 0 or more"):
        Request(drill=late, step=-1, config=Config())


def test_who_is_to_blame_where_it_is_not_one_rank():
    assert find_drill("symmetric").blames(3) == ()
    assert find_drill("collective_cycle").blames(3) == (2, 3)
    assert find_drill("collective_cycle").blames(4) == (4, 5)


@pytest.mark.parametrize(("ranks", "allowed"), [(2, "4 or more"), (5, "an even number")])
def test_a_grid_of_ranks_asks_for_pairs(ranks, allowed):
    drill = find_drill("tp_dp_cascade")
    with pytest.raises(DrillError, match=f"--ranks {ranks}: allowed is {allowed}"):
        Request(drill=drill, ranks=ranks, config=Config())


def test_lists_of_drills_that_are_tested_otherwise_name_drills():
    listed = {*LEFT_OUT, *NEED_MORE}
    assert listed <= {drill.name for drill in DRILLS}


def test_training_programs_know_nothing_of_the_product():
    for path in PROGRAMS.rglob("*.py"):
        text = path.read_text()
        assert "import watchtower\n" not in text, path
        assert "from watchtower." not in text, path
        assert "import agent" not in text, path


def test_every_stranger_says_which_library_it_follows_and_passes_every_moment():
    strangers = [path for path in PROGRAMS.glob("strangers/*.py") if path.stem != "script"]
    assert len(strangers) == len([name for name in FAULTS if name.startswith("stranger_")])
    for path in strangers:
        text = path.read_text()
        assert re.search(r"(torch|accelerate|lightning|transformers)[ (]+\d+\.\d+", text), path
        for place in ('.visit("joined")', ".begin_step(", ".end_step(", '.visit("exit")'):
            assert place in text, (path, place)


def test_a_drill_without_its_library_says_which_one_it_needs():
    with pytest.raises(DrillError, match="needs no_such_library, which is not installed"):
        choose_backend("stdlib", ("stdlib",), libraries=("json", "no_such_library"))


def test_without_root_nothing_is_started_for_an_attack(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(DrillError, match="must run as root"):
        find_drill("hostile_neighbour").act(None)


def test_a_drill_nobody_knows_is_refused_with_a_way_on():
    with pytest.raises(DrillError) as caught:
        find_drill("nonsense")
    assert "--list" in caught.value.help_text


def test_the_list_names_every_drill():
    listed = list_drills()
    assert all(f"  {drill.name} " in listed for drill in DRILLS)
