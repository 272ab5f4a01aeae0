"""The output of real processes: only lines that a reader knows leave the node."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from agent.children import ChildRunner
from agent.dumpers.dumper import Target
from agent.dumpers.nccl_ras import NcclRas
from agent.dumpers.outputs import Outputs
from agent.dumpers.written_logs import RecorderFiles, WrittenLogs
from agent.dumps.round import RoundTaker
from agent.procfs import Proc
from tests.field.record_cases import dump
from tests.waiting import wait_until
from watchtower.drills.launching import free_port
from watchtower.wire.collectives import GroupLog
from watchtower.wire.dumps import WrittenLines

BARRIER = "[rank0]:[E1128 15:59:17] [Rank 0]: Ranks 2 failed to pass monitoredBarrier in 3000 ms"
SECRET = "user data of step 1: hunter2"
TRACEBACK = (
    f'Traceback (most recent call last):\n  File "main.py", line 8, in <module>\n    {SECRET}\n'
    "RuntimeError: NCCL error: unhandled system error\n\n"
)

Start = Callable[..., int]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start processes that sleep, with this standard output and error."""
    with ExitStack() as stack:

        def begin(output: Path | int, error: Path | int = subprocess.DEVNULL) -> int:
            files = [
                stack.enter_context(open(each, "ab")) if isinstance(each, Path) else each
                for each in (output, error)
            ]
            words = [sys.executable, "-c", "import time; time.sleep(600)"]
            child = stack.enter_context(subprocess.Popen(words, stdout=files[0], stderr=files[1]))
            stack.callback(child.kill)
            return child.pid

        yield begin


class Node:
    """The ranks of one job on this machine, in the order of their pids."""

    def __init__(self, pids: Sequence[int]) -> None:
        self.proc, self.outputs = Proc(), Outputs(Proc())
        self.dumpers = (
            WrittenLogs(ChildRunner(), self.outputs, NcclRas(self.proc)),
            RecorderFiles(ChildRunner(), self.outputs),
        )
        self.keys = [(pid, self.started(pid)) for pid in pids]

    def started(self, pid: int) -> int:
        stat = self.proc.stat(pid)
        assert stat is not None
        return stat.start_time

    def note(self, ago_s: float = 0.0) -> None:
        """Mark the files, as the agent did some time ago."""
        self.outputs.note(self.keys, time.monotonic() - ago_s)

    def has_both_dumps(self) -> bool:
        """Mark the files again; return whether each rank has one."""
        self.note()
        return all(any(each.is_records for each in self.outputs.of(key)) for key in self.keys)

    def dump(self, **values: bool) -> list[tuple[WrittenLines, ...]]:
        """Return what one round sends of each rank."""
        targets = [
            Target(rank=rank, pid=pid, start_time=born, read_page=lambda: None)
            for rank, (pid, born) in enumerate(self.keys)
        ]
        taker = RoundTaker(self.proc, self.dumpers, lambda _: None)
        taken = taker.take(targets, deadline=time.monotonic() + 20, **values)
        self.logs = {log.digest: log for log in taken.group_logs}
        self.taken = taken.ranks
        return [dump.written for dump in taken.ranks]

    def records(self) -> list[list[GroupLog]]:
        """Return the collective logs of each rank in one round."""
        self.dump()
        return [
            [self.logs[each] for each in dump.collectives.logs] if dump.collectives else []
            for dump in self.taken
        ]


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_only_known_lines_leave_the_node(start: Start, tmp_path: Path) -> None:
    log = tmp_path / "rank.log"
    node = Node([start(log)])
    node.note(20)
    append(log, f"{SECRET}\n{BARRIER}\n{SECRET}\n{TRACEBACK}{SECRET}\n" * 2)
    (written,) = node.dump()
    assert {each.text for each in written} == {
        BARRIER,
        "Traceback (most recent call last):\nRuntimeError: NCCL error: unhandled system error",
    }
    assert {(each.file, each.own) for each in written} == {(str(log), True)}
    assert node.dump(is_sample=True) == [()]


def test_a_file_of_two_ranks_is_sent_once(start: Start, tmp_path: Path) -> None:
    log = tmp_path / "all.log"
    node = Node([start(log), start(log, log)])
    node.note()
    append(log, f"{BARRIER}\n")
    first, second = node.dump()
    assert ([each.own for each in first], second) == ([False], ())


def test_pipes_and_files_of_other_users_are_not_read(start: Start, tmp_path: Path) -> None:
    log = tmp_path / "other.log"
    append(log, f"{BARRIER}\n")
    node = Node([start(subprocess.PIPE), start(subprocess.DEVNULL), start(log)])
    node.note()
    if os.geteuid() == 0:
        os.chown(log, 4242, 4242)
        assert node.dump() == [(), (), ()]
    os.chown(log, os.geteuid(), os.getegid())
    assert [len(each) for each in node.dump()] == [0, 0, 0], "it was there before the rank"


def test_each_line_has_the_age_of_its_place(tmp_path: Path, start: Start) -> None:
    log = tmp_path / "rank.log"
    read, write = os.pipe()
    program = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
    with log.open("wb") as output:
        words = [sys.executable, "-c", program]
        child = subprocess.Popen(words, stdin=read, stdout=output, stderr=subprocess.DEVNULL)
    try:
        node = Node([child.pid])
        for ago_s, line in ((3000, "began\n"), (2000, BARRIER + "\n"), (1000, "step\n")):
            before = log.stat().st_size
            os.write(write, line.encode())
            while log.stat().st_size == before:
                time.sleep(0.01)
            node.note(ago_s)
        (written,) = node.dump()
        assert [round(each.age_s, -2) for each in written] == [2000]
        os.truncate(log, 0)
        node.note()
        assert node.dump() == [()]
    finally:
        child.kill()
        child.wait()
        os.close(read)
        os.close(write)


def test_a_rank_that_is_new_is_marked_at_once(start: Start, tmp_path: Path) -> None:
    first, second = tmp_path / "0.log", tmp_path / "1.log"
    node = Node([start(first)])
    node.note()
    pid = start(second)
    node.keys.append((pid, node.started(pid)))
    node.note()
    append(second, f"{BARRIER}\n")
    assert [len(each) for each in node.dump()] == [0, 1]


RAS = """\
Job summary
===========

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  3 ranks have launched up to operation 41
  1 ranks have launched up to operation 40
  Rank 2 -- GPU 2 managed by process 4711 on node 10.0.0.2

"""

SERVER = f"""
import socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listens", flush=True)
for number in range(9):
    client, _ = server.accept()
    assert client.recv(99) == b"verbose status\\n"
    print("asked", flush=True)
    client.sendall({RAS.encode()!r})
    client.close()
"""


def test_the_rank_that_answers_for_nccl_is_asked_once(tmp_path: Path) -> None:
    port = free_port()
    words = [sys.executable, "-c", SERVER, str(port)]
    said = tmp_path / "said"
    with said.open("wb") as output:
        rank = subprocess.Popen(
            words, stdout=output, env={**os.environ, "NCCL_RAS_ADDR": f"localhost:{port}"}
        )
        other = subprocess.Popen([sys.executable, "-c", SERVER, str(free_port())], stdout=output)
    try:
        wait_until(lambda: said.read_text().count("listens") == 2, "both listen", 30)
        node = Node([rank.pid, other.pid])
        first, second = node.dump()
        assert second == (), "it does not listen where NCCL would"
        assert [(each.file, each.own) for each in first] == [
            (f"NCCL RAS at 127.0.0.1:{port}", False)
        ]
        assert first[0].text.startswith("#0-0 (27a079b828ff1a75) MISMATCH")
        assert first[0].text.endswith("on node 10.0.0.2")
        assert "Job summary" not in first[0].text
        assert node.dump()[0] == first
        assert said.read_text().count("asked") == 1
    finally:
        for child in (rank, other):
            child.kill()
            child.wait()


INIT = "gpu-0:4711:4712 [0] NCCL INFO f comm 0xa1 rank 0 nranks 2 cudaDev 0 - Init START"
WRITER = """
import sys, time
log = open(sys.argv[1], "a")
print("opened", flush=True)
for line in sys.stdin: print(line, end="", file=log, flush=True)
"""


def test_the_log_of_nccl_and_the_dump_of_the_recorder_are_found(tmp_path: Path) -> None:
    log, said = tmp_path / "nccl.gpu-0.4711.log", tmp_path / "said"
    variables = {
        "RANK": "0",
        "NCCL_DEBUG_FILE": str(tmp_path / "nccl.%h.%p.log"),
        "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "fr_rank_"),
    }
    (tmp_path / "fr_rank_0").write_bytes(dump(2, 99))
    os.utime(tmp_path / "fr_rank_0", (1, 1))  # of an earlier run
    with said.open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(log)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **variables},
        )
    assert child.stdin is not None
    try:
        wait_until(lambda: "opened" in said.read_text(), "the log is open", 30)
        node = Node([child.pid])
        node.note(10)
        child.stdin.write(f"{SECRET}\n{INIT}\n".encode())
        child.stdin.flush()
        wait_until(lambda: INIT in log.read_text(), "a line is written", 30)
        assert node.records() == [[]]
        (tmp_path / "fr_rank_0").write_bytes(dump(2, 41))
        node.note()
        (written,) = node.dump()
        assert [(each.file, each.text) for each in written] == [(str(log), INIT)]
        ((found,),) = node.records()
        assert (found.called, found.completed) == (41, 40)
    finally:
        child.stdin.close()
        child.kill()
        child.wait()


@pytest.mark.parametrize("kind", ["link", "other user", "two ranks"])
def test_a_dump_that_may_be_of_another_program_is_not_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "fr_rank_0"
    variables = {**os.environ, "RANK": "0", "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "fr_rank_")}
    words = [sys.executable, "-c", "import time; time.sleep(600)"]
    children = [subprocess.Popen(words, env=variables) for _ in range(1 + (kind == "two ranks"))]
    try:
        path.write_bytes(dump(2, 41))
        node = Node([child.pid for child in children])
        if kind == "other user":
            if os.geteuid() != 0:
                pytest.skip("only root can make a file of another user")
            os.chown(path, 4242, 4242)
        elif kind == "link":
            path.unlink()
            path.symlink_to("/proc/self/environ")
        node.note()
        if kind == "two ranks":
            wait_until(node.has_both_dumps, "both processes are known to name the file", 30)
        assert node.records() == [[] for _ in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
