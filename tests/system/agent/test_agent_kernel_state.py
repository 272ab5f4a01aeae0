"""Where real processes wait in the kernel."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.dumpers.kernel_state import read_kernel_wait
from agent.procfs import Proc
from tests.agent.agent_scene import wait_until
from tests.system.agent.agent_processes import Victim
from watchtower.wire.dumps import KernelWait
from watchtower.wire.report import ProcessState

Start = Callable[..., Victim]


def waits_in(pid: int, claim: Callable[[KernelWait], bool]) -> KernelWait:
    def read_wait() -> KernelWait | None:
        wait = read_kernel_wait(Proc(), pid)
        return wait if claim(wait) else None

    result: KernelWait = wait_until(read_wait, "the process waits there")
    return result


@pytest.fixture(autouse=True)
def readable_syscall() -> None:
    """Skip where the kernel does not show system calls."""
    if not os.path.exists("/proc/self/syscall"):
        pytest.skip("this kernel has no /proc/PID/syscall")


def test_a_read_from_a_fifo_names_the_fifo(start: Start, tmp_path: Path) -> None:
    fifo = tmp_path / "shard"
    os.mkfifo(fifo)
    victim = start()
    writer = os.open(fifo, os.O_RDWR)
    try:
        victim.begin(f"read_for_ever({str(fifo)!r})")
        waits_in(
            victim.pid,
            lambda wait: (
                (wait.syscall, wait.target, wait.state)
                == ("read", str(fifo), ProcessState.SLEEPING)
            ),
        )
    finally:
        os.close(writer)


def test_a_read_from_a_unix_socket_is_told_from_the_network(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "helper.sock"
    bound, unbound = start(), start()
    bound.begin("import socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)")
    bound.begin(f"s.bind({str(path)!r})")
    bound.begin("s.recv(1)")
    unbound.begin("import socket; pair = socket.socketpair()")
    unbound.begin("pair[0].recv(1)")
    waits_in(bound.pid, lambda wait: wait.target == f"unix socket {path}")
    waits_in(unbound.pid, lambda wait: wait.target == "unix socket")


def test_a_read_from_a_pipe_names_the_pipe(start: Start) -> None:
    wait = waits_in(start().pid, lambda wait: wait.syscall == "read")
    assert wait.target.startswith("pipe:[")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_receive_from_a_socket_names_both_ends(start: Start, host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"no {host} here")
    with listener:
        port = listener.getsockname()[1]
        victim = start()
        victim.do(f"import socket; s = socket.create_connection(({host!r}, {port}))")
        peer, _ = listener.accept()
        with peer:
            local = int(victim.do("print(s.getsockname()[1])"))
            victim.begin("s.recv(1)")
            name = f"[{host}]" if ":" in host else host
            expected = f"tcp {name}:{local} -> {name}:{port}"
            wait = waits_in(victim.pid, lambda wait: wait.target == expected)
            assert wait.syscall == "recvfrom"


def test_an_accept_names_the_listening_address(start: Start) -> None:
    victim = start()
    victim.do("import socket; s = socket.create_server(('127.0.0.1', 0))")
    port = victim.do("print(s.getsockname()[1])")
    victim.begin("s.accept()")
    waits_in(victim.pid, lambda wait: wait.target == f"tcp 127.0.0.1:{port} listening")


def test_a_call_without_a_descriptor_has_no_target(start: Start) -> None:
    victim = start()
    victim.begin("sleep_in_a_loader()")
    wait = waits_in(victim.pid, lambda wait: "nanosleep" in wait.syscall)
    assert wait.target == ""


def test_a_stopped_process_says_so(start: Start) -> None:
    victim = start()
    os.kill(victim.pid, signal.SIGSTOP)
    waits_in(victim.pid, lambda wait: wait.state is ProcessState.STOPPED)
