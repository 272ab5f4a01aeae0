"""Every way in which a training process ends, as the agent tells it: with and without the kernel's
word. What is not known is said to be unknown, and is never exit code 0.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from agent.collectors.endings import _status_by_pidfd
from agent.collectors.process import TickBudget
from agent.collectors.traffic import TcpBytes
from agent.procfs import Proc
from agent.watching.rank import WatchedRank
from tests.system.agent.agent_processes import Victim, clean_environment
from tests.waiting import wait_until
from watchtower.wire.report import Ending, EndingKind, ProcessState, RankVitals

EXIT, SIGNAL, UNKNOWN = EndingKind.EXIT, EndingKind.SIGNAL, EndingKind.UNKNOWN


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way to end, what the kernel says of it, and what is left where the kernel is silent."""

    do: str
    kind: EndingKind
    code: int
    exception: str = ""
    without_kernel: tuple[EndingKind, int | None] = (UNKNOWN, None)
    before: str = "beat(1)"


WAYS = {
    "the end of the program": Way(
        do="os.close(0); sys.stdin = None; sys.exit()",
        kind=EXIT,
        code=0,
        without_kernel=(EXIT, None),
    ),
    "an exception": Way(
        do="raise ValueError('x')",
        kind=EXIT,
        code=1,
        exception="ValueError",
        without_kernel=(EXIT, 1),
    ),
    # No hook hears it: it looks like the end of the program.
    "sys.exit(3)": Way(do="sys.exit(3)", kind=EXIT, code=3, without_kernel=(EXIT, None)),
    "os._exit(3)": Way(do="os._exit(3)", kind=EXIT, code=3),
    "os._exit(0)": Way(do="os._exit(0)", kind=EXIT, code=0),
    "SIGTERM": Way(do="os.kill(os.getpid(), 15)", kind=SIGNAL, code=signal.SIGTERM),
    "SIGKILL": Way(do="os.kill(os.getpid(), 9)", kind=SIGNAL, code=signal.SIGKILL),
    "SIGABRT": Way(do="os.abort()", kind=SIGNAL, code=signal.SIGABRT),
    "SIGSEGV": Way(do="import ctypes; ctypes.string_at(0)", kind=SIGNAL, code=signal.SIGSEGV),
    "an exception after another hook was set": Way(
        before="beat(1); sys.excepthook = lambda *what: None",
        do="raise KeyError('x')",
        kind=EXIT,
        code=1,
        exception="KeyError",
        without_kernel=(EXIT, 1),
    ),
    "an exception that was survived, and later a signal": Way(
        before="beat(1); sys.excepthook(ValueError, ValueError('old'), None); beat(2)",
        do="os.kill(os.getpid(), 9)",
        kind=SIGNAL,
        code=signal.SIGKILL,
    ),
}


def kernel_tells() -> bool:
    """Whether this kernel tells by a pidfd how a process ended that somebody else waited for."""
    child = subprocess.Popen(["true"])
    pidfd = os.pidfd_open(child.pid)
    try:
        child.wait()
        return _status_by_pidfd(pidfd) == 0
    finally:
        os.close(pidfd)


def end(start: Callable[..., Victim], watch: Callable[[], WatchedRank], way: Way) -> WatchedRank:
    """Have a rank end this way, and wait for it as a launcher does, before the agent looks."""
    victim = start(RANK="0")
    victim.do(way.before)
    rank = watch()
    victim.begin(way.do)
    victim.process.wait(30)
    return rank


def told(rank: WatchedRank) -> Ending:
    wait_until(lambda: rank.notice_end(time.monotonic()), "the end is noticed")
    ended = rank.vitals(time.monotonic(), TickBudget()).ended
    assert ended is not None
    return ended


@pytest.mark.parametrize("name", WAYS)
def test_the_kernel_tells_also_after_somebody_else_has_waited(
    start: Callable[..., Victim], watch: Callable[[], WatchedRank], name: str
) -> None:
    if not kernel_tells():
        pytest.skip("PIDFD_GET_INFO with an exit status needs Linux 6.15")
    way = WAYS[name]
    ended = told(end(start, watch, way))
    assert (ended.kind, ended.code) == (way.kind, way.code)
    assert ended.exception_type == way.exception


@pytest.mark.parametrize("name", WAYS)
def test_without_the_kernels_word_the_page_tells_what_it_knows_and_no_more(
    start: Callable[..., Victim],
    watch: Callable[[], WatchedRank],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agent.collectors.endings._status_by_pidfd", lambda _: None)
    way = WAYS[name]
    ended = told(end(start, watch, way))
    assert (ended.kind, ended.code) == way.without_kernel
    assert ended.exception_type == way.exception


@pytest.mark.parametrize("name", ["os._exit(3)", "os._exit(0)", "SIGABRT"])
def test_on_an_older_kernel_a_zombie_tells(
    start: Callable[..., Victim],
    watch: Callable[[], WatchedRank],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its stat file was opened while it lived, and nobody has waited for it yet."""
    monkeypatch.setattr("agent.collectors.endings._status_by_pidfd", lambda _: None)
    way = WAYS[name]
    victim = start(RANK="0")
    rank = watch()
    victim.begin(way.do)
    ended = told(rank)
    assert (ended.kind, ended.code) == (way.kind, way.code)


@pytest.mark.parametrize(
    ("statement", "code"), [("raise ValueError('x')", 1), ("os._exit(4)", 4), ("beat(1)", 0)]
)
def test_a_rank_that_was_forked_has_no_last_words_and_the_kernel_tells(
    start: Callable[..., Victim],
    watch: Callable[[], WatchedRank],
    statement: str,
    code: int,
) -> None:
    if not kernel_tells():
        pytest.skip("PIDFD_GET_INFO with an exit status needs Linux 6.15")
    victim = start()
    body = f"Heartbeat(rank=3, world_size=4).beat(1); sys.stdin.readline(); {statement}"
    victim.do(f"target = lambda: exec({body!r}, globals())")
    victim.do("source, sink = os.pipe()")
    victim.do("import multiprocessing as m")
    victim.do("target_in = lambda: (setattr(sys, 'stdin', os.fdopen(source)), target())")
    victim.do("p = m.get_context('fork').Process(target=target_in); p.start()")
    pid = int(victim.do("print(p.pid)"))
    rank = wait_until(lambda: watch_or_none(watch), "the forked rank is found")
    assert rank.found.pid == pid
    victim.do("os.write(sink, b'go\\n'); p.join()")
    ended = told(rank)
    assert (ended.kind, ended.code) == (EXIT, code)


def watch_or_none(watch: Callable[[], WatchedRank]) -> WatchedRank | None:
    try:
        return watch()
    except ValueError:  # not one rank, yet
        return None


def test_a_process_that_took_over_the_number_is_not_the_rank(
    start: Callable[..., Victim], watch: Callable[[], WatchedRank]
) -> None:
    victim = start(RANK="0")
    found = watch().found
    before = replace(found.process, start_time=found.process.start_time - 1)
    other = replace(found, process=before, page=None)
    rank = WatchedRank(Proc(), other, time.monotonic(), TcpBytes(), 1.0)
    ended = told(rank)
    assert (ended.kind, ended.code) == (UNKNOWN, None)
    assert victim.process.poll() is None


AS_SOMEBODY_ELSE = """
import os, sys, time
from agent.collectors import endings
from agent.collectors.process import OpenFiles
from agent.procfs import Proc
pid = int(sys.argv[1])
stat = Proc().stat(pid)
watch = endings.EndWatch(pid, stat.start_time, OpenFiles(Proc(), pid))
endings._status_by_pidfd = lambda _: None
print("watching", flush=True)
while not watch.has_ended():
    time.sleep(0.01)
status = watch.status()
print(watch.is_zombie(), status.kind.value, status.code)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="takes on another user's identity: run it as root")
def test_without_the_right_to_trace_a_zero_means_nothing(start: Callable[..., Victim]) -> None:
    """Field 52 of the stat file reads 0 for who may not trace, whatever the exit code was."""
    if not shutil.which("setpriv"):
        pytest.skip("needs setpriv: apt-get install util-linux")
    victim = start(RANK="0")
    command = ["setpriv", "--reuid", "65534", "--clear-groups", "--inh-caps", "-all"]
    other = subprocess.Popen(
        [
            *command,
            "--bounding-set",
            "-all",
            sys.executable,
            "-c",
            AS_SOMEBODY_ELSE,
            str(victim.pid),
        ],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    with other.stdout:
        if other.stdout.readline() != "watching\n":
            other.wait(30)
            pytest.skip("another user cannot run this Python")
        victim.begin("os._exit(3)")
        assert other.stdout.read() == "True unknown None\n"
    assert other.wait(30) == 0


Start = Callable[..., Victim]
Watch = Callable[[], WatchedRank]


def vitals_at_the_end(rank: WatchedRank) -> RankVitals:
    wait_until(lambda: rank.notice_end(time.monotonic()), "the end is noticed")
    return rank.vitals(time.monotonic(), TickBudget())


def ending(rank: WatchedRank) -> Ending:
    ended = vitals_at_the_end(rank).ended
    assert ended is not None
    return ended


def reaped(victim: Victim, rank: WatchedRank) -> Ending:
    victim.process.wait()
    ended = ending(rank)
    assert ended.age_s < 30
    return ended


def test_an_exit_code_is_read_although_somebody_else_waits(start: Start, watch: Watch) -> None:
    victim = start(RANK="0")
    rank = watch()
    victim.begin("os._exit(3)")
    ended = ending(rank)
    assert (ended.kind, ended.code) == (EndingKind.EXIT, 3)


def test_a_signal_is_read(start: Start, watch: Watch) -> None:
    victim = start(RANK="0")
    rank = watch()
    victim.process.kill()
    ended = ending(rank)
    assert (ended.kind, ended.code) == (EndingKind.SIGNAL, signal.SIGKILL)


def test_an_exception_is_told_by_the_page(start: Start, watch: Watch) -> None:
    victim = start(RANK="0")
    victim.do("beat(3)")
    rank = watch()
    victim.begin("raise ValueError('bad shard 7')")
    ended = reaped(victim, rank)
    assert (ended.exception_type, ended.exception_text) == ("ValueError", "bad shard 7")
    assert ended.kind in (EndingKind.EXIT, EndingKind.UNKNOWN)
    assert ended.code == 1


def test_an_exception_is_dated_although_its_process_needs_long_to_end(
    start: Start, watch: Watch
) -> None:
    victim = start(RANK="0")
    victim.do("beat(3)")
    victim.do("import atexit, time; atexit.register(time.sleep, 1)")
    rank = watch()
    victim.begin("raise ValueError('NCCL error\\n\\nLast error:\\nno space left')")
    ended = reaped(victim, rank)
    assert ended.exception_text == "NCCL error | Last error: | no space left"
    assert 1 <= ended.raised_before_s < 30


def test_the_last_step_is_still_told_after_the_end(start: Start, watch: Watch) -> None:
    victim = start(RANK="0")
    rank = watch()
    victim.do("beat(41)")
    victim.process.kill()
    victim.process.wait()
    beat = vitals_at_the_end(rank).beat
    assert beat is not None
    assert beat.step == 41


def test_a_zombie_has_ended(start: Start, watch: Watch) -> None:
    victim = start(RANK="0")
    rank = watch()
    victim.process.send_signal(signal.SIGTERM)
    vitals = vitals_at_the_end(rank)  # nobody has waited for it yet
    assert vitals.state is ProcessState.ZOMBIE
    assert vitals.ended is not None
    assert (vitals.ended.kind, vitals.ended.code) == (EndingKind.SIGNAL, signal.SIGTERM)


def test_a_process_whose_main_thread_ended_lives_on(start: Start, watch: Watch) -> None:
    victim = start(RANK="0")
    rank = watch()
    victim.do("threading.Thread(target=time.sleep, args=(600,)).start()")
    victim.begin("import ctypes; ctypes.CDLL(None).pthread_exit(None)")
    stat = wait_until(
        lambda: (s := Proc().stat(victim.pid)) and s.state == "Z" and s, "the main thread is gone"
    )
    assert stat
    assert not rank.notice_end(time.monotonic())
    assert rank.vitals(time.monotonic(), TickBudget()).state is ProcessState.ZOMBIE
