"""Dumper: what a thread waits for in poll or epoll, where the call itself does not show it.

A poll has its descriptors in memory, and an epoll in the kernel. A child process reads them,
because the reads may hang.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import msgspec

from agent.children import ChildRunner, Program
from agent.dumpers.dumper import RanksOfRound, Step
from agent.dumpers.kernel_state import KernelTables, describe_target, load_system_calls
from agent.dumpers.watched_child import EPOLL, POLL
from agent.procfs import Proc
from watchtower.wire.bounds import MAX_TEXT
from watchtower.wire.dumps import KernelWait
from watchtower.wire.sockets import is_listening
from watchtower.writing.printable import printable

WATCHED_DEADLINE_S = 1.0
"""Seconds for all calls of a round, which take 30 ms. Calls without an answer have no target."""

MAX_CALLS = 512
"""Calls of one round: a question has at most 64 bytes, and a command line 128 KB at least."""

MAX_WATCHED_OUTPUT_BYTES = 1 << 18
"""Bytes of a round: 16 numbers for each call."""

CALLS = {
    "poll": POLL,
    "ppoll": POLL,
    "epoll_wait": EPOLL,
    "epoll_pwait": EPOLL,
    "epoll_pwait2": EPOLL,
}

log = logging.getLogger(__name__)

WATCHED_CHILD = Program(
    name="agent.dumpers.watched_child",
    answers=msgspec.json.Decoder(list[int]),
    purpose="the descriptors of polls cannot be read",
    max_output_bytes=MAX_WATCHED_OUTPUT_BYTES,
)


class ThreadId(NamedTuple):
    """Identifies a thread of a process. Of the main thread both numbers are equal."""

    pid: int
    tid: int


class WatchedDescriptors:
    """Finds what threads wait for in poll and epoll."""

    name, at_once, needs_stacks = "watched", 1, False

    def __init__(self, proc: Proc, runner: ChildRunner) -> None:
        self._proc, self._runner = proc, runner
        self._system_calls = load_system_calls(platform.machine())

    def plan(self, ranks: RanksOfRound) -> Sequence[Step]:
        """Return one step: a child reads for all main threads what they wait for, if they poll."""
        return [partial(self._fill, ranks)]

    def _fill(self, ranks: RanksOfRound) -> None:
        by_thread = {ThreadId(each.pid, each.pid): each for each in ranks.processes()}
        waits = {thread: each.kernel for thread, each in by_thread.items()}
        for thread, wait in self.find(waits, ranks.owner, ranks.tables).items():
            by_thread[thread].kernel = wait

    def find(
        self, waits: Mapping[ThreadId, KernelWait], owner: str, tables: KernelTables
    ) -> dict[ThreadId, KernelWait]:
        """Return the waits of those threads that are in such a call, with what they wait for."""
        asked = {
            thread: question
            for thread, wait in waits.items()
            if wait.syscall in CALLS and (question := self._ask(thread, wait.syscall))
        }
        threads = list(asked)[:MAX_CALLS]
        words = [self._proc.path, *(asked[thread] for thread in threads)]
        found: tuple[list[int], ...] = ()
        if threads:
            found = self._runner.ask(WATCHED_CHILD, words, WATCHED_DEADLINE_S, owner).found
        return {
            thread: self._aim(thread, waits[thread], descriptors, tables)
            for thread, descriptors in zip(threads, found, strict=False)
        }

    def _ask(self, thread: ThreadId, name: str) -> str:
        """Return the question about a thread that is still in this call, else nothing."""
        raw = self._proc.try_read(thread.pid, f"task/{thread.tid}/syscall", 256)
        words = raw.decode("ascii", "replace").split()
        try:
            number, first, second = int(words[0]), int(words[1], 16), int(words[2], 16)
        except (IndexError, ValueError):
            return ""
        if number < 0 or self._system_calls.name(number) != name:
            return ""
        if CALLS[name] == POLL:
            return f"{thread.pid} {POLL} {first:#x} {second}"
        return f"{thread.pid} {EPOLL} {first & 0xFFFFFFFF}"

    def _aim(
        self,
        thread: ThreadId,
        wait: KernelWait,
        descriptors: list[int],
        tables: KernelTables,
    ) -> KernelWait:
        """Return the wait with its target: a listening socket, as an event loop that watches one is
        a server; else the only descriptor of a poll."""
        targets = [
            describe_target(self._proc, thread.pid, number, tables.sockets)
            for number in descriptors
        ]
        servers = [each for each in targets if is_listening(each)]
        polled = targets if CALLS[wait.syscall] == POLL and len(targets) == 1 else []
        target = next(iter(servers or polled), "")
        return replace(wait, target=printable(target, MAX_TEXT)) if target else wait
