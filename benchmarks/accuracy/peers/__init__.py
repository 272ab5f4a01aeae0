"""Other tools that judge the same hung jobs from the same evidence, in the order of the report."""

from __future__ import annotations

from benchmarks.accuracy.peers import count_below_leader, frtrace, stack_majority
from benchmarks.accuracy.peers.peer import Peer

PEERS: tuple[Peer, ...] = (
    count_below_leader.PEER,
    stack_majority.PEER,
    frtrace.AS_SHIPPED,
    frtrace.REPAIRED,
)
