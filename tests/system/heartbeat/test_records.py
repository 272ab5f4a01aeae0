"""Collective records of real gloo ranks, read from outside as an agent reads them."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from watchtower_heartbeat import layout
from watchtower_heartbeat.page import Transfers

from tests.system.frameworks import needs
from tests.system.heartbeat.heartbeat_trainer import DEADLINE_S, Trainer, a_clean_environment

pytestmark = needs("torch")

GROUPS_LINK = f"/memfd:{layout.GROUPS_MEMFD_NAME} (deleted)"
Pair = tuple[Trainer, Trainer]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short TMPDIR, which other users may pass through."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        Path(path).chmod(0o755)
        yield Path(path)


@pytest.fixture
def pair(folder) -> Iterator[Callable[..., Pair]]:
    """Start two ranks of one job."""
    started: list[Trainer] = []

    def start(imports: str = "client first", **more: str) -> Pair:
        store = f"file://{folder}/store-{len(started)}"
        environment = {"IMPORT": imports, "STORE": store, "WORLD_SIZE": "2"}
        environment |= {"TMPDIR": str(folder), "OMP_NUM_THREADS": "1"} | more
        both = [Trainer("two_ranks.py", environment | {"RANK": str(rank)}) for rank in (0, 1)]
        started.extend(both)
        assert [trainer.line() for trainer in both] == ["ready", "ready"]
        return both[0], both[1]

    yield start
    for trainer in started:
        trainer.stop()


def both_do(ranks: Pair, *statements: str) -> None:
    for statement in statements:
        for trainer in ranks:
            trainer.send(statement)
        assert [trainer.line() for trainer in ranks] == ["done", "done"]


def both_end(ranks: Pair) -> list[tuple[int, str]]:
    for trainer in ranks:
        assert trainer.process.stdin is not None
        trainer.send("dist.destroy_process_group()")
        trainer.process.stdin.close()
        trainer.process.stdin = None
    return [trainer.end() for trainer in ranks]


def groups_of(trainer: Trainer) -> list[list[str]]:
    """The lines of the list of groups, found as the page says."""
    path = f"/proc/{trainer.pid}/fd/{trainer.page().groups_descriptor}"
    assert os.readlink(path) == GROUPS_LINK
    data = Path(path).read_bytes()
    (length,) = struct.unpack_from("=q", data, layout.GROUPS_LENGTH_AT)
    text = data[layout.GROUPS_TEXT_AT :][:length].decode()
    return [line.split("\t") for line in text.splitlines()]


def descriptors_of(pid: int) -> list[str]:
    """The open files of a process."""
    links = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            links.append(os.readlink(f"/proc/{pid}/fd/{name}"))
        except OSError:  # closed meanwhile
            continue
    return links


def a_row(peer: int, **more: int) -> Transfers:
    nothing = {"sends_begun": 0, "sends_done": 0, "receives_begun": 0, "receives_done": 0}
    return Transfers(**({"peer": peer, "opened_by_send": False} | nothing | more))


def until(happens: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ask_for_records(trainer: Trainer) -> dict[str, Any]:
    """The answer of the record server of a rank."""
    with socket.socket(socket.AF_UNIX) as asked:
        asked.settimeout(DEADLINE_S)
        asked.connect(trainer.page().record_socket)
        asked.sendall(
            b"POST /handler/fr_trace_json HTTP/1.1\r\nHost: x\r\n"
            b"Connection: close\r\nContent-Length: 0\r\n\r\n"
        )
        answer = b""
        while data := asked.recv(65536):
            answer += data
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b" 200 " in head.splitlines()[0]
    found: dict[str, Any] = json.loads(body)
    return found


def connects_as(user: int, path: str) -> bool:
    """Whether a process of that user gets through; needs root."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            with socket.socket(socket.AF_UNIX) as asked:
                asked.connect(path)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_all_groups_of_a_process_are_listed_and_equal_members_keep_their_order(pair) -> None:
    ranks = pair()
    both_do(ranks, "a = dist.new_group([1, 0]), dist.new_group([1])")
    both_do(ranks, "b = [dist.new_group([0, 1], group_desc=name) for name in ('tp', 'dp')]")
    both_do(ranks, "mesh = dist.device_mesh.init_device_mesh('cpu', (2, 1))")
    of_0, of_1 = (groups_of(trainer) for trainer in ranks)
    world = ["default_pg", "0-1"]
    shared = [world, ["undefined", "0-1"], ["tp", "0-1"], ["dp", "0-1"]]
    assert [line[1:] for line in of_0 if line[2] == "0-1"][:4] == shared
    assert [line for line in of_0 if line[2] == "0-1"] == [
        line for line in of_1 if line[2] == "0-1"
    ]
    # The mesh's second dimension is a group of one for each rank.
    assert [line[2] for line in of_0 if line[2] != "0-1"] == ["0"]
    assert [line[2] for line in of_1 if line[2] != "0-1"] == ["1", "1"]


def test_groups_made_before_the_client_was_imported_are_listed_too(pair) -> None:
    ranks = pair("client later")
    both_do(ranks, "group = dist.new_group([0, 1], group_desc='pp')")
    both_do(ranks, "import watchtower_heartbeat")
    both_do(ranks, "late = dist.new_group([0, 1]); dist.destroy_process_group(group)")
    assert [line[1] for line in groups_of(ranks[0])] == ["default_pg", "pp", "undefined"]
    both_do(ranks, "send(ones, 1) if dist.get_rank() == 0 else recv(ones, 0)")
    assert ranks[0].page().transfers[0].sends_done == 1
    ended = both_end(ranks)
    assert [code for code, _ in ended] == [0, 0], ended


@pytest.mark.parametrize("imports", ["client first", "torch first"])
def test_a_receive_that_hangs_is_seen_as_begun_and_not_done(pair, imports) -> None:
    first, second = ranks = pair(imports)
    both_do(
        ranks,
        "group = dist.new_group([1, 0])",
        "send(ones, 1) if dist.get_rank() == 0 else recv(ones, src=0)",
        "send(ones, dst=1) if dist.get_rank() == 0 else recv(ones)",
        "dist.send(ones, group_dst=1, group=group) if dist.get_rank() == 0"
        " else dist.recv(ones, None, group, 0, 0)",
    )
    second.send("recv(ones, 0)")
    until(lambda: any(row.receives_begun > row.receives_done for row in second.page().transfers))
    to_1 = a_row(1, opened_by_send=True, sends_begun=3, sends_done=3)
    from_0 = a_row(0, receives_begun=3, receives_done=2)
    from_any = a_row(-1, receives_begun=1, receives_done=1)
    assert first.page().transfers == (to_1,)
    assert second.page().transfers == (from_0, from_any)
    first.send("send(ones, 1)")
    assert second.line() == first.line() == "done"
    assert second.page().transfers[0].receives_done == 3


def test_a_transfer_that_fails_is_over_and_a_wrong_call_is_torchs_to_refuse(pair) -> None:
    first, _ = pair()
    first.do("import pytest")
    first.do("with pytest.raises(TypeError): send()")
    first.do("with pytest.raises(ValueError): send(ones, dst=1, group_dst=1)")
    first.do("with pytest.raises(ValueError): send(ones, 0)")
    assert first.page().transfers == (
        a_row(1, opened_by_send=True, sends_begun=1, sends_done=1),
        a_row(0, opened_by_send=True, sends_begun=1, sends_done=1),
    )


def test_what_users_hold_is_the_function_that_torch_made(pair) -> None:
    first, _ = pair("torch first")
    first.do("import inspect, pickle")
    first.do("three = [send, recv, dist.isend]")
    first.do("assert pickle.loads(pickle.dumps(three)) == three")
    first.do("assert send is dist.send is dist.distributed_c10d.send")
    first.do("assert list(inspect.signature(recv).parameters)[:2] == ['tensor', 'src']")
    first.do("assert dist.P2POp(dist.isend, ones, 1).op is dist.isend")


def test_records_are_served_while_the_rank_hangs_and_to_other_users(pair, folder) -> None:
    first, second = ranks = pair()
    both_do(ranks, "tp = dist.new_group([0, 1], group_desc='tp'); dist.all_reduce(ones, group=tp)")
    first.send("dist.all_reduce(ones, group=tp)")
    until(lambda: len(ask_for_records(first)["entries"]) == 2)
    assert ask_for_records(second)["entries"][-1]["process_group"] == groups_of(second)[1][:2]
    path = Path(first.page().record_socket)
    assert path.parent.parent == folder
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o711
    assert stat.S_IMODE(path.stat().st_mode) == 0o666
    assert str(path.parent) in Path("/proc/net/unix").read_text()
    assert path.name not in Path("/proc/net/unix").read_text()
    if os.geteuid() == 0:
        assert connects_as(65534, str(path))
    second.do("dist.all_reduce(ones, group=tp)")
    assert first.line() == "done"
    ended = both_end(ranks)
    assert [code for code, _ in ended] == [0, 0]
    assert all("watchtower-heartbeat" not in errors for _, errors in ended)
    assert list(path.parent.iterdir()) == []


def fork(trainer: Trainer, doing: str) -> int:
    """Let a rank fork a child that does this and ends when it is told by `os.close(w)`."""
    trainer.do("r, w, ready, say = *os.pipe(), *os.pipe(); import sys, watchtower_heartbeat")
    trainer.do(
        f"child = os.fork() or ({doing}, os.close(w), os.write(say, b'x'),"
        " os.read(r, 1), sys.exit(0))"
    )
    trainer.do("os.read(ready, 1)")
    return int(trainer.ask("child"))


def sockets_of(pid: int) -> int:
    return sum(name.startswith("socket:") for name in descriptors_of(pid))


def test_a_forked_child_leaves_records_to_its_parent_and_its_exit_ends_no_server(pair) -> None:
    ranks = pair()
    # Forked children cannot shut down over gloo's own threads, with or without us.
    both_do(ranks, "dist.destroy_process_group(); import gc; gc.collect()")
    first = ranks[0]
    before = first.page()
    child = fork(first, "None")
    assert GROUPS_LINK not in descriptors_of(child)
    assert sockets_of(child) == sockets_of(first.pid) - 1
    first.do("os.close(w); assert os.waitpid(child, 0)[1] == 0")
    assert first.page() == before
    assert "pg_status" in ask_for_records(first)
    assert first.end() == (0, "")


def test_a_forked_child_with_a_page_of_its_own_has_records_of_its_own(pair) -> None:
    first, _ = pair()
    child = fork(first, "watchtower_heartbeat.beat(1)")
    mine, theirs = first.page(child), first.page()
    assert mine.record_socket != theirs.record_socket
    assert Path(mine.record_socket).is_socket()
    os.kill(child, signal.SIGKILL)
    first.do("os.waitpid(child, 0)")
    assert "pg_status" in ask_for_records(first)


def test_a_socket_that_a_killed_rank_left_is_swept_by_the_next_one(pair) -> None:
    ranks = pair()
    paths = [Path(trainer.page().record_socket) for trainer in ranks]
    ranks[0].process.send_signal(signal.SIGKILL)
    ranks[0].process.wait(DEADLINE_S)
    long_ago = time.time() - 3600
    for path in paths:
        os.utime(path, (long_ago, long_ago))
    pair()
    assert [path.exists() for path in paths] == [False, True]


def test_a_folder_that_others_may_write_is_refused_and_so_is_a_link(pair, folder) -> None:
    bad = folder / f"watchtower-{os.geteuid()}"
    bad.mkdir()
    bad.chmod(0o777)
    first, _ = pair(imports="client first")
    assert not list(bad.iterdir())
    bad.rmdir()
    bad.symlink_to(folder)
    second, _ = pair()
    for trainer in (first, second):
        path = trainer.page().record_socket
        assert path.startswith("/tmp/watchtower-"), "the next place was taken"


def test_a_rank_that_only_torch_knows_is_on_the_page(pair) -> None:
    both = pair("no variables")
    assert "RANK" not in both[1].ask("[*os.environ]")
    for rank, trainer in enumerate(both):
        trainer.do("import watchtower_heartbeat; watchtower_heartbeat.beat(1)")
        assert (trainer.page().rank, trainer.page().world_size) == (rank, 2)
    both_do(both, "dist.new_group([1])")
    assert (both[1].page().rank, both[1].page().world_size) == (1, 2)


def test_switched_off_nothing_is_opened_and_nothing_is_counted(pair) -> None:
    ranks = pair(WATCHTOWER_RECORDS="off")
    both_do(ranks, "send(ones, 1) if dist.get_rank() == 0 else recv(ones, 0)")
    view = ranks[0].page()
    assert (view.groups_descriptor, view.record_socket, view.transfers) == (0, "", ())
    ranks[0].do("import sys; assert type(dist.distributed_c10d._pg_group_ranks) is dict")
    ranks[0].do("assert 'watchtower_heartbeat.records' not in sys.modules")
    assert both_end(ranks) == [(0, ""), (0, "")]


COMPILED = """
def exchange(x):
    y = x * 2
    send(y, 1) if dist.get_rank() == 0 else recv(y, 0)
    return y + 1
def gather(x):
    x = torch.distributed._functional_collectives.all_reduce(x, "sum", dist.group.WORLD)
    return x + len(dist.get_process_group_ranks(dist.group.WORLD))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
step = torch.compile(model, backend="eager")
step(ones).sum().backward()
exchanged = torch.compile(exchange, backend="eager")(ones)
assert exchanged.tolist() == [3.0] * 4
whole = torch.compile(gather, backend="eager", fullgraph=True)(ones)
assert whole.tolist() == [4.0] * 4
"""


def test_compiled_code_and_ddp_compute_the_same_and_whole_graphs_stay_whole(pair) -> None:
    ranks = pair()
    both_do(ranks, f"exec({COMPILED!r}, globals())")
    ranks[0].send("send(ones, 1)")
    ranks[1].do("recv(ones, 0)")
    assert ranks[0].line() == "done"
    assert ranks[0].page().transfers[0].sends_done >= 1
    # How they exit is torch's affair: DDP keeps gloo threads, which may abort 2.13 as Python ends.
    both_do(ranks, "dist.destroy_process_group()")


def test_a_client_that_sends_nothing_delays_no_exit(pair) -> None:
    ranks = pair()
    with socket.socket(socket.AF_UNIX) as idle, socket.socket(socket.AF_UNIX) as half:
        for asked in (idle, half):
            asked.connect(ranks[0].page().record_socket)
        half.sendall(b"POST /handler/fr_trace_json HTTP/1.1\r\nContent-Length: 99\r\n\r\n")
        both_do(ranks, "dist.destroy_process_group()")
        begun = time.monotonic()
        assert ranks[0].end()[0] == 0
        took_with_s = time.monotonic() - begun
    begun = time.monotonic()
    assert ranks[1].end()[0] == 0
    # torch's server would wait 5 s for them; leaving takes a few hundred ms.
    assert took_with_s < 4 + time.monotonic() - begun


def test_a_torch_without_its_private_parts_trains_in_silence(folder) -> None:
    program = """
import torch.distributed as dist, torch
c10d = dist.distributed_c10d
del torch._C._distributed_c10d._WorkerServer
ranks, c10d._pg_group_ranks = c10d._pg_group_ranks, None
import watchtower_heartbeat
assert c10d._pg_group_ranks is None
c10d._pg_group_ranks = ranks
dist.init_process_group("gloo", init_method="file://" + STORE, rank=0, world_size=1)
dist.destroy_process_group()
""".replace("STORE", repr(f"{folder}/store"))
    done = run(program, RANK="0", TMPDIR=str(folder))
    assert (done.returncode, done.stderr) == (0, "")


def test_without_torch_only_an_import_watch_is_there() -> None:
    program = (
        "import sys, watchtower_heartbeat; print({'torch', 'socket', 'ctypes'} & {*sys.modules})"
    )
    done = run(program, RANK="0")
    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_torch_without_a_job_gets_no_server_and_no_list(folder) -> None:
    program = "import watchtower_heartbeat, torch.distributed, os; print(os.listdir(TMPDIR))"
    done = run(program.replace("TMPDIR", repr(str(folder))), RANK="0", TMPDIR=str(folder))
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env=a_clean_environment() | environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
