"""Settings in which the ranks of a job differ, although they must be equal for the ranks to meet.

Where a rank is connected to counts as a setting, too: its program may have an address of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from watchtower.diagnosis.position import Position
from watchtower.diagnosis.waits.positions import Positions
from watchtower.evidence.frames import FrameClass
from watchtower.wire.dumps import MASTER_ADDRESS, MASTER_PORT
from watchtower.wire.sockets import read_remote

MAX_DIGITS = 9
"""Digits of a world size that are read. Nine are enough."""

WORLD_SIZE = "WORLD_SIZE"
MEETING = f"{MASTER_ADDRESS} and {MASTER_PORT}"
"""Both together are one setting: where the ranks meet."""

PEER = "peer"
"""The address that a rank connects to, whatever its settings are."""


class Difference(NamedTuple):
    """Ranks whose value of one setting differs from that of most ranks."""

    name: str
    odd: tuple[Position, ...]
    values: Mapping[int, str]
    """By rank, of all ranks of which it is known."""
    usual: str

    @property
    def usual_ranks(self) -> list[int]:
        """The ranks with the value of most ranks."""
        return [rank for rank, value in self.values.items() if value == self.usual]


def find_differences(positions: Positions) -> Iterator[Difference]:
    """Yield the settings that differ between ranks, and the addresses that they connect to."""
    values: dict[str, dict[int, str]] = {}
    for item in positions.live:
        for name, value in read_settings(item).items():
            values.setdefault(name, {})[item.rank] = value
    for name, by_rank in values.items():
        if len(set(by_rank.values())) > 1:
            yield _compare(positions, name, by_rank)
    if (peers := _find_peers(positions)) is not None:
        yield peers


def list_in_init(positions: Positions) -> list[Position]:
    """Return the ranks that wait in set-up."""
    return [item for item in positions.waiting if item.frame_class is FrameClass.INIT]


def has_not_met(position: Position) -> bool:
    """Return whether a rank is known not to have reached the store of the others."""
    return bool(position.unanswered) or (position.reading is not None and position.reading.meets)


def _find_peers(positions: Positions) -> Difference | None:
    """Return the ranks that have not met the others and have another address at the other end, if
    all others in set-up have one and the same.
    """
    in_init = list_in_init(positions)
    peers = {item.rank: peer for item in in_init if (peer := read_remote(item.kernel.target))}
    apart = [item for item in in_init if item.rank in peers and has_not_met(item)]
    met = {peers[rank] for rank in peers.keys() - {item.rank for item in apart}}
    odd = tuple(item for item in apart if peers[item.rank] not in met)
    return Difference(PEER, odd, peers, met.pop()) if odd and len(met) == 1 else None


def read_settings(position: Position) -> dict[str, str]:
    """Return the settings of a rank that must be equal on all ranks, by name."""
    newest = next((dump for dump in reversed(position.evidence.dumps) if dump.settings), None)
    found = {each.name: each.value for each in newest.settings} if newest is not None else {}
    address, port = found.pop(MASTER_ADDRESS, ""), found.pop(MASTER_PORT, "")
    meeting = {MEETING: f"{address}:{port}"} if address and port else {}
    return {**meeting, **found}


def _compare(positions: Positions, name: str, values: Mapping[int, str]) -> Difference:
    """Return the ranks without the value of most ranks; of equally many, that of the lowest rank.

    The lowest rank usually serves the store at which the others meet.
    """
    count = Counter(values[rank] for rank in sorted(values))  # equal counts: the first one is first
    usual = count.most_common(1)[0][0]
    odd = tuple(positions.by_rank[rank] for rank in sorted(values) if values[rank] != usual)
    return Difference(name, odd, values, usual)


def find_phantoms(positions: Positions, differences: tuple[Difference, ...]) -> frozenset[int]:
    """Return the missing ranks that only a wrong WORLD_SIZE of few ranks promises."""
    usual = next((each.usual for each in differences if each.name == WORLD_SIZE), "")
    if not (usual.isascii() and usual.isdigit()):
        return frozenset()
    most = int(usual[:MAX_DIGITS])
    return frozenset(item.rank for item in positions.missing if item.rank >= most)
