"""Whom to call about a verdict: each cause has lines, and the first that holds for a rank counts.

A cause alone does not decide it: a rank that waits for a batch may wait for a file server, for its
own child, or for a service outside the job. If the evidence does not show it, the answer is
`unknown`. docs/verdicts.md has the lines of all causes in one table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from watchtower.diagnosis.blocked_rank import BlockedRank, Job
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position
from watchtower.evidence.frame_class import FrameClass
from watchtower.evidence.kernel import HELD
from watchtower.wire.verdict import Domain

MESSAGES = frozenset({"network", "local", "pipe"})
"""Classes of waits for a message from another process."""

MAX_JUDGED = 1024
"""Ranks that are judged, the first ones: more would not change whom to call."""


def _always(_: BlockedRank) -> bool:
    return True


class Line(NamedTuple):
    """One line of a cause."""

    domain: Domain
    evidence: str = ""
    """The predicate in words, for the documentation. Empty if the cause is enough."""
    holds: Callable[[BlockedRank], bool] = _always


def _has_slow_data(rank: BlockedRank) -> bool:
    """Return whether its data loader worker is in the code of the data set."""
    in_user_code = rank.worker is not None and bool(rank.worker.at) and not rank.worker.is_dead
    return in_user_code and _is_loading(rank) and not rank.on_locked_worker


def _is_loading(rank: BlockedRank) -> bool:
    return rank.position.frame_class is FrameClass.DATALOADER


def _is_in_own_code(rank: BlockedRank) -> bool:
    return rank.position.frame_class.traits.is_own_code and rank.wait_class not in MESSAGES


IN_GPU_DRIVER = Line(
    Domain.GPU,
    "the GPU driver blocks the rank or the child it waits for",
    lambda rank: rank.in_gpu_driver,
)
ON_STORAGE = Line(
    Domain.STORAGE,
    "state D in two samples, or a mount (NFS, FUSE, disk) without an answer, also in a child",
    lambda rank: rank.on_storage,
)
OUTSIDE_SOCKET = Line(
    Domain.NETWORK,
    "a socket to an address outside the job, also in a child",
    lambda rank: rank.on_outside_socket,
)
IN_OWN_CODE = Line(
    Domain.USER_CODE, "the rank is in the user's code, without a message", _is_in_own_code
)

BLOCKED_OUTSIDE = (
    IN_GPU_DRIVER,
    ON_STORAGE,
    Line(Domain.STORAGE, "a call on a file, also in a child", lambda rank: rank.in_file_call),
    OUTSIDE_SOCKET,
)
BLOCKED_INSIDE = (
    Line(
        Domain.OPERATOR,
        "the rank waits for a child that is stopped, traced or frozen",
        lambda rank: rank.on_held_child,
    ),
    Line(Domain.DATA, "a data loader worker is in the code of the data set", _has_slow_data),
    Line(
        Domain.USER_CODE,
        "a pipe to the job's own child, or a wait for the end of a child",
        lambda rank: rank.on_child,
    ),
    Line(Domain.USER_CODE, "a FIFO that the program opened", lambda rank: rank.on_fifo),
    Line(
        Domain.NETWORK,
        "a call of a client for outside services (HTTP, S3, ...), without a known address",
        lambda rank: rank.in_client_call,
    ),
    Line(Domain.DATA, "the rank waits for a batch, and nothing more is known", _is_loading),
)
ELSEWHERE = (*BLOCKED_OUTSIDE, *BLOCKED_INSIDE)
"""The rank is elsewhere, and the others wait for it: what blocks the rank decides. From the deepest
to the nearest."""

NO_CAUSE = (
    ON_STORAGE,
    Line(
        Domain.OPERATOR,
        "every rank is stopped, traced or frozen",
        lambda rank: rank.position.state in HELD or rank.position.is_frozen,
    ),
)
"""Of a verdict without a cause."""

LAST = Line(Domain.UNKNOWN, "everything else")


def find_domain(picture: Picture, lines: Sequence[Line], suspects: Sequence[Position]) -> Domain:
    """Return whom to call. Without suspects, all live ranks are judged."""
    return choose_line(picture, lines, suspects or picture.live).domain


def choose_line(picture: Picture, lines: Sequence[Line], positions: Sequence[Position]) -> Line:
    """Return the line whose domain holds for most of these ranks; of equal ones, the first.

    Ranks for which no line holds do not count if one holds for any other.
    """
    job = Job(picture)
    chosen = [_find_line(lines, BlockedRank(job, item)) for item in positions[:MAX_JUDGED]]
    known = [index for index in chosen if index is not None]
    if not known:
        return LAST
    count = Counter(lines[index].domain for index in known)
    return lines[min(known, key=lambda index: (-count[lines[index].domain], index))]


def _find_line(lines: Sequence[Line], rank: BlockedRank) -> int | None:
    return next((index for index, line in enumerate(lines) if line.holds(rank)), None)
