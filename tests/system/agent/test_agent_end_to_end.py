"""The agent as a process, against real ranks and a tower that records."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from agent.dumps.contents import children_by_parent
from agent.procfs import Proc
from tests.agent.agent_scene import RecordingTower
from tests.system.agent.agent_processes import STOPS_S, RunningAgent, Victim, clean_environment
from tests.waiting import wait_until

pytestmark = [pytest.mark.ptrace, pytest.mark.usefixtures("ptrace")]


def children_of(pid: int) -> list[int]:
    return children_by_parent(Proc()).get(pid, [])


Start = Callable[..., Victim]
Run = Callable[..., RunningAgent]


def reported(tower: RecordingTower, count: int = 2) -> dict[int, dict[str, Any]]:
    wait_until(
        lambda: len(tower.ranks()) == count and all(r["beat"] for r in tower.ranks().values()),
        f"{count} ranks with beats are reported",
    )
    return tower.ranks()


def test_ranks_are_reported_with_their_beats(
    tower: RecordingTower, ranks: list[Victim], run_agent: Run
) -> None:
    agent = run_agent(tower.url)
    found = reported(tower)
    assert {rank: found[rank]["pid"] for rank in found} == {0: ranks[0].pid, 1: ranks[1].pid}
    assert found[0]["job"] == "llama"
    assert found[0]["world_size"] == 2
    assert found[0]["beat"]["step"] == 2
    assert tower.reports[-1]["node"] == "n1"
    first_line = agent.output().splitlines()[0]
    assert f"node n1 reports to {tower.url} every 0.2 s" in first_line


def test_steps_are_counted_between_reports(
    tower: RecordingTower, ranks: list[Victim], run_agent: Run
) -> None:
    run_agent(tower.url)
    reported(tower)
    ranks[0].do("for step in range(3, 43): beat(step); time.sleep(0.01)")
    wait_until(lambda: tower.ranks()[0]["beat"]["step"] == 42, "the last step is reported")
    advanced = [
        rank["beat"]["advanced"]
        for report in tower.reports
        for rank in report["ranks"]
        if rank["rank"] == 0 and rank["beat"]
    ]
    assert sum(advanced) == 40


def test_it_reports_less_often_while_the_tower_asks_for_that(
    tower: RecordingTower, ranks: list[Victim], run_agent: Run
) -> None:
    tower.report_interval_s = 0.5
    run_agent(tower.url)
    reported(tower)
    wait_until(lambda: tower.reports[-1]["interval_s"] == 0.5, "it reports every half second")
    tower.report_interval_s = 0.1
    wait_until(lambda: tower.reports[-1]["interval_s"] == 0.2, "it reports as it is set to")


def test_a_rank_that_stalls_is_dumped_twice_a_second_apart_with_its_peers(
    tower: RecordingTower, ranks: list[Victim], run_agent: Run
) -> None:
    ranks[0].begin("sleep_in_a_loader()")
    tower.deadline_s = 1.0
    run_agent(tower.url)
    wait_until(lambda: len(tower.dumps) >= 2, "two rounds arrive")
    first, second = tower.dumps[:2]
    assert [first["round"], second["round"]] == [1, 2]
    assert first["reason"] == "deadline"
    assert first["id"] != second["id"]
    for batch in (first, second):
        stacks = {stack["digest"]: stack["frames"] for stack in batch["stacks"]}
        dumps = {dump["rank"]: dump for dump in batch["ranks"]}
        assert set(dumps) == {0, 1}
        assert stacks[dumps[0]["threads"][0]["digest"]][0]["function"] == "sleep_in_a_loader"
        assert dumps[0]["step"] == 2
        assert dumps[1]["kernel"]["syscall"] == "read"
    seen = len(tower.reports)
    wait_until(lambda: len(tower.reports) > seen + 10, "two seconds of reports")
    assert len(tower.dumps) == 2  # a stall is dumped once


def test_a_rank_is_dumped_at_its_deadline_and_not_at_the_next_report(
    tower: RecordingTower, start: Start, run_agent: Run
) -> None:
    victim = start(RANK="0", WATCHTOWER_JOB="llama")
    victim.do("beat(1)")
    tower.deadline_s = 3.0
    run_agent(tower.url, "--interval", "10")
    reported(tower, 1)
    victim.do("beat(2)")
    beaten = time.monotonic()
    wait_until(lambda: tower.dumps, "a dump arrives")
    assert 2.9 < time.monotonic() - beaten < 6.0


def test_a_rank_that_beats_is_not_dumped(
    tower: RecordingTower, start: Start, run_agent: Run
) -> None:
    victim = start(RANK="0", WATCHTOWER_JOB="llama")
    victim.do("beat(1)")
    victim.begin("for step in range(2, 10000): beat(step); time.sleep(0.02)")
    tower.deadline_s = 3.0
    run_agent(tower.url)
    wait_until(lambda: len(tower.reports) > 25, "five seconds of reports")
    assert tower.dumps == []


def test_an_order_is_carried_out_once(
    tower: RecordingTower, ranks: list[Victim], run_agent: Run
) -> None:
    run_agent(tower.url)
    reported(tower)
    order = {"id": "order-1", "job": "llama", "expires_s": 10.0}
    tower.orders = [order, order]
    wait_until(lambda: len(tower.dumps) == 2, "two rounds arrive")
    assert {batch["reason"] for batch in tower.dumps} == {"order-1"}
    assert sorted(dump["rank"] for dump in tower.dumps[0]["ranks"]) == [0, 1]
    tower.orders = [order]
    seen = len(tower.reports)
    wait_until(lambda: len(tower.reports) > seen + 5, "more reports")
    assert len(tower.dumps) == 2


def test_an_order_for_what_was_not_found_is_refused_and_logged(
    tower: RecordingTower, ranks: list[Victim], run_agent: Run
) -> None:
    agent = run_agent(tower.url)
    reported(tower)
    tower.orders = [{"id": "o1", "job": "other", "expires_s": 10.0}]
    wait_until(
        lambda: agent.says("order o1 is refused: no rank of job 'other'"), "the refusal is logged"
    )
    assert tower.dumps == []


def test_when_the_tower_comes_back_the_dumps_taken_meanwhile_arrive(
    ranks: list[Victim], run_agent: Run
) -> None:
    tower = RecordingTower()
    tower.deadline_s = 4.0
    tower.dump_answers = [
        (503, b"{}")
    ] * 1000  # none arrives before it closes, however late that is
    agent = run_agent(tower.url)
    reported(tower)
    tower.close()
    wait_until(lambda: agent.says("waits for the tower"), "a dump waits")
    wait_until(lambda: agent.says("does not accept reports"), "the agent sees that it is gone")
    back = RecordingTower(tower.port)
    try:
        wait_until(lambda: len(back.dumps) == 2, "both rounds arrive", patience_s=60.0)
        assert back.dumps[0]["held_s"] > 0
        wait_until(lambda: back.reports, "reports arrive")
        assert agent.output().count("does not accept reports") == 1
        wait_until(lambda: agent.output().count("the tower accepts reports") == 2, "it is said")
    finally:
        back.close()


def test_dumps_outlive_the_agent_and_the_tower_and_arrive_once(
    ranks: list[Victim], run_agent: Run, tmp_path: Any
) -> None:
    """Both are gone in the middle of a hang, the agent by SIGKILL; each dump arrives once."""
    tower = RecordingTower()
    tower.deadline_s = 3.0
    spool = ("--spool-dir", str(tmp_path / "state"))
    agent = run_agent(tower.url, *spool)
    reported(tower)
    tower.close()
    kept = tmp_path / "state" / "dumps"
    wait_until(lambda: len(list(kept.glob("*.json"))) == 2, "both rounds are on disk")
    agent.process.kill()
    agent.process.wait()
    killed = time.monotonic()
    second = run_agent(tower.url, *spool)
    wait_until(lambda: second.says("2 dumps in"), "the next agent finds them")
    back = RecordingTower(tower.port)
    try:
        wait_until(lambda: len(back.dumps) == 2, "both arrive", patience_s=60.0)
        held = [batch["held_s"] for batch in back.dumps]
        assert all(time.monotonic() - killed < age < 120 for age in held)
        wait_until(lambda: not list(kept.glob("*.json")), "the spool is empty")
        seen = len(back.reports)
        wait_until(lambda: len(back.reports) > seen + 5, "a second of reports")
        assert len({batch["id"] for batch in back.dumps}) == len(back.dumps) == 2
        assert back.reports[-1]["limits"]["spool"] == ""
    finally:
        back.close()


def test_a_second_agent_on_the_same_spool_says_so_and_watches_all_the_same(
    tower: RecordingTower, ranks: list[Victim], run_agent: Run, tmp_path: Any
) -> None:
    spool = ("--spool-dir", str(tmp_path))
    run_agent(tower.url, *spool)
    wait_until((tmp_path / "dumps" / "lock").exists, "the first has it")
    reported(tower)
    second = run_agent(tower.url, *spool, "--node", "n2")
    wait_until(lambda: second.says("another agent uses this folder"), "it is said")
    told = lambda: [r for r in list(tower.reports) if r["node"] == "n2" and r["limits"]["spool"]]  # noqa: E731
    wait_until(told, "the tower is told")
    assert "dumps wait in memory only" in told()[0]["limits"]["spool"]


def test_a_rank_that_dies_is_reported_at_once_with_how(
    tower: RecordingTower, ranks: list[Victim], run_agent: Run
) -> None:
    run_agent(tower.url, "--interval", "10")
    reported(tower)
    ranks[1].process.kill()
    ranks[1].process.wait()
    killed = time.monotonic()
    wait_until(lambda: tower.ranks()[1]["ended"], "the end is reported")
    assert time.monotonic() - killed < 5.0
    ended = tower.ranks()[1]["ended"]
    assert (ended["kind"], ended["code"]) == ("signal", signal.SIGKILL)
    assert tower.ranks()[0]["ended"] is None


def test_it_stops_within_seconds_also_when_the_tower_does_not_answer(
    ranks: list[Victim], run_agent: Run
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        agent = run_agent(url, "--spool-dir", "/proc/no-spool")
        wait_until(lambda: agent.says("found rank 1"), "it runs")
        wait_until(lambda: agent.says("dumps wait in memory only"), "the spool cannot be used")
        agent.process.send_signal(signal.SIGTERM)
        assert agent.process.wait(STOPS_S) == 0


def test_it_stops_within_seconds_also_when_py_spy_hangs(
    tower: RecordingTower, ranks: list[Victim], run_agent: Run, tmp_path: Any
) -> None:
    tool = tmp_path / "py-spy"
    tool.write_text("#!/bin/sh\ntrap '' TERM\nsleep 600\n")
    tool.chmod(0o755)
    tower.deadline_s = 0.5
    agent = run_agent(tower.url, "--py-spy", str(tool))
    wait_until(lambda: children_of(agent.process.pid), "py-spy runs")
    agent.process.send_signal(signal.SIGINT)
    assert agent.process.wait(STOPS_S) == 0
    assert not children_of(agent.process.pid)


STUCK = """
import sys, time
from agent import cli, daemon
stick = lambda: print("stuck", flush=True) or [time.sleep(1) for _ in range(30)]
daemon.Agent._tick = lambda self, now: stick()
cli.main(["run", "--tower", "http://127.0.0.1:1", "--port", "0"])
"""


def test_it_stops_in_time_also_when_its_own_loop_hangs() -> None:
    agent = subprocess.Popen(
        [sys.executable, "-c", STUCK], env=clean_environment(), stdout=subprocess.PIPE, text=True
    )
    assert agent.stdout is not None
    with agent.stdout:
        while agent.stdout.readline() != "stuck\n":
            assert agent.poll() is None
        agent.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert agent.wait(30) == 0
    assert time.monotonic() - began < STOPS_S


TOOLS = {
    "ignores SIGTERM": "#!/bin/sh\ntrap '' TERM\nsleep 600\n",
    "left its group": "#!/bin/sh\nsetsid sleep 30 &\nsleep 600\n",
    "prints without end": "#!/bin/sh\nwhile echo y; do sleep 0.05; done\n",
}


@pytest.mark.parametrize("tool", TOOLS)
def test_whatever_py_spy_does_the_agent_stops_in_time(
    tower: RecordingTower, ranks: list[Victim], run_agent: Run, tmp_path: Any, tool: str
) -> None:
    file = tmp_path / "py-spy"
    file.write_text(TOOLS[tool])
    file.chmod(0o755)
    tower.deadline_s = 0.5
    agent = run_agent(tower.url, "--py-spy", str(file), "--spool-dir", str(tmp_path))
    wait_until(lambda: children_of(agent.process.pid), "py-spy runs")
    agent.process.send_signal(signal.SIGTERM)
    assert agent.process.wait(STOPS_S) == 0
    assert not children_of(agent.process.pid)


def test_a_rank_in_state_d_is_told_and_the_agent_still_stops_in_time(
    tower: RecordingTower, ranks: list[Victim], run_agent: Run
) -> None:
    """A parent waits in state D while the child that it made with vfork sleeps."""
    ranks[0].begin("import ctypes; c = ctypes.CDLL(None); c.vfork() or c.sleep(600) or c._exit(0)")
    stat = lambda: Proc().stat(ranks[0].pid)  # noqa: E731
    wait_until(lambda: (s := stat()) and s.state == "D", "it waits in state D")
    tower.deadline_s = 1.0
    agent = run_agent(tower.url)
    wait_until(lambda: tower.dumps, "a dump arrives")
    dumps = {dump["rank"]: dump for dump in tower.dumps[0]["ranks"]}
    assert dumps[0]["kernel"]["state"] == "D"
    assert dumps[0]["threads"]  # py-spy does not stop the process, so it is not held up itself
    agent.process.send_signal(signal.SIGTERM)
    assert agent.process.wait(STOPS_S) == 0
    assert (s := stat()) is not None
    assert s.state == "D"


def test_metrics_tell_ranks_and_the_agents_own_cost(
    tower: RecordingTower, ranks: list[Victim], run_agent: Run
) -> None:
    agent = run_agent(tower.url)
    reported(tower)
    url = re.search(r"http://127\.0\.0\.1:\d+/metrics", agent.output())
    assert url
    with urllib.request.urlopen(url[0], timeout=10) as response:
        text = response.read().decode()
    (node,) = set(re.findall(r'\{.*\bnode="([^"]+)"', text))
    assert f'watchtower_agent_ranks{{node="{node}"}} 2.0' in text
    for name in (
        f'watchtower_agent_report_failures_total{{node="{node}"}} 0.0',
        "watchtower_agent_tick_duration_seconds_count",
        f'watchtower_agent_dumps_waiting{{node="{node}"}} 0.0',
        f'watchtower_agent_dumps_dropped_total{{node="{node}",reason="full"}} 0.0',
        "watchtower_agent_build_info{",
        f'process_cpu_seconds_total{{node="{node}"}}',
    ):
        assert name in text


def test_a_taken_metrics_port_is_said_and_watching_goes_on(
    tower: RecordingTower, ranks: list[Victim], run_agent: Run
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        agent = run_agent(tower.url, "--port", str(taken.getsockname()[1]))
        reported(tower)
    assert agent.says("no metrics: cannot listen on 127.0.0.1:")


def test_one_process_that_cannot_be_read_does_not_stop_the_others(
    tower: RecordingTower, start: Start, ranks: list[Victim], run_agent: Run
) -> None:
    bad = start(RANK="2", WATCHTOWER_JOB="llama")
    bad.do("hb = Heartbeat(rank=99999999999)")
    bad.do("hb.beat(-7)")
    run_agent(tower.url)
    wait_until(lambda: {0, 1} <= set(tower.ranks()), "the good ones are reported")
