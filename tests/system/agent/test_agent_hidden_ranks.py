"""Ranks that hide without meaning to: with a title, with a rank set at run time, found late."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from agent.procfs import Proc
from agent.ranks.discovery import Discovery
from agent.ranks.found_rank import FoundRank
from agent.ranks.process_table import ProcessTable
from tests.system.agent.agent_processes import PROGRAMS, Victim, clean_environment
from tests.system.agent.test_agent_discovery import a_discovery, pids
from tests.waiting import wait_until
from watchtower.drills.compiling import find_compiler
from watchtower.wire.report import Unwatched

Start = Callable[..., Victim]
Find = Callable[[], list[FoundRank]]

SILENT = {"WATCHTOWER_HEARTBEAT": "off"}
TITLE = "set_title('trainer: step 12')"
SET_RANK = "os.environ.update(RANK='3', WORLD_SIZE='8')"
DEBIAN = "/usr/bin/python3"


def ranks(found: list[FoundRank]) -> dict[int, tuple[str, int, int | None]]:
    return {each.pid: (each.job.name, each.claim.rank, each.claim.world_size) for each in found}


def test_a_rank_with_a_title_is_found(start: Start, find: Find) -> None:
    victim = start(RANK="3", WORLD_SIZE="8", WATCHTOWER_JOB="llama", **SILENT)
    victim.do(TITLE)
    assert ranks(find()) == {victim.pid: ("llama", 3, 8)}


def test_a_rank_that_sets_its_title_later_stays_known(start: Start, find: Find) -> None:
    victim = start(RANK="3", WORLD_SIZE="8", WATCHTOWER_JOB="llama", **SILENT)
    assert ranks(find()) == {victim.pid: ("llama", 3, 8)}
    victim.do(TITLE)
    for _ in range(3):
        assert ranks(find()) == {victim.pid: ("llama", 3, 8)}


def test_a_rank_that_is_set_at_run_time_is_found(start: Start, find: Find) -> None:
    victim = start(WATCHTOWER_JOB="llama", **SILENT)
    assert find() == []
    victim.do(SET_RANK)
    assert ranks(find()) == {victim.pid: ("llama", 3, 8)}


def test_a_rank_set_at_run_time_under_a_title_is_found(start: Start, find: Find) -> None:
    victim = start(WATCHTOWER_JOB="llama", **SILENT)
    victim.do(TITLE)
    victim.do(SET_RANK)
    assert ranks(find()) == {victim.pid: ("llama", 3, 8)}


def test_what_a_rank_of_a_launcher_sets_at_run_time_gives_it_no_other_job(
    start: Start, find: Find
) -> None:
    victim = start(PMI_RANK="1", PMI_SIZE="2", **SILENT)
    (before,) = find()
    victim.do("os.environ.update(RANK='1', WORLD_SIZE='2', MASTER_ADDR='10.0.0.1')")
    (after,) = find()
    assert (after.job, after.claim.rank) == (before.job, 1)


def test_a_snapshot_finds_the_same_ranks(start: Start, mark: str) -> None:
    for statement in (TITLE, SET_RANK):
        victim = start(WATCHTOWER_JOB="llama", **({"RANK": "0"} if statement == TITLE else {}))
        victim.do(statement)
    program = (
        "from agent.snapshot.taking import SnapshotOptions as Options\n"
        "from agent.snapshot.taking import SnapshotTaker\n"
        f"options = Options(node='n1', match=(('WATCHTOWER_TEST', {mark!r}),))\n"
        "print(SnapshotTaker(options).find_ranks())"
    )
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, env=clean_environment(), capture_output=True, check=True)
    assert int(found.stdout) == 2


def test_the_copy_of_environ_in_an_executable_is_read(start: Start, find: Find) -> None:
    """Debian's python3 has the variable itself; the one of its C library is not used."""
    program = "import os\nos.environ['RANK'] = '5'\nprint('ready', flush=True)\ninput()"
    victim = start([DEBIAN, "-c", program], WORLD_SIZE="8", WATCHTOWER_JOB="llama")
    assert ranks(find()) == {victim.pid: ("llama", 5, 8)}


def test_a_program_that_executes_another_one_is_known_by_the_new_environment(
    start: Start, find: Find
) -> None:
    victim = start(RANK="3", WORLD_SIZE="8", WATCHTOWER_JOB="llama", **SILENT)
    assert ranks(find()) == {victim.pid: ("llama", 3, 8)}
    victim.begin("del os.environ['RANK']; os.execv(sys.executable, [sys.executable, sys.argv[0]])")
    victim.wait_for("ready")
    assert find() == []


def test_what_is_known_of_a_process_does_not_change_when_it_deletes_its_variables(
    start: Start, find: Find
) -> None:
    victim = start(WATCHTOWER_JOB="llama", **SILENT)
    victim.do(SET_RANK)
    assert ranks(find()) == {victim.pid: ("llama", 3, 8)}
    victim.do("os.environ.clear()")
    assert ranks(find()) == {victim.pid: ("llama", 3, 8)}


def test_ranks_of_a_parent_that_sets_their_numbers_are_found_and_it_is_not(
    start: Start, find: Find
) -> None:
    """As mp.spawn under srun: all inherit the rank of the task, and set their own."""
    parent = start(SLURM_PROCID="0", SLURM_NTASKS="1", SLURM_JOB_ID="7", **SILENT)
    parent.do("children = []")
    for rank in range(2):
        program = (
            f"import os, time; os.environ.update(RANK='{rank}', WORLD_SIZE='2'); "
            "print('up', flush=True); time.sleep(600)"
        )
        command = f"[sys.executable, '-c', {program!r}]"
        parent.do(f"children.append(subprocess.Popen({command}, stdout=-1))")
    parent.do("for child in children: child.stdout.read(2)")
    children = [int(word) for word in parent.do("print(*[c.pid for c in children])").split()]
    expected = {pid: ("slurm-7", rank, 2) for rank, pid in enumerate(children)}
    wait_until(lambda: ranks(find()) == expected, "both children are found")


def test_actors_on_workers_that_ray_started_before_their_job_are_of_it(
    start: Start, find: Find, tmp_path: Path
) -> None:
    """One worker was started in advance for any job. The other one was started for this job."""
    later = start(RAY_JOB_ID="01000000", RANK="1", WORLD_SIZE="2", **SILENT)
    log = f"{tmp_path}/worker-9f5fb21edd1846de-ffffffff-"
    program = (
        f"import os, sys; sys.stdout = open(f'{log}{{os.getpid()}}.out', 'w', buffering=1); "
        "os.dup2(sys.stdout.fileno(), 1); print(':job_id:01000000'); print(':actor_name:Trainer'); "
        "os.environ.update(RANK='0', WORLD_SIZE='2'); sys.stdin.read()"
    )
    first = start([sys.executable, "-c", program], expect=False, RAY_JOB_ID="ffffffff", **SILENT)
    expected = {later.pid: ("ray-01000000", 1, 2), first.pid: ("ray-01000000", 0, 2)}
    wait_until(lambda: ranks(find()) == expected, "both are of one job")


def test_the_workers_and_the_engine_of_an_inference_server_are_numbered(
    start: Start, find: Find
) -> None:
    """The engine is the last one. A process that a worker has forked has its title, too."""
    engine = start(**SILENT)
    engine.do("set_title('team-a::VLLM::EngineCore'); children = []")
    for place in ("TP1", "TP0"):
        program = (
            "import os, time; from watchtower.drills.programs.identity import set_title; "
            f"set_title('team-a::VLLM::Worker_{place}'); os.fork() and print('up', flush=True); "
            "time.sleep(600)"
        )
        command = f"[sys.executable, '-c', {program!r}]"
        engine.do(f"children.append(subprocess.Popen({command}, stdout=-1))")
    engine.do("for child in children: child.stdout.read(2)")
    second, first = (int(word) for word in engine.do("print(*[c.pid for c in children])").split())
    job = "gpu-1.vllm"
    numbers = {first: (job, 0, None), second: (job, 1, None), engine.pid: (job, 2, None)}
    wait_until(lambda: ranks(find()) == numbers, "the three are found")
    roles = {each.pid: each.claim.role for each in find()}
    assert roles == {first: "Worker_TP0", second: "Worker_TP1", engine.pid: "EngineCore"}


def test_the_tracker_of_spawned_ranks_is_no_rank(start: Start, find: Find, tmp_path: Path) -> None:
    """mp.spawn starts a tracker of resources first. It inherits the rank of the task."""
    program = tmp_path / "spawns.py"
    program.write_text(
        "import multiprocessing, os, time\n"
        "def train(rank):\n"
        "    os.environ.update(RANK=str(rank), WORLD_SIZE='2')\n"
        "    time.sleep(600)\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    ranks = [context.Process(target=train, args=(rank,)) for rank in range(2)]\n"
        "    for rank in ranks:\n"
        "        rank.start()\n"
        "    print(*[rank.pid for rank in ranks], flush=True)\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(600)\n"
    )
    command = [sys.executable, str(program)]
    parent = start(command, SLURM_PROCID="0", SLURM_NTASKS="1", SLURM_JOB_ID="7", **SILENT)
    children = [int(word) for word in parent.printed.split()]
    expected = {pid: ("slurm-7", rank, 2) for rank, pid in enumerate(children)}
    wait_until(lambda: ranks(find()) == expected, "both spawned ranks are found, and no others")


def test_a_parent_that_becomes_a_rank_late_is_found_with_its_children(
    start: Start, mark: str
) -> None:
    """As with Lightning: rank 0 starts the others, and its environment names no rank at first."""
    parent = start(WATCHTOWER_JOB="llama", WORLD_SIZE="2", NODE_RANK="0", **SILENT)
    discovery, began = a_discovery(mark), time.monotonic()
    for second in range(200):  # the checks of the parent are rare by now
        assert discovery.tick(began + second) == []
    program = "import time; print('up', flush=True); time.sleep(600)"
    parent.do("os.environ['LOCAL_RANK'] = '0'")
    parent.do(
        f"child = subprocess.Popen([sys.executable, '-c', {program!r}], stdout=-1, "
        "env={**os.environ, 'LOCAL_RANK': '1'})"
    )
    child = int(parent.do("child.stdout.read(2); print(child.pid)"))
    found = discovery.tick(began + 201) or discovery.tick(began + 202)
    assert pids(found) >= {child}
    found = discovery.tick(began + 203)
    assert ranks(found) == {parent.pid: ("llama", 0, 2), child: ("llama", 1, 2)}


def test_a_process_that_becomes_a_rank_late_is_found_soon(start: Start, mark: str) -> None:
    victim = start(WATCHTOWER_JOB="llama", **SILENT)
    discovery, began = a_discovery(mark), time.monotonic()
    for second in range(34):
        assert discovery.tick(began + second) == []
    victim.do(SET_RANK)
    late_s = next(s for s in range(34, 100) if discovery.tick(began + s)) - 34
    assert late_s <= 5


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count processes of every age."""
    monkeypatch.setattr("agent.ranks.discovery.YOUNG_S", 0.0)


def counts(unwatched: Iterable[Unwatched]) -> list[tuple[str, int]]:
    return [(each.reason, each.count) for each in unwatched]


def start_members(start: Start, path: Path, **environment: str) -> list[Victim]:
    program = str(PROGRAMS / "join_by_number.py")
    members = [
        start([sys.executable, program, str(path), str(rank), "2"], expect=False, **environment)
        for rank in range(2)
    ]
    for member in members:
        member.wait_until_ready()
    return members


@pytest.mark.usefixtures("at_once")
def test_a_worker_without_a_rank_is_counted_if_others_of_its_group_have_one(
    start: Start, mark: str
) -> None:
    engine = start(WATCHTOWER_JOB="llama", **SILENT)
    engine.do("set_title('VLLM::EngineCore')")
    program = (
        "import os, time; from watchtower.drills.programs.identity import set_title; "
        "set_title('VLLM::Worker_TP0'); os.environ['RANK'] = '0'; print('up', flush=True); "
        "time.sleep(600)"
    )
    engine.do(f"child = subprocess.Popen([sys.executable, '-c', {program!r}], stdout=-1)")
    child = int(engine.do("child.stdout.read(2); print(child.pid)"))
    discovery = a_discovery(mark)
    wait_until(lambda: pids(discovery.find_all()) == {child}, "the one with a rank is found")
    (entry,) = discovery.unwatched
    assert (entry.reason, entry.pids, entry.job) == ("not_like_group", (engine.pid,), "llama")


@pytest.mark.torch
@pytest.mark.usefixtures("at_once")
def test_members_of_a_process_group_without_a_rank_are_counted(
    start: Start, mark: str, tmp_path: Path
) -> None:
    members = start_members(start, tmp_path / "group", WATCHTOWER_JOB="llama", **SILENT)
    discovery = a_discovery(mark)
    wait_until(lambda: not discovery.tick(time.monotonic()) and discovery.unwatched, "counted")
    (entry,) = discovery.unwatched
    assert (entry.reason, entry.owner, entry.job) == ("no_rank", f"uid:{os.getuid()}", "llama")
    assert entry.pids == tuple(sorted(each.pid for each in members))
    assert discovery.find_all() == []
    for member in members:
        member.close()
    wait_until(lambda: not discovery.tick(time.monotonic()) and not discovery.unwatched, "ended")


@pytest.mark.torch
@pytest.mark.usefixtures("at_once")
def test_members_below_a_rank_that_only_waits_for_them_are_counted(
    start: Start, find: Find, mark: str, tmp_path: Path
) -> None:
    """As mp.spawn under srun, with the rank as an argument: they inherit the rank of the task."""
    parent = start(SLURM_PROCID="0", SLURM_NTASKS="1", SLURM_JOB_ID="7", **SILENT)
    parent.do("children = []")
    program = [sys.executable, str(PROGRAMS / "join_by_number.py"), str(tmp_path / "group")]
    for rank in ("0", "1"):
        parent.do(f"children.append(subprocess.Popen({[*program, rank, '2']!r}, stdout=-1))")
    parent.do("for child in children: child.stdout.readline()")
    discovery = a_discovery(mark)
    assert pids(discovery.find_all()) == {parent.pid}
    assert counts(discovery.unwatched) == [("no_rank", 2)]


@pytest.mark.torch
@pytest.mark.usefixtures("at_once")
def test_a_helper_of_a_rank_with_a_process_group_of_its_own_is_not_counted(
    start: Start, mark: str, tmp_path: Path
) -> None:
    """As the process that writes torch's asynchronous checkpoints."""
    victim = start(RANK="0", WORLD_SIZE="1", WATCHTOWER_JOB="llama", **SILENT)
    program = [sys.executable, str(PROGRAMS / "join_by_number.py")]
    victim.do("import torch.distributed as dist")
    group = f"init_method='file://{tmp_path / 'own'}', rank=0, world_size=1"
    victim.do(f"dist.init_process_group('gloo', {group})")
    arguments = [*program, str(tmp_path / "group"), "0", "1"]
    victim.do(f"child = subprocess.Popen({arguments!r}, stdout=-1)")
    victim.do("child.stdout.readline()")
    victim.do("os.fork() or sleep_in_a_loader()")
    discovery = a_discovery(mark)
    assert pids(discovery.find_all()) == {victim.pid}
    assert discovery.unwatched == ()


@pytest.mark.usefixtures("at_once")
def test_a_static_program_under_a_title_is_counted_with_the_reason(
    start: Start, tmp_path: Path
) -> None:
    program, source = tmp_path / "worker", PROGRAMS / "static_worker.c"
    subprocess.run([find_compiler() or "cc", "-static", "-o", program, source], check=True)
    start([str(program)], RANK="0", WATCHTOWER_JOB="llama")
    proc = Proc()
    discovery = Discovery(proc, ProcessTable(proc), match={}, host="gpu-1", own_pid=-1)
    discovery.find_all()
    (entry,) = [each for each in discovery.unwatched if each.reason == "hidden_environment"]
    assert entry.count == 1
    assert "its program is linked statically" in entry.text
