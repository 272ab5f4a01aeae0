"""Where real processes wait in the kernel, and which are frozen or stopped by a debugger."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.collectors.process import OpenFiles, read_state
from agent.dumpers.kernel_state import read_kernel_wait
from agent.procfs import Proc, find_tracer
from tests.system.agent.agent_processes import Victim
from tests.waiting import PATIENCE_S, wait_until
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


FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A cgroup of this test's own."""
    folder = FREEZER / f"watchtower-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "freezer.state").write_text("THAWED")
    except OSError as error:
        pytest.skip(f"no freezer of cgroup version 1 that may be used here: {error}")
    yield folder
    (folder / "freezer.state").write_text("THAWED")
    for pid in (folder / "cgroup.procs").read_text().split():
        (FREEZER / "cgroup.procs").write_text(pid)
    folder.rmdir()


def test_a_really_frozen_process_is_seen(start: Callable[..., Victim], freezer: Path) -> None:
    victim = start(RANK="0")
    (freezer / "cgroup.procs").write_text(str(victim.pid))
    assert not read_kernel_wait(Proc(), victim.pid).frozen
    (freezer / "freezer.state").write_text("FROZEN")
    wait_until(lambda: read_kernel_wait(Proc(), victim.pid).frozen, "the process is frozen")
    (freezer / "freezer.state").write_text("THAWED")
    wait_until(lambda: not read_kernel_wait(Proc(), victim.pid).frozen, "it is thawed")


PROC = Proc()
HOLD = (
    "import ctypes, sys\n"
    "libc = ctypes.CDLL(None)\n"
    "assert libc.ptrace(0x4206, {pid}, 0, 0) == 0\n"  # PTRACE_SEIZE
    "assert libc.ptrace(0x4207, {pid}, 0, 0) == 0\n"  # PTRACE_INTERRUPT
    "print('held', flush=True)\n"
    "sys.stdin.read()\n"
)


def state_of(pid: int) -> str:
    stat = PROC.stat(pid)
    return stat.state if stat is not None else ""


@pytest.mark.ptrace
@pytest.mark.usefixtures("ptrace")
@pytest.mark.timeout(2 * PATIENCE_S)
def test_a_process_that_a_debugger_stops_is_traced(start) -> None:
    victim: Victim = start(RANK="0")
    debugger = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(pid=victim.pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert debugger.stdout is not None
        assert debugger.stdout.readline() == "held\n"
        wait_until(lambda: state_of(victim.pid) == "t", "it is stopped")
        files = OpenFiles(PROC, victim.pid)
        assert read_state(files, files.stat())[0] is ProcessState.TRACED
        kernel = read_kernel_wait(PROC, victim.pid)
        assert kernel.state is ProcessState.TRACED
        assert kernel.tracer_pid == find_tracer(PROC, victim.pid) != 0
        assert kernel.tracer_name
    finally:
        debugger.communicate(timeout=PATIENCE_S)
