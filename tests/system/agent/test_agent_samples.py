"""Evidence of ranks without heartbeats: samples, and their traffic over TCP."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from tests.agent.agent_scene import RecordingTower
from tests.system.agent.agent_processes import RunningAgent, Victim
from tests.waiting import wait_until

pytestmark = [pytest.mark.ptrace, pytest.mark.usefixtures("ptrace")]

Start = Callable[..., Victim]
Run = Callable[..., RunningAgent]

DOWNLOADS = """
import socket, time
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
peer, _ = server.accept()
print("ready", flush=True)
while True:
    client.sendall(bytes(20_000))
    got = 0
    while got < 20_000:
        got += len(peer.recv(20_000))
    time.sleep(0.02)
"""
"""A rank that moves a megabyte a second and knows nothing of heartbeats."""


def test_a_sample_is_one_round_without_children_and_delays_no_dump(
    tower: RecordingTower, start: Start, run_agent: Run
) -> None:
    ranks = [start(RANK=str(rank), WORLD_SIZE="2", WATCHTOWER_JOB="llama") for rank in range(2)]
    sleeps = "[sys.executable, '-c', 'import time; time.sleep(99)', '--api-key=hunter2']"
    ranks[0].do(f"child = subprocess.Popen({sleeps})")
    run_agent(tower.url)
    wait_until(lambda: len(tower.ranks()) == 2, "both ranks are reported")
    order = {"job": "llama", "expires_s": 10.0}
    tower.orders = [{"id": "sample", "sample": True, **order}]
    wait_until(lambda: tower.dumps, "a sample arrives")
    tower.orders = [{"id": "whole", **order}]
    wait_until(lambda: len(tower.dumps) == 3, "two rounds arrive")
    sample, *whole = tower.dumps
    assert (sample["sample"], sample["round"], sample["reason"]) == (True, 1, "sample")
    assert {dump["rank"]: dump["children"] for dump in sample["ranks"]} == {0: [], 1: []}
    assert all(dump["threads"] for dump in sample["ranks"])
    for batch in whole:
        assert (batch["sample"], batch["reason"]) == (False, "whole")
        assert [len(dump["children"]) for dump in batch["ranks"]] == [1, 0]
        command = batch["ranks"][0]["children"][0]["command"]
        assert command.startswith("py")
        assert " " not in command, "an argument is sent"


def test_what_a_rank_without_a_page_transfers_is_reported(
    tower: RecordingTower, start: Start, run_agent: Run
) -> None:
    start([sys.executable, "-I", "-c", DOWNLOADS], RANK="0", WATCHTOWER_JOB="llama")
    run_agent(tower.url)
    wait_until(
        lambda: tower.ranks() and tower.ranks()[0]["movement"]["socket_bytes_per_s"] > 100_000,
        "the bytes are reported",
    )
    assert tower.ranks()[0]["beat"] is None
