"""What a rank talks over: whether it has a card of InfiniBand or RoCE open, and NCCL's channels.

Both are known once the rank has made a step: then it has called the others. The kernel lists open
devices. The channels are lines of NCCL's log in the output of the rank, which the agent may read
(`--output-lines`), and which has them only with NCCL_DEBUG=INFO.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator, Sequence
from itertools import islice

from agent.children import ChildRunner
from agent.dumpers.outputs import Output, Outputs
from agent.dumpers.written_logs import LOG_CHILD
from agent.procfs import Proc
from agent.watching.rank import WatchedRank
from watchtower.wire.bounds import MAX_NAME
from watchtower.writing.printable import printable

CARDS = ("/dev/infiniband/", "/dev/hfi1")
"""Beginnings of the files of cards. A library that uses a card has its file open."""

MAX_DESCRIPTORS = 4096
"""Descriptors of one rank that are read. It has some hundred; each costs 2 us."""

MAX_LOG_BYTES, LOG_S = 1 << 18, 2.0
"""Bytes at the end of one output, and seconds for those of all ranks. Channels are set up before
the first step, so they are near the end when a rank is read after it."""

MAX_CHANNELS = 8
"""Kinds of channels of one rank. It has two or three."""

_CHANNEL = re.compile(
    rb"NCCL INFO Channel \d{1,3}/\d{1,3} : \d{1,7}\[[0-9a-f]{1,8}\] -> \d{1,7}\[[0-9a-f]{1,8}\]"
    rb"(?: \[(?:send|receive)\])? via (\w{1,16}(?:/[\w ()-]{1,32}){0,4})"
)
"""gpu-0:71:90 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA"""

_Key = tuple[int, int]


def read_channels(raw: bytes) -> str:
    """Return the kinds of NCCL's channels in a log: "NET/IB/GDRDMA, P2P"; empty without any."""
    kinds = {_name_kind(match[1].decode("ascii", "replace")) for match in _CHANNEL.finditer(raw)}
    return printable(", ".join(sorted(kinds)[:MAX_CHANNELS]), MAX_NAME)


def _name_kind(path: str) -> str:
    kind, *rest = path.split("/")
    if kind != "NET" or not rest:
        return kind
    return f"NET/{rest[0].strip()}" + ("/GDRDMA" if any("GDRDMA" in each for each in rest) else "")


class RankNetworks:
    """Reads what ranks talk over. Reads may block: for the thread of the configurations."""

    def __init__(self, proc: Proc, root: str, runner: ChildRunner, outputs: Outputs | None) -> None:
        """Without `outputs` no log is read."""
        self._proc, self._runner, self._outputs = proc, runner, outputs
        self._cards = os.path.join(root, "sys/class/infiniband")
        self._channels: dict[_Key, str] = {}

    def find(self, ranks: Sequence[WatchedRank]) -> dict[_Key, dict[str, str]]:
        """Return what is known of these ranks, by name: "rdma", "channels"."""
        living = {rank.key for rank in ranks}
        self._channels = {key: each for key, each in self._channels.items() if key in living}
        stepped = [rank for rank in ranks if _has_stepped(rank)]
        self._read_logs([rank.key for rank in stepped if rank.key not in self._channels])
        has_cards = os.path.isdir(self._cards) and bool(os.listdir(self._cards))
        found = {}
        for rank in stepped:
            values = {"channels": self._channels.get(rank.key, "")}
            if has_cards:
                is_open = self._has_card(rank.key[0])
                values["rdma"] = "in use" if is_open else "not in use"
            found[rank.key] = {name: value for name, value in values.items() if value}
        return found

    def _has_card(self, pid: int) -> bool:
        links = islice(self._proc.descriptors(pid), MAX_DESCRIPTORS)
        return any(link.startswith(CARDS) for link in links)

    def _read_logs(self, keys: Sequence[_Key]) -> None:
        for key in keys:
            self._channels[key] = ""
        files = list(self._list_outputs(keys))
        if not files:
            return
        numbers = [str(output.held.number) for _, output in files]
        words = [f"/proc/{os.getpid()}/fd", str(MAX_LOG_BYTES), *numbers]
        answers = self._runner.ask(LOG_CHILD, words, LOG_S, "").found
        for (key, _), read in zip(files, answers, strict=False):
            self._channels[key] = self._channels[key] or read_channels(base64.b64decode(read.raw))

    def _list_outputs(self, keys: Sequence[_Key]) -> Iterator[tuple[_Key, Output]]:
        if self._outputs is not None:
            for key in keys:
                yield from ((key, output) for output in self._outputs.of(key))


def _has_stepped(rank: WatchedRank) -> bool:
    view = rank.heartbeat.view if rank.heartbeat is not None else None
    return view is not None and view.step >= 1
