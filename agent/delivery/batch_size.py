"""Cuts a batch of dumps to the size that a tower accepts. A longer one is refused for good."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import msgspec

from watchtower.wire.bounds import MAX_DUMPS_BYTES
from watchtower.wire.collectives import RankCollectives
from watchtower.wire.dumps import ChildDump, DumpBatch, DumpFailure, FailureKind, RankDump

HEAD_BYTES = 64
"""Space for `held_s`, which is inserted when the batch is sent."""

LEFT_OUT = "dropped, because the dumps of this node together are longer than a tower accepts"


class FittedBatch(NamedTuple):
    """A batch as JSON, and whether parts of it were dropped."""

    body: bytes
    is_cut: bool


def encode_batch(batch: DumpBatch, limit: int = MAX_DUMPS_BYTES - HEAD_BYTES) -> bytes:
    """Return the batch as JSON of at most `limit` bytes. The least useful parts are dropped first.

    Only thousands of children with deep stacks, or endless names, make a batch that long.
    """
    return fit_batch(batch, limit).body


def fit_batch(batch: DumpBatch, limit: int) -> FittedBatch:
    """Return the same with whether parts were dropped."""
    whole = body = msgspec.json.encode(batch)
    for cut in _CUTS:
        if len(body) <= limit:
            break
        batch = _without_unused(replace(batch, ranks=tuple(cut(rank) for rank in batch.ranks)))
        body = msgspec.json.encode(batch)
    return FittedBatch(body, is_cut=len(body) < len(whole))


def _without_child_stacks(rank: RankDump) -> RankDump:
    return replace(rank, children=tuple(_without_threads(child) for child in rank.children))


def _without_threads(child: ChildDump) -> ChildDump:
    return replace(child, threads=(), failure=_left_out(child.failure)) if child.threads else child


def _without_side_threads(rank: RankDump) -> RankDump:
    return replace(rank, threads=tuple(thread for thread in rank.threads if thread.main))


def _without_collectives(rank: RankDump) -> RankDump:
    if rank.collectives is None:
        return rank
    peers, failure = rank.collectives.peers, rank.collectives.failure or LEFT_OUT
    return replace(rank, collectives=RankCollectives(peers=peers, failure=failure))


def _without_children(rank: RankDump) -> RankDump:
    return replace(rank, children=())


def _without_stacks(rank: RankDump) -> RankDump:
    return replace(rank, threads=(), failure=_left_out(rank.failure)) if rank.threads else rank


_CUTS: tuple[Callable[[RankDump], RankDump], ...] = (
    _without_child_stacks,
    _without_side_threads,
    _without_children,
    _without_collectives,
    _without_stacks,
)
"""Parts dropped in this order until the batch fits. Kernel state and transfer counts of 768 ranks
are never dropped; they have at most 12 MB.
"""


def _left_out(failure: DumpFailure | None) -> DumpFailure:
    return failure or DumpFailure(kind=FailureKind.OTHER, help_text=LEFT_OUT)


def _without_unused(batch: DumpBatch) -> DumpBatch:
    """Drop the stacks and logs to which no rank refers any more."""
    threads = [thread for rank in batch.ranks for thread in rank.threads]
    threads += [t for rank in batch.ranks for child in rank.children for t in child.threads]
    digests = {thread.digest for thread in threads}
    named = {log for rank in batch.ranks if rank.collectives for log in rank.collectives.logs}
    logs = tuple(log for log in batch.group_logs if log.digest in named)
    groups = {log.group for log in logs}
    return replace(
        batch,
        stacks=tuple(stack for stack in batch.stacks if stack.digest in digests),
        groups=tuple(group for group in batch.groups if group.id in groups),
        group_logs=logs,
    )
