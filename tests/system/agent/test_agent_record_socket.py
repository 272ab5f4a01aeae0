"""Asking real processes for their collective records; one took the socket of another."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from agent.children import ChildRunner
from agent.dumpers.dumper import Target
from agent.dumpers.flight_recorder import SILENT, STOPPED
from agent.dumpers.python_stacks import PythonStacks
from agent.dumps.round import Round
from agent.procfs import Proc
from tests.agent.agent_scene import RecordingTower, a_taker, a_view
from tests.agent.dumpers.record_listeners import EMPTY, Listen, failure_of
from tests.system.agent.agent_processes import PROGRAMS, REPOSITORY, RunningAgent, Victim
from tests.waiting import PATIENCE_S, wait_until
from watchtower.wire.collectives import name_group
from watchtower.wire.dumps import RankDump


def take_round(victims: list[Victim]) -> Round:
    targets = []
    for rank, victim in enumerate(victims):
        stat_now = Proc().stat(victim.pid)
        assert stat_now is not None
        view = a_view(step=7, **json.loads(victim.printed))
        targets.append(
            Target(
                rank=rank,
                pid=victim.pid,
                start_time=stat_now.start_time,
                read_page=lambda view=view: view,
            )
        )
    taker = a_taker(Proc(), PythonStacks(ChildRunner(), ""))
    return taker.take(targets, deadline=time.monotonic() + PATIENCE_S)


@pytest.fixture
def gloo_job(start: Callable[..., Victim], tmp_path: Path) -> list[Victim]:
    """Two ranks; rank 0 waits in an all_reduce that rank 1 never enters."""
    if find_spec("torch") is None:
        pytest.skip("torch is not installed: make test-torch")
    folder = str(tmp_path)
    command = [sys.executable, str(PROGRAMS / "gloo_job.py")]
    processes = [start([*command, str(rank), folder], expect=False) for rank in range(2)]
    for process in processes:
        process.wait_until_ready()
        process.begin("go")
    return processes


@pytest.mark.torch
def test_a_rank_that_waits_for_one_that_never_comes(gloo_job: list[Victim]) -> None:
    def waits() -> Round | None:
        found = take_round(gloo_job)
        logs = {log.digest: log for log in found.group_logs}
        known = found.ranks[0].collectives
        assert known is not None
        return found if any(logs[each].called == 5 for each in known.logs) else None

    found = wait_until(waits, "rank 0 has called the last all_reduce")
    logs = {log.digest: log for log in found.group_logs}
    groups = {group.id: group for group in found.groups}

    def places(dump: RankDump) -> dict[str, tuple[int, int, int]]:
        assert dump.collectives is not None
        assert dump.collectives.failure == ""
        mine = [logs[digest] for digest in dump.collectives.logs]
        return {groups[log.group].name: (log.called, log.entered, log.completed) for log in mine}

    assert places(found.ranks[0]) == {
        "default_pg": (5, 5, 4),
        "pair": (1, 1, 1),
        "unused": (0, 0, 0),
    }
    assert places(found.ranks[1]) == {
        "default_pg": (4, 4, 4),
        "pair": (1, 1, 1),
        "unused": (0, 0, 0),
    }
    assert len(logs) == 4, "equal logs are shared"
    assert set(groups) == {name_group("0-1", order) for order in range(3)}
    (waiting,) = (log for log in logs.values() if log.called == 5)
    assert waiting.records[-1].operation == "all_reduce"
    assert waiting.records[-1].signature == "int64[5] -> int64[5]"
    assert [each.operation for each in waiting.records][-2] == "barrier"


@pytest.mark.torch
def test_a_stopped_rank_is_not_asked_and_the_other_answers(gloo_job: list[Victim]) -> None:
    os.kill(gloo_job[1].pid, signal.SIGSTOP)
    wait_until(lambda: (s := Proc().stat(gloo_job[1].pid)) and s.state == "T", "it is stopped")
    began = time.monotonic()
    first, second = take_round(gloo_job).ranks
    assert time.monotonic() - began < PATIENCE_S / 2
    assert first.collectives is not None
    assert second.collectives is not None
    assert len(first.collectives.logs) == 3
    assert (second.collectives.logs, second.collectives.failure) == ((), STOPPED)


def test_a_page_written_by_hand_leads_the_agent_to_the_records(
    start: Callable[..., Victim],
    run_agent: Callable[..., RunningAgent],
    tower: RecordingTower,
    tmp_path: Path,
) -> None:
    tower.deadline_s = 0.5
    reply = REPOSITORY / "tests/agent/dumpers/records" / "gloo_rank0_waits.json"
    program = PROGRAMS / "records_without_torch.py"
    start(
        [sys.executable, str(program), str(tmp_path), str(reply)], RANK="0", WATCHTOWER_JOB="llama"
    )
    run_agent(tower.url, "--no-source")
    batch = wait_until(lambda: tower.dumps and tower.dumps[0], "the job was dumped")
    found = batch["ranks"][0]["collectives"]
    groups = {group["id"]: group for group in batch["groups"]}
    assert {groups[log["group"]]["name"]: log["called"] for log in batch["group_logs"]} == {
        "default_pg": 10,
        "tensor": 2,
    }
    assert found["logs"] == [log["digest"] for log in batch["group_logs"]]
    assert found["failure"] == "2 calls with further peers are not counted"
    assert [peer["peer"] for peer in found["peers"]] == [3, -1]
    first = found["peers"][0]
    assert (first["sends_begun"], first["sends_done"], first["receives_done"]) == (5, 4, 2)


@pytest.mark.usefixtures("short_deadline")
def test_a_forked_worker_that_holds_a_dead_ranks_socket(
    start: Callable[..., Victim], tmp_path: Path
) -> None:
    victim = start(RANK="0")
    path = str(tmp_path / "socket")
    victim.do("import socket; s = socket.socket(socket.AF_UNIX)")
    victim.do(f"s.bind({path!r}); s.listen(8)")
    child = int(victim.do("pid = os.fork(); pid or time.sleep(600); print(pid)"))
    assert failure_of(path, pid=victim.pid) == SILENT
    assert "another process listens" in failure_of(path, pid=child)


def test_a_socket_of_another_process_is_refused(
    start: Callable[..., Victim], listen: Listen
) -> None:
    victim = start(RANK="0")
    assert "another process listens on it" in failure_of(listen(EMPTY).path, pid=victim.pid)
