"""Collector: the process that listens at a port which a rank needed and did not get.

Such a rank ends at once. Its error names the port at most, and only its node knows which process
has it, as long as that process lives. So the sockets are read once, when the rank has ended.

A rank whose error is not known may have needed the port at which the ranks of its job meet, if it
is the one that serves it. Then only a process of another job counts.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from agent.collectors.collector import Collector, name_pid
from agent.dumpers.kernel_state import list_listening
from agent.procfs import CLOCK_TICKS_PER_S, MAX_COMMAND_BYTES, Proc, parse_command
from agent.ranks.guarded_reads import GuardedReads
from agent.ranks.launchers import name_program
from agent.ranks.owners import Owners
from watchtower.wire.observations import MAX_OBSERVATION_TEXT, Observation
from watchtower.wire.report import Ending, EndingKind
from watchtower.wire.sockets import split_port
from watchtower.writing.printable import printable

FRESH_S = 10.0
"""Seconds after the end of a rank in which its port is read: later, another process may have it."""

KEPT_S = 600.0
"""Seconds for which an observation stays: a job whose other ranks wait in set-up is judged late."""

MAX_FOUND = 32
"""Ends that are remembered. A node has up to 16 ranks of a job."""

MAX_LINKS = 20_000
"""Descriptors read for one port, at 5 us each. Those of the user whose socket it is come first."""

MAX_PORTS = 4
"""Ports of one error. The first ones are in the message itself."""

_IN_USE = re.compile(r"address already in use|EADDRINUSE", re.IGNORECASE)
_PORT = re.compile(r"(?:port:? ?|:|', )(\d{1,5})\b")
"""A port as libraries write it: "port: 29500", "[::]:29500", "('127.0.0.1', 29500)"."""


class Ended(NamedTuple):
    """A rank, or a launcher, that has ended."""

    pid: int
    start_time: int
    job: str
    ending: Ending
    rendezvous: str
    """As in `wire.report.Launch`."""
    serves: bool
    """The ranks of its job meet at this rank, and it has not made a step."""
    network: str
    """Its network namespace; empty if it is not known."""
    is_launcher: bool = False
    """It has ended before it had ranks, with an exit code that is not known."""

    @property
    def is_refused(self) -> bool:
        """Whether its error says that an address is in use."""
        return bool(_IN_USE.search(self.ending.exception_text))

    def find_ports(self) -> Iterator[int]:
        """Yield the ports that it may have needed."""
        if self.is_refused:
            found = _PORT.finditer(self.ending.exception_text)
            yield from (int(match[1]) for match in islice(found, MAX_PORTS))
        if self.is_refused or self.is_launcher or (self.serves and is_unexplained(self.ending)):
            yield split_port(self.rendezvous)[1]


def is_unexplained(ending: Ending) -> bool:
    """Return whether a process has ended with a code that shows some error."""
    return ending.kind is EndingKind.EXIT and bool(ending.code) and not ending.exception_type


class Listeners(Collector):
    """Reads the sockets of one root."""

    name = "listeners"

    def __init__(
        self,
        root: str = "/",
        find_ended: Callable[[], Iterable[Ended]] = lambda: (),
        find_job: Callable[[int], str] = lambda _: "",
    ) -> None:
        """`find_job` returns the job of a process, empty if it is not known."""
        self._proc = Proc(root)
        self._find_ended, self._find_job = find_ended, find_job
        self._owners = Owners(self._proc)
        self._reads = GuardedReads(self._owners.find_quietly)
        self._found: dict[tuple[int, int], tuple[float, str]] = {}
        """When each rank that has ended was checked, and what listened, by pid and start time."""

    def collect(self, now: float) -> Iterator[Observation]:
        """Return one observation for each rank whose port another process has."""
        self._found = {k: each for k, each in self._found.items() if now - each[0] <= KEPT_S}
        new = (each for each in self._find_ended() if each.ending.age_s <= FRESH_S)
        for each in new:
            key = each.pid, each.start_time
            if key not in self._found and len(self._found) < MAX_FOUND:
                self._found[key] = now, self._find(each)
        for (pid, _), (at, text) in self._found.items():
            if text:
                yield Observation(
                    source=self.name,
                    subject=name_pid(pid),
                    name="port_in_use",
                    age_s=now - at,
                    text=printable(text, MAX_OBSERVATION_TEXT),
                    pid=pid,
                )

    def _find(self, ended: Ended) -> str:
        """Return which process listens at the port that a rank needed; empty if none does."""
        ports = set(ended.find_ports()) - {0}
        member = self._find_member(ended.network) if ports else None
        if member is None:
            return ""
        for address, inode, user in list_listening(self._proc, member):
            if split_port(address)[1] not in ports:
                continue
            pid = self._find_process(inode, user)
            job = self._find_job(pid) if pid else ""
            if ended.is_refused or (pid and job != ended.job and self._is_older(pid, ended)):
                return f"{self._describe(pid, user, job)} listens at {address}"
        return ""

    def _find_member(self, network: str) -> int | None:
        """Return any process in a network namespace; None if all have ended."""
        own = int(self._proc.link_of_self() or 1)
        if network in ("", self._proc.link(own, "ns/net")):
            return own
        return next((p for p in self._proc.pids() if self._proc.link(p, "ns/net") == network), None)

    def _find_process(self, inode: int, user: int) -> int:
        """Return the pid of the process that has a socket; 0 if it is not known."""
        wanted, left = f"socket:[{inode}]", MAX_LINKS
        for _, pid in sorted((self._user_of(pid) != user, pid) for pid in self._proc.pids()):
            for link in islice(self._proc.descriptors(pid), left):
                left -= 1
                if link == wanted:
                    return pid
        return 0

    def _user_of(self, pid: int) -> int:
        try:
            return os.stat(self._proc.file(pid, "")).st_uid
        except OSError:
            return -1

    def _is_older(self, pid: int, ended: Ended) -> bool:
        """Return whether a process was there before the rank had ended."""
        stat, ended_at = self._proc.stat(pid), time.clock_gettime(time.CLOCK_BOOTTIME)
        ended_at -= ended.ending.age_s
        return stat is not None and stat.start_time / CLOCK_TICKS_PER_S <= ended_at

    def _describe(self, pid: int, user: int, job: str) -> str:
        """Return "pid 4711 (python3, job llama, uid:1000)"."""
        if not pid:
            return f"a process of uid:{user}"
        command = self._reads.run(
            pid, lambda: self._proc.try_read(pid, "cmdline", MAX_COMMAND_BYTES)
        )
        program = name_program(parse_command(command or b"")) or self._proc.name(pid)
        owner = self._owners.find_quietly(pid) or f"uid:{user}"
        about = filter(None, (program, f"job {job}" if job else "", owner))
        return f"pid {pid} ({', '.join(about)})"
