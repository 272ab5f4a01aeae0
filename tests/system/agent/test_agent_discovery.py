"""Discovery of real processes: after a restart of the agent, too, and by a dump before it."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.children import ChildRunner
from agent.clocks import read_moment
from agent.dumpers.dumper import Target
from agent.dumpers.python_stacks import PythonStacks
from agent.procfs import CLOCK_TICKS_PER_S, Proc, parse_fields
from agent.ranks.discovery import Discovery
from agent.ranks.found_rank import FoundRank
from agent.ranks.owners import find_user
from agent.ranks.pages import is_local_mount
from agent.ranks.process_table import ProcessTable
from tests.agent.agent_scene import RecordingTower, a_taker
from tests.system.agent.agent_processes import PROGRAMS, STOPS_S, Victim
from tests.system.agent.test_agent_end_to_end import Run, reported
from tests.system.e2e.other_users import JOB_USER, become, needs_other_users
from tests.waiting import PATIENCE_S, wait_until

Start = Callable[..., Victim]
Find = Callable[[], list[FoundRank]]

OBEYS = shlex.quote(str(PROGRAMS / "obeys.py"))
SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
RANK = "import time\nwhile time.process_time() < 1: pass"
START_CHILD = f"child = subprocess.Popen([sys.executable, '-c', {SLEEPER!r}], stdout=-1)"
FORK = "pid = os.fork(); pid or sleep_in_a_loader(); print(pid, flush=True)"


def a_discovery(mark: str, **match: str) -> Discovery:
    proc = Proc()
    return Discovery(
        proc,
        ProcessTable(proc),
        match={"WATCHTOWER_TEST": mark, **match},
        host="gpu-1",
        own_pid=-1,
    )


def found(discovery: Discovery) -> list[FoundRank]:
    """Tick until there is a rank: beside many other processes one tick does not come to all."""
    ranks: list[FoundRank] = wait_until(lambda: discovery.tick(time.monotonic()), "a rank is found")
    return ranks


def pids(found: list[FoundRank]) -> set[int]:
    return {rank.process.pid for rank in found}


def test_a_process_with_a_rank_in_its_environment_is_found(start: Start, find: Find) -> None:
    victim = start(RANK="3", WORLD_SIZE="8", LOCAL_RANK="1", WATCHTOWER_JOB="llama")
    (rank,) = find()
    assert rank.process.pid == victim.pid
    assert rank.job.name == "llama"
    assert (rank.claim.rank, rank.claim.world_size, rank.claim.local_rank) == (3, 8, 1)
    assert rank.page is not None


def test_a_job_of_a_drill_is_marked_by_every_agent_but_the_drill_s_own(
    start: Start, mark: str
) -> None:
    node = "WATCHTOWER_DRILL_NODE"
    start(RANK="0", WATCHTOWER_JOB="x", SLURM_JOB_NAME="pt", **{node: "stage/drill-a"})
    discovery = a_discovery(mark)
    (rank,) = found(discovery)
    assert rank.job.name == "drill:x"
    (labels,) = discovery.job_labels()
    assert (labels.job, labels.owner, labels.launch, labels.name) == (*rank.job, "pt")
    (rank,) = found(a_discovery(mark, **{node: "stage/drill-a"}))
    assert rank.job.name == "x"


def test_a_launcher_whose_ranks_have_ended_does_not_wait_for_them(
    start: Start, mark: str, tmp_path: Path
) -> None:
    torchrun = tmp_path / "torchrun"
    torchrun.symlink_to(PROGRAMS / "obeys.py")
    options = ("--nnodes", "2", "--rdzv-endpoint", "gpu-1:29500", "train.py")
    launcher = start([sys.executable, str(torchrun), *options])
    discovery = a_discovery(mark)

    def waits() -> list[int]:
        discovery.tick(time.monotonic())
        return [each.pid for each in discovery.find_waiting()]

    assert wait_until(waits, "a launcher waits") == [launcher.pid]
    launcher.do(f"subprocess.run([sys.executable, '-c', {RANK!r}])")
    assert waits() == []


def test_a_process_without_a_rank_is_none(start: Start, find: Find) -> None:
    start(WORLD_SIZE="8")
    assert find() == []


def test_the_agent_and_what_it_starts_are_no_ranks(start: Start, mark: str) -> None:
    victim = start(RANK="0")
    proc = Proc()
    match = {"WATCHTOWER_TEST": mark}
    by_the_agent = Discovery(
        proc, ProcessTable(proc), match=match, host="gpu-1", own_pid=os.getpid()
    )
    assert by_the_agent.tick(0.0) == []
    assert pids(found(a_discovery(mark))) == {victim.pid}


def test_a_program_executed_by_a_rank_is_no_rank(start: Start, find: Find) -> None:
    victim = start(RANK="0", WATCHTOWER_HEARTBEAT="off")
    victim.do(START_CHILD)
    victim.do("child.stdout.read(2)")
    assert pids(find()) == {victim.pid}
    assert pids(find()) == {victim.pid}


def test_a_forked_worker_is_no_rank_and_its_page_is_its_parents(start: Start, find: Find) -> None:
    victim = start(RANK="0")
    victim.do("beat(7)")
    victim.do(FORK)
    for _ in range(3):
        (rank,) = find()
        assert rank.process.pid == victim.pid
        assert rank.page is not None
        assert rank.page.read().step == 7


def test_a_worker_that_outlives_its_rank_does_not_become_one(start: Start, find: Find) -> None:
    victim = start(RANK="0", WATCHTOWER_HEARTBEAT="off")
    worker = int(victim.do(FORK))
    assert pids(find()) == {victim.pid}
    victim.process.kill()
    victim.process.wait()
    assert os.path.exists(f"/proc/{worker}")
    assert find() == []


def test_a_page_wins_over_the_process_above_it(start: Start, find: Find) -> None:
    victim = start(RANK="0", WATCHTOWER_HEARTBEAT="off")
    assert pids(find()) == {victim.pid}
    victim.do("os.environ['WATCHTOWER_HEARTBEAT'] = ''")
    program = f"import watchtower_heartbeat; {SLEEPER}"
    victim.do(f"child = subprocess.Popen([sys.executable, '-c', {program!r}], stdout=-1)")
    child = int(victim.do("child.stdout.read(2); print(child.pid)"))
    assert pids(find()) == {child}


def test_a_rank_named_at_run_time_is_found_by_its_page(start: Start, find: Find) -> None:
    victim = start()
    assert find() == []
    victim.do("hb = Heartbeat(job='ray-job', rank=5, world_size=9); hb.beat(1)")
    (rank,) = find()
    assert (rank.process.pid, rank.job.name) == (victim.pid, "ray-job")
    assert (rank.claim.rank, rank.claim.world_size) == (5, 9)


def test_a_job_name_on_the_page_wins_over_the_environment(start: Start, find: Find) -> None:
    victim = start(RANK="0", WATCHTOWER_JOB="outside")
    assert [rank.job.name for rank in find()] == ["outside"]
    victim.do("hb = Heartbeat(job='inside'); hb.beat(1)")
    assert [rank.job.name for rank in find()] == ["inside"]


def test_only_what_matches_is_watched(start: Start, mark: str) -> None:
    start(RANK="0", NODE="a")
    victim = start(RANK="1", NODE="b")
    assert pids(found(a_discovery(mark, NODE="b"))) == {victim.pid}


def test_a_page_in_a_directory_is_found_like_any_other(
    start: Start, find: Find, tmp_path: object
) -> None:
    victim = start(RANK="0", WATCHTOWER_HEARTBEAT_DIR=str(tmp_path))
    victim.do("beat(3)")
    (rank,) = find()
    assert rank.page is not None
    assert rank.page.read().step == 3


def test_a_program_that_executes_itself_anew_gets_its_new_page(start: Start, find: Find) -> None:
    victim = start(RANK="0")
    victim.do("beat(100)")
    (before,) = find()
    victim.begin("os.execv(sys.executable, [sys.executable, sys.argv[0]])")
    victim.wait_for("ready")
    victim.do("beat(1)")
    (after,) = find()
    assert after.process is before.process
    assert after.page is not None
    assert after.page.read().step == 1


def test_the_program_in_a_shell_is_the_rank(start: Start, find: Find) -> None:
    command = f"{shlex.quote(sys.executable)} {OBEYS} | cat; true"
    victim = start(["/bin/sh", "-c", command], RANK="0", WATCHTOWER_HEARTBEAT="off")
    python = int(victim.do("print(os.getpid())"))
    assert python != victim.pid
    assert pids(find()) == {python}


def test_ranks_of_one_launcher_share_the_name_of_their_program(start: Start, mark: str) -> None:
    for rank in ("0", "1"):
        start(RANK=rank, MASTER_ADDR="127.0.0.1", MASTER_PORT="29500", USER="alice")
    launcher = Proc().stat(os.getpid())
    assert launcher is not None
    began_at = read_moment().booted_at + launcher.start_time / CLOCK_TICKS_PER_S
    began = time.strftime("%H:%M", time.gmtime(began_at))
    for discovery in (a_discovery(mark), a_discovery(mark)):  # an agent, and the next one
        first, second = found(discovery)
        assert first.job == second.job
        assert first.job.name == f"obeys.py on gpu-1 (alice, {began})"


def test_a_job_keeps_the_name_of_its_launcher_s_program(start: Start, mark: str) -> None:
    rank = {"RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    code = f"child = subprocess.Popen([sys.executable, '-c', {SLEEPER!r}], env=os.environ | {rank})"
    launcher = start(USER="alice")
    launcher.do(code)
    discovery = a_discovery(mark)
    (before,) = found(discovery)
    assert before.job.name.startswith("obeys.py on gpu-1 (alice, ")
    launcher.process.kill()
    launcher.process.wait()
    (after,) = discovery.tick(time.monotonic())
    assert not next(after.process.lineage()).alive
    assert after.job == before.job
    os.kill(after.pid, signal.SIGKILL)


def test_two_starts_with_one_name_are_two_launches(start: Start, find: Find) -> None:
    for port in ("29500", "29600"):
        for rank in ("0", "1"):
            start(RANK=rank, WATCHTOWER_JOB="mine", MASTER_ADDR="localhost", MASTER_PORT=port)
    launches = {rank.job: rank.launch for rank in find()}
    assert {job.name for job in launches} == {"mine"}
    launcher = Proc().stat(os.getpid())
    assert launcher is not None
    assert {(each.rendezvous, each.network, each.launcher) for each in launches.values()} == {
        (
            f"localhost:{port}",
            os.readlink("/proc/self/ns/net"),
            f"{os.getpid()} {launcher.start_time}",
        )
        for port in ("29500", "29600")
    }


@needs_other_users
def test_another_user_s_process_with_the_environment_of_a_job_is_of_another_job(
    start: Start, find: Find
) -> None:
    same = {"RANK": "0", "WATCHTOWER_JOB": "llama", "WATCHTOWER_HEARTBEAT": "off"}
    command = ["/bin/sleep", "600"]
    mine = start(command, expect=False, **same)
    other = start([*become(JOB_USER, []), *command], expect=False, **same)
    wait_until(lambda: Proc().name(other.pid) == "sleep", "it has become the other user")
    ranks = {rank.pid: rank.job[:2] for rank in find()}
    assert ranks == {
        mine.pid: ("llama", f"uid:{os.getuid()}"),
        other.pid: ("llama", f"uid:{JOB_USER}"),
    }


IN_A_NAMESPACE = """
import ctypes, os, time
os.setgroups([]); os.setresgid(*[{user}] * 3); os.setresuid(*[{user}] * 3)
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(4, 1, 0, 0, 0)  # else its files in /proc stay root's
print("made" if libc.unshare(0x10000000) == 0 else "refused", flush=True)
print("ready", flush=True)
input()
os.setuid(0)
print("done", flush=True)
time.sleep(600)
"""


@needs_other_users
def test_inside_a_user_namespace_a_process_belongs_to_who_made_it(start: Start) -> None:
    """As in a rootless container, where a user has thousands of user ids for the host."""
    program = IN_A_NAMESPACE.format(user=JOB_USER)
    inside = start([sys.executable, "-c", program], expect=False)
    if "made" not in inside.wait_for("ready"):
        pytest.skip("this kernel lets no user make a user namespace")
    Path(f"/proc/{inside.pid}/uid_map").write_text("0 100000 1\n")
    inside.do("")
    status = parse_fields(Proc().try_read(inside.pid, "status"))
    assert status["Uid"].split()[0] == "100000"
    assert find_user(Proc(), inside.pid) == JOB_USER
    assert find_user(Proc(), os.getpid()) == os.getuid()


def test_an_overlay_that_a_user_can_have_mounted_is_not_opened(start: Start) -> None:
    """Its files may be those of a FUSE program of the user, which never answers."""
    flags = "0x10020000"  # CLONE_NEWUSER | CLONE_NEWNS
    program = (
        f"import ctypes, time\nmade = ctypes.CDLL(None).unshare({flags}) == 0\n"
        "print('made\\n' if made else '', 'ready', sep='', flush=True)\ntime.sleep(600)"
    )
    inside = start([sys.executable, "-c", program], expect=False)
    if "made" not in inside.wait_for("ready"):
        pytest.skip("this kernel lets no user make a user namespace")
    proc, mounts = Proc(), b"7 1 0:1 / / rw - overlay overlay rw\n8 1 0:2 / /t rw - tmpfs t rw\n"
    assert not is_local_mount(proc, inside.pid, mounts, "7")
    assert is_local_mount(proc, inside.pid, mounts, "8")
    assert is_local_mount(proc, os.getpid(), mounts, "7")


def test_a_process_beside_the_launcher_s_family_is_not_launched(start: Start, find: Find) -> None:
    """Two ranks have one parent; a third process has a shell of its own above it."""
    family = [start(RANK=rank, WATCHTOWER_JOB="llama") for rank in ("0", "1")]
    command = f"RANK=0 {shlex.quote(sys.executable)} {OBEYS}; true"
    by_hand = start(["/bin/sh", "-c", command], WATCHTOWER_JOB="llama")
    python = int(by_hand.do("print(os.getpid())"))
    launched = {rank.pid: rank.launched for rank in find()}
    assert launched == {family[0].pid: True, family[1].pid: True, python: False}
    family[0].close()
    wait_until(lambda: not os.path.exists(f"/proc/{family[0].pid}"), "the process is gone")
    assert {rank.pid: rank.launched for rank in find()} == {family[1].pid: True, python: False}


def test_a_rank_that_ended_is_not_found_any_more(start: Start, find: Find) -> None:
    victim = start(RANK="0")
    assert pids(find()) == {victim.pid}
    victim.close()
    wait_until(lambda: not os.path.exists(f"/proc/{victim.pid}"), "the process is gone")
    assert find() == []


def test_a_rank_that_has_let_go_of_its_memory_keeps_its_name(start: Start, find: Find) -> None:
    victim = start(RANK="0", WORLD_SIZE="2", MASTER_ADDR="10.0.0.1", MASTER_PORT="29500")
    (before,) = find()
    victim.process.kill()
    wait_until(lambda: (s := Proc().stat(victim.pid)) and s.state == "Z", "it is a zombie")
    (after,) = find()
    assert (after.job, after.claim) == (before.job, before.claim)
    assert after.job.name.startswith("obeys.py on 10.0.0.1:29500")


def test_its_last_report_says_that_it_stops(
    tower: RecordingTower, ranks: list[Victim], run_agent: Run
) -> None:
    agent = run_agent(tower.url, "--interval", "30")
    # A busy machine may delay the first report, or the first one may have no rank yet.
    wait_until(lambda: tower.reports and tower.reports[-1].get("ranks"), "it reports", 100.0)
    agent.process.send_signal(signal.SIGTERM)
    assert agent.process.wait(STOPS_S) == 0
    assert [report.get("stopping", False) for report in tower.reports[-2:]] == [False, True]
    assert len(tower.reports[-1]["ranks"]) == len(ranks)


def test_an_agent_that_does_not_watch_a_process_reports_its_end_if_the_tower_asks(
    tower: RecordingTower, ranks: list[Victim], run_agent: Run
) -> None:
    agent = run_agent(tower.url)
    known = reported(tower)
    agent.process.send_signal(signal.SIGTERM)
    assert agent.process.wait(STOPS_S) == 0
    tower.missing = [{key: known[r][key] for key in ("pid", "start_time")} for r in (0, 1)]
    run_agent(tower.url, "--match", "OTHER=1")
    before, boot = len(tower.reports), tower.reports[-1]["boot"]
    assert boot
    wait_until(lambda: len(tower.reports) > before + 3, "the next agent reports")
    assert tower.reports[-1]["boot"] == boot
    assert (tower.reports[-1]["ranks"], tower.reports[-1]["gone"]) == ([], [])
    os.kill(ranks[0].pid, signal.SIGKILL)
    wait_until(lambda: tower.reports[-1]["gone"], "a process has ended")
    assert tower.reports[-1]["gone"] == tower.missing[:1]


STEP = 4


def steps_of(victim: Victim, *, is_sample: bool) -> int:
    """Return the step in a dump of a rank without a known page."""
    stat = Proc().stat(victim.pid)
    assert stat is not None
    target = Target(rank=0, pid=victim.pid, start_time=stat.start_time, read_page=lambda: None)
    taker = a_taker(Proc(), PythonStacks(ChildRunner(), ""))
    taken = taker.take([target], deadline=time.monotonic() + PATIENCE_S, is_sample=is_sample)
    return taken.ranks[0].step


def test_a_dump_finds_the_page_itself(start: Callable[..., Victim]) -> None:
    victim = start(RANK="0")
    victim.do(f"for step in range({STEP + 1}): beat(step)")
    assert steps_of(victim, is_sample=False) == STEP


def test_a_sample_searches_none(start: Callable[..., Victim]) -> None:
    victim = start(RANK="0")
    victim.do(f"for step in range({STEP + 1}): beat(step)")
    assert steps_of(victim, is_sample=True) == -1


def test_the_page_of_a_parent_is_not_that_of_its_child(start: Callable[..., Victim]) -> None:
    victim = start(RANK="0")
    victim.do(f"for step in range({STEP + 1}): beat(step)")
    pid = int(victim.do("pid = os.fork(); pid or sleep_in_a_loader(); print(pid)"))
    stat = Proc().stat(pid)
    assert stat is not None
    target = Target(rank=0, pid=pid, start_time=stat.start_time, read_page=lambda: None)
    taker = a_taker(Proc(), PythonStacks(ChildRunner(), ""))
    (dump,) = taker.take([target], deadline=time.monotonic() + PATIENCE_S).ranks
    assert dump.step == -1
