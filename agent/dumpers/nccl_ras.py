"""Asks NCCL's RAS subsystem of a job what its ranks have launched, if a rank of the node answers.

One process of a node listens for the job: at NCCL_RAS_ADDR, else at localhost:28028. The kernel
shows which process this is, so that several jobs of a node are told apart, and only a rank is
asked. RAS collects the counts from all nodes: one query is for the whole job.

Sources: NVIDIA's documentation of RAS; NCCL's ras/client.cc.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Iterator
from itertools import islice

from agent.dumpers.dumper import DEAD, RanksOfRound, Tree
from agent.dumpers.kernel_state import SocketTables, read_socket
from agent.netlink import in_network_of
from agent.procfs import Proc, parse_environ
from agent.ranks.guarded_reads import GuardedReads
from agent.ranks.owners import Owners

QUESTION = b"verbose status\n"

DEFAULT_PORT = 28028
VARIABLE = "NCCL_RAS_ADDR"

DEADLINE_S = 2.0
"""Seconds for an answer. RAS waits 5 s for a node that does not answer, and
dumps must not wait for that."""

AGAIN_S = 30.0
"""Seconds between two queries of one process: both rounds of a dump have one answer."""

MAX_ANSWER_BYTES = 1 << 20
"""Bytes of an answer. One of 16,384 ranks, of which some are listed, has 20 kB."""

MAX_DESCRIPTORS = 4096
"""Descriptors of one rank that are read, at 5 us each."""

MAX_ASKED = 8
"""Jobs with ranks in one round: each may have a process that listens."""


class NcclRas:
    """Asks the process of each round that listens, and remembers its answer for a while."""

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._reads = GuardedReads(Owners(proc).find_quietly)
        self._answers: dict[tuple[int, int], tuple[float, bytes]] = {}

    def ask(self, ranks: RanksOfRound) -> Iterator[tuple[Tree, str, bytes]]:
        """Yield the rank that listens, its address, and what it answers."""
        now = time.monotonic()
        self._answers = {k: each for k, each in self._answers.items() if now - each[0] < AGAIN_S}
        for tree, address in islice(self._find_listeners(ranks), MAX_ASKED):
            key = (tree.target.pid, tree.target.start_time)
            if key not in self._answers:
                self._answers[key] = now, self._query(tree.target.pid, address)
            if answer := self._answers[key][1]:
                yield tree, f"NCCL RAS at {address[0]}:{address[1]}", answer

    def _find_listeners(self, ranks: RanksOfRound) -> Iterator[tuple[Tree, tuple[str, int]]]:
        for tree in ranks.trees:
            if tree.process.kernel.state in DEAD:
                continue
            listening = dict(self._listening(tree.target.pid, ranks.tables.sockets))
            port = self._port_of(tree.target.pid) if listening else -1
            if port in listening:
                yield tree, (listening[port], port)

    def _listening(self, pid: int, tables: SocketTables) -> Iterator[tuple[int, str]]:
        """Yield the ports at which a process listens, with their addresses."""
        for link in islice(self._proc.descriptors(pid), MAX_DESCRIPTORS):
            if link.startswith("socket:["):
                found = read_socket(tables.find_tcp(pid, int(link[len("socket:[") : -1])) or [])
                if isinstance(found, str):
                    address, _, port = found.rpartition(":")
                    yield int(port), _reachable(address.strip("[]"))

    def _port_of(self, pid: int) -> int:
        raw = self._reads.run(pid, lambda: self._proc.try_read(pid, "environ")) or b""
        port = parse_environ(raw).get(VARIABLE, "").rpartition(":")[2]
        return int(port) if port.isdecimal() and len(port) <= 5 else DEFAULT_PORT

    def _query(self, pid: int, address: tuple[str, int]) -> bytes:
        if self._proc.link(pid, "ns/net") == self._proc.link(os.getpid(), "ns/net"):
            return query(address)
        return in_network_of(self._proc.file(pid, "ns/net"), lambda: query(address)) or b""


def _reachable(address: str) -> str:
    """Return where a socket is reached that listens at all addresses."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)


def query(address: tuple[str, int]) -> bytes:
    """Return what RAS answers in time; empty if it does not."""
    deadline = time.monotonic() + DEADLINE_S
    try:
        with socket.create_connection(address, DEADLINE_S) as connection:
            connection.sendall(QUESTION)
            return b"".join(_read(connection, deadline))
    except OSError:
        return b""


def _read(connection: socket.socket, deadline: float) -> Iterable[bytes]:
    left = MAX_ANSWER_BYTES
    while left > 0 and (left_s := deadline - time.monotonic()) > 0:
        connection.settimeout(left_s)
        try:
            part = connection.recv(min(left, 65_536))
        except TimeoutError:
            return  # what it has said so far
        if not part:
            return
        left -= len(part)
        yield part
