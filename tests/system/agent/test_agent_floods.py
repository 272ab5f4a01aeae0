"""Pages that are traps, and a thousand processes: the other ranks are watched."""

from __future__ import annotations

import os
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.procfs import Proc
from agent.ranks.discovery import Discovery
from agent.ranks.pages import find_page
from agent.ranks.process_table import ProcessTable
from agent.ranks.unwatched import MAX_LIVING
from agent.watching.watchlist import Watchlist
from tests.system.agent.agent_processes import Victim
from tests.waiting import wait_until

Start = Callable[..., Victim]


def a_discovery(mark: str) -> Discovery:
    proc = Proc()
    match = {"WATCHTOWER_TEST": mark}
    return Discovery(proc, ProcessTable(proc), match=match, host="gpu-1", own_pid=-1)


TRAPS = {
    "a FIFO": "os.mkfifo(PATH); f = os.open(PATH, os.O_RDWR)",
    "a terabyte": "f = os.open(PATH, os.O_CREAT | os.O_RDWR); os.truncate(f, 2**40)",
    "an empty one": "f = os.open(PATH, os.O_CREAT | os.O_RDWR)",
    "a directory": "os.mkdir(PATH); f = os.open(PATH, os.O_RDONLY)",
    "thousands of them": (
        "f = os.open(PATH, os.O_CREAT | os.O_RDWR); g = [os.dup(f) for _ in range(900)]"
    ),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_what_only_has_the_name_of_a_page_is_none_and_holds_nobody_up(
    start: Start, tmp_path: Path, trap: str
) -> None:
    victim = start(RANK="0")
    path = str(tmp_path / "watchtower-heartbeat.1")
    victim.do(TRAPS[trap].replace("PATH", repr(path)))
    before = len(os.listdir("/proc/self/fd"))
    began = time.monotonic()
    assert find_page(Proc(), victim.pid, -5).page is None  # its own page has another start time
    assert time.monotonic() - began < 5
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_page_of_another_process_is_nobodys(start: Start) -> None:
    victim = start(RANK="0")
    victim.do("from watchtower_heartbeat.layout import MEMFD_NAME")
    liar = start(RANK="1")
    liar.do(
        f"fd = os.open([p for p in (f'/proc/{victim.pid}/fd/' + n for n in os.listdir("
        f"'/proc/{victim.pid}/fd')) if 'heartbeat' in os.readlink(p)][0], os.O_RDWR)"
    )
    stat = Proc().stat(liar.pid)
    assert stat is not None
    page = find_page(Proc(), liar.pid, stat.start_time).page
    assert page is not None
    assert page.read().pid == liar.pid


SLEEPERS = """
import os, sys, signal
count, program = int(sys.argv[1]), sys.argv[2]
pids = []
for number in range(count):
    pid = os.posix_spawn(program, [program, "600"], {**os.environ, "RANK": str(number)})
    pids.append(pid)
print("ready", flush=True)
sys.stdin.readline()
for pid in pids:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
print("done", flush=True)
"""


def test_a_thousand_processes_that_resemble_ranks_do_not_hide_a_good_one(
    start: Start, mark: str, tmp_path: Path
) -> None:
    flood = start([sys.executable, "-c", SLEEPERS, "1000", "/bin/sleep"], WATCHTOWER_JOB="flood")
    good = start(RANK="0", WATCHTOWER_JOB="good")
    discovery = a_discovery(mark)
    watchlist = Watchlist(discovery._proc, 1.0)
    tracemalloc.start()
    ticks = []

    def found() -> bool:
        began = time.monotonic()
        ranks = discovery.tick(began)
        watchlist.update(ranks, began)
        ticks.append(time.monotonic() - began)
        return any(rank.pid == good.pid and rank.page for rank in ranks)

    try:
        wait_until(found, "the good rank is found with its page")
        wait_until(lambda: found() and discovery.unwatched, "the flood is left out in part")
        assert tracemalloc.get_traced_memory()[0] < 30_000_000
    finally:
        tracemalloc.stop()
    assert len(watchlist.living()) == MAX_LIVING
    (flooding,) = discovery.unwatched
    assert (flooding.reason, flooding.job) == ("over_limit", "flood")
    assert max(ticks) < 5.0
    flood.begin("")
    flood.process.wait(30)
