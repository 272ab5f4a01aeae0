"""Sends and receives of ranks that queue them on a device.

The client counts calls. A call that blocks is done when the message is there. A queued call is done
at once, and the message may never come. But no message arrives before it is sent. So the count of
the sender shows which receive the device waits in.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from watchtower.wire.collectives import PeerTransfers

MAX_AHEAD = 32
"""Receives that a host may have queued ahead of the sender. If it has queued far more, its messages
come by another kind of send, which is not counted."""

Transfers = Mapping[int, tuple[PeerTransfers, ...]]
"""By rank, a row for each of its peers."""


def limit_to_sent(transfers: Transfers, queued: Collection[int]) -> Transfers:
    """Count receives of `queued` ranks as done only if their messages were sent.

    `queued`: ranks that wait for their device. If the device waits in a receive, the host may be
    in a send that it cannot queue any more. The device has not come to that send.
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
        rank: _limit_sends([_limit(row, sent.get((row.peer, rank), 0)) for row in rows])
        if rank in queued
        else rows
        for rank, rows in transfers.items()
    }


def _limit_sends(rows: Sequence[PeerTransfers]) -> tuple[PeerTransfers, ...]:
    """Count sends that were not queued as not begun, if the device waits in a receive."""
    waits = any(row.receives_begun > row.receives_done for row in rows)
    return tuple(replace(row, sends_begun=row.sends_done) if waits else row for row in rows)


def _limit(row: PeerTransfers, sent: int) -> PeerTransfers:
    is_served = sent > 0 and row.receives_begun - sent <= MAX_AHEAD
    return replace(row, receives_done=min(row.receives_done, sent)) if is_served else row
