"""The backend `queued` with two real ranks: what the host sees, and what an agent sees of it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.frameworks import needs
from watchtower.drills.compiling import compile_queued, find_compiler
from watchtower.drills.launching import free_port

SCRIPT = Path(__file__).with_name("queued_rank.py")
DEADLINE_S = 180
KERNEL_S = 0.3

pytestmark = [
    *needs("torch", 2 * DEADLINE_S),
    pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler"),
]


class Ranks:
    """Two ranks that have tried every part, and wait."""

    def __init__(self, folder: Path, schedule: str, engine: str, log: str) -> None:
        self.socket = folder / "log"
        self.engine = engine
        environment = {
            **os.environ,
            **compile_queued(folder),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
        }
        words = [sys.executable, SCRIPT, schedule, engine, log, self.socket]
        self.processes = [
            subprocess.Popen(
                words,
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        self.parts = [self._read(process) for process in self.processes]

    def _read(self, process: subprocess.Popen[str]) -> dict[str, dict]:
        found = {}
        assert process.stdout
        for line in process.stdout:
            one = json.loads(line)
            found[one["part"]] = one
            if one["part"] == "ready":
                break
        assert "ready" in found, found
        return found

    def ask(self, rank: int, handler: str) -> dict:
        """The answer of a rank's log."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(DEADLINE_S)
            connection.connect(f"{self.socket}-{rank}")
            connection.sendall(f"POST /handler/{handler} HTTP/1.1\r\n\r\n".encode())
            with connection.makefile("rb") as answer:
                return json.loads(answer.read().partition(b"\r\n\r\n")[2])

    def leave(self) -> list[int]:
        """Let both ranks go on and return their exit codes."""
        for process in self.processes:
            assert process.stdin
            process.stdin.close()
        return [process.wait(DEADLINE_S) for process in self.processes]

    def end(self) -> None:
        """End both ranks."""
        for process in self.processes:
            process.kill()
            process.__exit__(None, None, None)  # closes its pipes and waits


@pytest.fixture(params=["spin main nccl", "sleep engine frozen"], scope="module")
def ranks(request, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    folder = tmp_path_factory.mktemp("queued")
    made = Ranks(folder, *request.param.split())
    yield made
    made.end()


def test_calls_return_at_once_and_values_are_right_after_a_host_read(ranks):
    for parts in ranks.parts:
        assert parts["queued"]["value"] == 3.0
        assert parts["objects"]["found"] == [{"rank": 0}, {"rank": 1}]
    assert ranks.parts[1]["received"]["values"] == [1.0, 1.0]


def test_a_host_that_reads_has_no_frame_but_the_users(ranks):
    assert [parts["frame"]["name"] for parts in ranks.parts] == ["take_value", "take_value"]


def test_a_barrier_waits_for_the_device_of_another_rank(ranks):
    # The ranks come to it at different times, but none leaves before rank 0's kernel has ended.
    assert ranks.parts[0]["barrier"]["seconds"] > KERNEL_S / 2


def test_ddp_and_fsdp_run_unchanged(ranks):
    assert all(parts["ddp"]["finite"] and parts["fsdp"]["finite"] for parts in ranks.parts)


def test_threads_have_the_names_of_real_ones(ranks):
    names = set(ranks.parts[0]["threads"]["names"])
    assert {"NCCL Progress", "pt_nccl_watchdg"} <= names
    assert ("pt_autograd_0" in names) == (ranks.engine == "engine")


def test_in_backward_the_thread_that_launches_waits(ranks):
    main = ranks.parts[0]["backward"]
    expected = "_engine_run_backward" if ranks.engine == "engine" else "train_late"
    assert main["frame"] == expected
    assert main["seconds"] > KERNEL_S / 2


def test_the_log_is_that_of_nccl(ranks):
    own, other = (ranks.ask(rank, "dump_nccl_trace_json") for rank in range(2))
    assert own["pg_config"]["0"]["ranks"] == "[0, 1]"
    first = next(entry for entry in own["entries"] if entry["process_group"][0] == "0")
    assert (first["collective_seq_id"], first["profiling_name"]) == (1, "nccl:all_reduce")
    assert abs(len(own["entries"]) - len(other["entries"])) <= 1  # a send and a receive
    assert ranks.ask(0, "fr_trace_json")["entries"] == []


def test_the_watchdog_sets_completed(ranks):
    until = time.monotonic() + DEADLINE_S
    states = {"scheduled"}
    while states != {"completed"} and time.monotonic() < until:
        states = {entry["state"] for entry in ranks.ask(0, "dump_nccl_trace_json")["entries"]}
    assert states == {"completed"}


def test_a_rank_that_leaves_while_a_collective_is_queued_keeps_its_exit_code(ranks):
    assert ranks.leave() == [7, 0]  # the last test: the ranks end
