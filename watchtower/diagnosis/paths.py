"""The paths between ranks of a job on which nothing gets through: both ends of stalled connections.

Retransmissions alone show nothing: each answer ends them. A connection counts if nothing at all got
through between two dumps, and the kernel tries again and again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from watchtower.diagnosis.position import Position
from watchtower.diagnosis.waits.positions import Positions
from watchtower.evidence.case import Presence
from watchtower.evidence.connections import (
    find_address,
    find_stalled,
    find_unopened,
    list_addresses,
)
from watchtower.wire.connections import Connection, LocalAddress
from watchtower.wire.sockets import split_port

if TYPE_CHECKING:
    from watchtower.diagnosis.picture import Picture

Addresses: TypeAlias = Mapping[str, Sequence[tuple[Position, LocalAddress]]]
"""The ranks that have connections at each address."""


class Path(NamedTuple):
    """A stalled connection between two ranks of the job."""

    sender: Position
    receiver: Position
    connection: Connection
    near: LocalAddress
    far: LocalAddress

    @property
    def has_two_mtus(self) -> bool:
        """Whether the interfaces of both ends have different MTUs."""
        return bool(self.near.mtu and self.far.mtu) and self.near.mtu != self.far.mtu

    @property
    def ends(self) -> frozenset[str]:
        """The addresses of both ends."""
        return frozenset({self.near.address, self.far.address})


def index_addresses(positions: Positions) -> Addresses:
    """Return the ranks of the job by their addresses."""
    found: dict[str, list[tuple[Position, LocalAddress]]] = {}
    for item in positions.by_rank.values():
        for each in list_addresses(item.evidence.dumps):
            found.setdefault(each.address, []).append((item, each))
    return found


def find_paths(picture: Picture) -> tuple[Path, ...]:
    """Return the stalled connections between live ranks, those with most tries first."""
    paths = [path for item in picture.live if _is_seen(item) for path in _find_from(picture, item)]
    return tuple(sorted(paths, key=lambda each: (-each.connection.tries, each.sender.rank)))


def _is_seen(item: Position) -> bool:
    """Return whether the agent of a rank reports it: of a node that is gone, the other end is
    there."""
    return item.live and item.evidence.presence is Presence.LIVE


def _find_from(picture: Picture, sender: Position) -> Iterator[Path]:
    for connection in find_stalled(sender.evidence.dumps):
        near = find_address(sender.evidence.dumps, split_port(connection.local)[0])
        receiver, far = _find_end(picture, sender, *split_port(connection.remote))
        if near is not None and receiver is not None and far is not None:
            yield Path(sender, receiver, connection, near, far)


def _find_end(
    picture: Picture, sender: Position, address: str, port: int
) -> tuple[Position | None, LocalAddress | None]:
    """Return the rank with this end of a connection; None if it is not known."""
    there = [
        each
        for each in picture.addresses.get(address, ())
        if each[0] is not sender and _is_seen(each[0])
    ]
    exact = [each for each in there if port in each[1].ports]
    chosen = exact if len(exact) == 1 else there
    return chosen[0] if len(chosen) == 1 else (None, None)


def find_unanswered(picture: Picture, position: Position) -> str:
    """Return the address and port that do not answer a rank; empty if there are none.

    It is the one that its main thread waits for, or one of another rank: libraries connect in other
    threads. A service outside the job that does not answer such a thread keeps no rank.
    """
    of_ranks = (
        each.remote
        for each in find_unopened(position.evidence.dumps)
        if split_port(each.remote)[0] in picture.addresses
    )
    return position.unanswered or next(of_ranks, "")
