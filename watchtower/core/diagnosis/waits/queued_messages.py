"""Sends and receives of ranks that queue them on a device.

The client counts calls. A call that blocks is done when the message is there. A queued call is done
at once, and the message may never come. But no message arrives before it is sent. So the count of
the sender shows which receive the device waits in.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from watchtower.wire.collectives import PeerTransfers

MAX_AHEAD = 32
"""Receives that a host may have queued ahead of the sender. If it has queued far more, its messages
come by another kind of send, which is not counted."""

Transfers = Mapping[int, tuple[PeerTransfers, ...]]
"""By rank, a row for each of its peers."""


def limit_to_sent(transfers: Transfers, queued: Collection[int]) -> Transfers:
    """Count receives of `queued` ranks as done only if their messages were sent.

    `queued`: ranks that wait for their device. They are in no send or receive themselves.
    """
    if not queued:
        return transfers
    sent = {
        (rank, row.peer): row.sends_begun
        for rank, rows in transfers.items()
        for row in rows
        if row.sends_begun
    }
    return {
        rank: tuple(_limit(row, sent.get((row.peer, rank), 0)) for row in rows)
        if rank in queued
        else rows
        for rank, rows in transfers.items()
    }


def _limit(row: PeerTransfers, sent: int) -> PeerTransfers:
    is_served = sent > 0 and row.receives_begun - sent <= MAX_AHEAD
    return replace(row, receives_done=min(row.receives_done, sent)) if is_served else row
