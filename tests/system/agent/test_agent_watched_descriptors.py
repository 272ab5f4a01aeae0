"""What real processes wait for in poll and epoll."""

from __future__ import annotations

import ctypes
import os
import select
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.children import ChildRunner
from agent.dumpers.kernel_state import KernelTables, read_kernel_wait
from agent.dumpers.watched_child import MAX_WATCHED, read_polled
from agent.dumpers.watched_descriptors import (
    CALLS,
    ThreadId,
    WatchedDescriptors,
)
from agent.procfs import Proc
from tests.system.agent.agent_processes import Victim
from tests.waiting import wait_until
from watchtower.wire.dumps import KernelWait

pytestmark = pytest.mark.ptrace

Start = Callable[..., Victim]

PROC = Proc()

POLL_PIPE = "poller.register(pair[0], select.POLLIN); poller.poll()"


def watched_by(runner: ChildRunner, *pids: int) -> list[KernelWait]:
    """Return the waits of these processes once all of them poll, with what they wait for."""
    tables = KernelTables(PROC)

    def find_waits() -> dict[ThreadId, KernelWait] | None:
        waits = {ThreadId(pid, pid): read_kernel_wait(PROC, pid, tables) for pid in pids}
        return waits if all(wait.syscall in CALLS for wait in waits.values()) else None

    waits = wait_until(find_waits, "the processes poll")
    found = WatchedDescriptors(PROC, runner).find(waits, "", tables)
    return list((waits | found).values())


@pytest.fixture
def runner() -> ChildRunner:
    return ChildRunner()


def test_a_poll_of_one_descriptor_names_it_and_no_other_connection(
    start: Start, runner: ChildRunner
) -> None:
    polls_pipe, polls_socket = start(), start()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        for victim in (polls_pipe, polls_socket):
            victim.do(f"import socket; s = socket.create_connection(('127.0.0.1', {port}))")
        local = int(polls_socket.do("print(s.getsockname()[1])"))
        polls_pipe.begin("import os, select; pair = os.pipe(); poller = select.poll()")
        polls_pipe.begin(POLL_PIPE)
        polls_socket.begin("s.settimeout(1000); s.recv(1)")
        pipe, connection = watched_by(runner, polls_pipe.pid, polls_socket.pid)
    assert pipe.target.startswith("pipe:[")
    assert connection.target == f"tcp 127.0.0.1:{local} -> 127.0.0.1:{port}"


def test_a_poll_of_several_descriptors_names_none(start: Start, runner: ChildRunner) -> None:
    victim = start()
    victim.begin("import os, select; pair, other = os.pipe(), os.pipe()")
    victim.begin(f"poller = select.poll(); poller.register(other[0], select.POLLIN); {POLL_PIPE}")
    (wait,) = watched_by(runner, victim.pid)
    assert wait.target == ""


def test_entries_without_a_descriptor_do_not_hide_the_others_of_a_poll() -> None:
    entries = [-1] * 2 * MAX_WATCHED + [7, -1, 8]
    memory = b"".join(struct.pack("=ihh", number, select.POLLIN, 0) for number in entries)
    buffer = ctypes.create_string_buffer(memory)
    assert read_polled(os.getpid(), ctypes.addressof(buffer), len(entries)) == [7, 8]


def test_an_event_loop_that_serves_names_the_listening_address(
    start: Start, runner: ChildRunner
) -> None:
    victim = start()
    victim.begin("import asyncio")
    victim.begin(
        "async def serve(): await (await asyncio.start_server(print, port=0)).serve_forever()"
    )
    victim.begin("asyncio.run(serve())")

    def find_server() -> KernelWait | None:
        # The loop waits for the address in an epoll, too, before it listens.
        (wait,) = watched_by(runner, victim.pid)
        return wait if wait.target.endswith(" listening") else None

    assert wait_until(find_server, "it listens").syscall.startswith("epoll")


def test_a_server_of_the_standard_library_polls_its_listening_socket(
    start: Start, runner: ChildRunner
) -> None:
    victim = start()
    victim.begin("import http.server")
    victim.begin("http.server.HTTPServer(('127.0.0.1', 0), None).serve_forever()")
    (wait,) = watched_by(runner, victim.pid)
    assert wait.target.startswith("tcp 127.0.0.1:")
    assert wait.target.endswith(" listening")


def test_an_event_loop_without_a_server_names_none(start: Start, runner: ChildRunner) -> None:
    victim = start()
    victim.begin("import asyncio, socket; pair = socket.socketpair()")
    victim.begin("async def read(): await asyncio.get_running_loop().sock_recv(pair[0], 1)")
    victim.begin("pair[0].setblocking(False); asyncio.run(read())")
    (wait,) = watched_by(runner, victim.pid)
    assert wait.target == "anon_inode:[eventpoll]"


def test_an_epoll_that_hangs_its_reader_is_abandoned_with_the_child(
    start: Start, runner: ChildRunner, tmp_path: Path
) -> None:
    serves, hangs = start(), start()
    for victim in (serves, hangs):
        victim.begin("import select, socket; server = socket.create_server(('127.0.0.1', 0))")
        victim.begin("epoll = select.epoll(); epoll.register(server); epoll.poll()")
    watched_by(runner, serves.pid, hangs.pid)
    folder = tmp_path / "proc" / str(hangs.pid)
    (folder / "fdinfo").mkdir(parents=True)
    (folder.parent / str(serves.pid)).symlink_to(f"/proc/{serves.pid}")
    for name in ("task", "fd", "net", "ns", "stat", "syscall"):
        (folder / name).symlink_to(f"/proc/{hangs.pid}/{name}")
    # Opening a pipe that no process writes to hangs, as reading a locked epoll does.
    os.mkfifo(folder / "fdinfo" / str(epoll_of(hangs.pid)))
    proc = Proc(str(tmp_path))
    tables = KernelTables(proc)
    threads = [ThreadId(victim.pid, victim.pid) for victim in (serves, hangs)]
    waits = {thread: read_kernel_wait(proc, thread.pid, tables) for thread in threads}
    assert waits[threads[1]].target == "anon_inode:[eventpoll]"
    found = WatchedDescriptors(proc, runner).find(waits, "", tables)
    assert found.keys() == {threads[0]}
    assert found[threads[0]].target.endswith(" listening")


def epoll_of(pid: int) -> int:
    """Return the epoll that the main thread of a process waits for."""
    return int(PROC.read(pid, "syscall").split()[1], 16) & 0xFFFFFFFF
