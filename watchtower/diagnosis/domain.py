"""Whom to call about a verdict: one table from cause and evidence to a domain.

A cause alone does not decide it: a rank that waits for a batch may wait for a file server, for its
own child, or for a service outside the job. If the evidence does not show it, the answer is
`unknown`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from watchtower.diagnosis.blocked_rank import BlockedRank, Job
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position
from watchtower.evidence.errors import read_error
from watchtower.evidence.exits import DeathKind, classify_ending
from watchtower.evidence.frame_class import FrameClass
from watchtower.evidence.gpus import WORKING as GPU_WORKS
from watchtower.evidence.kernel import HELD
from watchtower.wire.verdict import Cause, Domain

Predicate = Callable[[BlockedRank], bool]


class Line(NamedTuple):
    """One line of the table."""

    causes: frozenset[Cause]
    holds: Predicate
    domain: Domain
    evidence: str
    """The predicate in words, for the documentation. Empty if the cause is enough."""


MESSAGES = frozenset({"network", "local", "pipe"})
"""Classes of waits for a message from another process."""

OWN_DEATHS = frozenset({DeathKind.CRASH, DeathKind.EXIT_CODE, DeathKind.EXIT_ONE})
"""Deaths that begin in the program itself. SIGKILL may come from anywhere, and SIGABRT from a
watchdog that stopped waiting for other ranks."""


def _always(_: BlockedRank) -> bool:
    return True


def _has_slow_data(rank: BlockedRank) -> bool:
    """Return whether its data loader worker is in the code of the data set."""
    in_user_code = rank.worker is not None and bool(rank.worker.at) and not rank.worker.is_dead
    return in_user_code and _is_loading(rank) and not rank.on_locked_worker


def _is_loading(rank: BlockedRank) -> bool:
    return rank.position.frame_class is FrameClass.DATALOADER


def _is_in_own_code(rank: BlockedRank) -> bool:
    return rank.position.frame_class.traits.is_own_code and rank.wait_class not in MESSAGES


def _runs_own_kernel(rank: BlockedRank) -> bool:
    """Return whether it waits for its device, whose GPU works on."""
    use = rank.job.picture.gpu_use(rank.position.rank)
    return rank.position.waits_for_device and use is not None and use.pattern in GPU_WORKS


def _makes_a_group(rank: BlockedRank) -> bool:
    """Return whether it is in set-up in the middle of the job."""
    return rank.position.frame_class is FrameClass.INIT and rank.position.step is not None


def _is_held(rank: BlockedRank) -> bool:
    return rank.position.state in HELD or rank.position.is_frozen


def _points_to_network(rank: BlockedRank) -> bool:
    picture = rank.job.picture
    return len(picture.case.nodes) > 1 and picture.points_to_network


def _has_slowed_gpu(rank: BlockedRank) -> bool:
    return rank.job.picture.slowed_gpu(rank.position.rank) is not None


def _has_ecc_errors(rank: BlockedRank) -> bool:
    return rank.job.picture.ecc_errors(rank.position.rank) is not None


def _has_failed_nvlink(rank: BlockedRank) -> bool:
    faults = rank.job.picture.link_faults
    return bool(faults) and faults[0].is_nvlink


def _has_cpu_limit(rank: BlockedRank) -> bool:
    return rank.job.picture.cpu_limit(rank.position.rank) is not None


def _raised(domain: Domain) -> Predicate:
    def holds(rank: BlockedRank) -> bool:
        evidence = rank.position.evidence
        known = evidence.ended or evidence.beat
        if known is None or not known.exception_type:
            return False
        return read_error(known.exception_type, known.exception_text).domain is domain

    return holds


def _raised_its_own(rank: BlockedRank) -> bool:
    """Return whether it raised an exception that does not follow from another rank."""
    evidence = rank.position.evidence
    return evidence.ended is None or _died(DeathKind.OWN_EXCEPTION)(rank)


def _died(*kinds: DeathKind) -> Predicate:
    return lambda rank: classify_ending(rank.position.evidence.ended) in kinds


_C, _D = Cause, Domain

_EXCEPTION = frozenset({_C.EXCEPTION})
_DIED = frozenset({_C.PROCESS_DIED})
_HELD = frozenset({_C.PROCESS_STOPPED, _C.PROCESS_TRACED, _C.PROCESS_FROZEN})
_CALLS = frozenset(
    {
        _C.CONDITIONAL_COLLECTIVE,
        _C.MISMATCHED_COLLECTIVE,
        _C.COLLECTIVE_CYCLE,
        _C.MISSING_SEND,
    }
)
_BUSY = frozenset({_C.LOCK_DEADLOCK, _C.GIL_HELD, _C.BUSY_LOOP})
_GPU = frozenset({_C.GPU_FAULT, _C.GPU_DRIVER_STUCK})
_IN_D = frozenset({_C.UNINTERRUPTIBLE_IO})
ELSEWHERE = frozenset(
    {
        _C.INIT_STUCK,
        _C.DATALOADER_STALL,
        _C.CHECKPOINT_STALL,
        _C.NETWORK_WAIT,
        _C.BEHIND_COLLECTIVE,
        _C.STRAGGLER,
    }
)
"""The rank is elsewhere, and the others wait for it: what blocks the rank decides."""

_BEHIND = frozenset({_C.INIT_STUCK, _C.BEHIND_COLLECTIVE})

TABLE: tuple[Line, ...] = (
    Line(frozenset({_C.NODE_LOST}), _always, _D.NODE, ""),
    Line(_GPU, _always, _D.GPU, ""),
    Line(frozenset({_C.NEVER_STARTED}), _always, _D.SCHEDULER, ""),
    Line(_HELD, _always, _D.OPERATOR, ""),
    Line(
        frozenset({_C.FABRIC_FAULT}),
        _has_failed_nvlink,
        _D.GPU,
        "the link is an NVLink, or an NVSwitch reported an error",
    ),
    Line(frozenset({_C.FABRIC_FAULT}), _always, _D.NETWORK, ""),
    # Ends
    Line(frozenset({_C.OOM_KILLED, _C.EXITED_EARLY}), _always, _D.USER_CODE, ""),
    Line(_EXCEPTION, _raised(_D.STORAGE), _D.STORAGE, "the exception comes from a file system"),
    Line(_EXCEPTION, _raised(_D.GPU), _D.GPU, "the exception reports a failure of CUDA or a GPU"),
    Line(_EXCEPTION, _raised(_D.NODE), _D.NODE, "NCCL reports a failed call of the system"),
    Line(
        _EXCEPTION,
        _raised(_D.NETWORK),
        _D.NETWORK,
        "a connection was lost, or a service outside the job was not reached",
    ),
    Line(
        _EXCEPTION, _raised_its_own, _D.USER_CODE, "any other exception, except a wait that ended"
    ),
    Line(_DIED, _died(*OWN_DEATHS), _D.USER_CODE, "a crash, or an exit code of its own"),
    Line(_DIED, _died(DeathKind.TERMINATED), _D.OPERATOR, "SIGTERM or a similar signal"),
    # The program itself
    Line(frozenset({_C.UNEVEN_INPUTS}), _always, _D.DATA, ""),
    Line(_CALLS | _BUSY, _always, _D.USER_CODE, ""),
    Line(
        frozenset({_C.STRAGGLER}),
        _has_slowed_gpu,
        _D.GPU,
        "the GPU of the rank works with reduced clocks",
    ),
    Line(
        frozenset({_C.STRAGGLER}),
        _has_ecc_errors,
        _D.GPU,
        "errors of the memory of the rank's GPU increase now",
    ),
    Line(
        frozenset({_C.STRAGGLER}),
        _has_cpu_limit,
        _D.SCHEDULER,
        "a CPU limit stops the rank",
    ),
    # What blocks a rank, from the deepest to the nearest
    Line(
        _IN_D | ELSEWHERE,
        lambda rank: rank.in_gpu_driver,
        _D.GPU,
        "the GPU driver blocks the rank or the child it waits for",
    ),
    Line(
        _IN_D,
        lambda rank: rank.wait_class == "child",
        _D.USER_CODE,
        "the rank waits for its own child to start",
    ),
    Line(_IN_D, _always, _D.STORAGE, "any other wait in state D"),
    Line(
        ELSEWHERE | {_C.UNKNOWN},
        lambda rank: rank.on_storage,
        _D.STORAGE,
        "state D in two samples, or a mount (NFS, FUSE, disk) without an answer, also in a child",
    ),
    Line(
        ELSEWHERE,
        lambda rank: rank.in_file_call,
        _D.STORAGE,
        "a call on a file, also in a child",
    ),
    Line(
        ELSEWHERE,
        lambda rank: rank.on_outside_socket,
        _D.NETWORK,
        "a socket to an address outside the job, also in a child",
    ),
    Line(
        frozenset({_C.INIT_STUCK}),
        lambda rank: bool(rank.position.unanswered),
        _D.NETWORK,
        "another rank's address does not answer the connection",
    ),
    Line(
        ELSEWHERE,
        lambda rank: rank.on_held_child,
        _D.OPERATOR,
        "the rank waits for a child that is stopped, traced or frozen",
    ),
    Line(ELSEWHERE, _has_slow_data, _D.DATA, "a data loader worker is in the code of the data set"),
    Line(
        ELSEWHERE,
        lambda rank: rank.on_child,
        _D.USER_CODE,
        "a pipe to the job's own child, or a wait for the end of a child",
    ),
    Line(ELSEWHERE, lambda rank: rank.on_fifo, _D.USER_CODE, "a FIFO that the program opened"),
    Line(
        ELSEWHERE,
        lambda rank: rank.in_client_call,
        _D.NETWORK,
        "a call of a client for outside services (HTTP, S3, ...), without a known address",
    ),
    Line(ELSEWHERE, _is_loading, _D.DATA, "the rank waits for a batch, and nothing more is known"),
    Line(
        frozenset({_C.BEHIND_COLLECTIVE}),
        _runs_own_kernel,
        _D.USER_CODE,
        "the rank waits for its device, and its GPU still works",
    ),
    Line(
        _BEHIND, _is_in_own_code, _D.USER_CODE, "the rank is in the user's code, without a message"
    ),
    Line(
        frozenset({_C.INIT_STUCK}),
        _makes_a_group,
        _D.USER_CODE,
        "the rank creates a process group in the middle of the job",
    ),
    Line(
        frozenset({_C.SYMMETRIC_HANG}),
        _points_to_network,
        _D.NETWORK,
        "the ranks are on several nodes, and something measured points to what is between them: "
        "collective logs, all GPUs wait in a kernel, or all hosts wait at sockets",
    ),
    Line(frozenset({_C.UNKNOWN}), _is_held, _D.OPERATOR, "every rank is stopped, traced or frozen"),
    Line(frozenset(Cause), _always, _D.UNKNOWN, "everything else"),
)
"""The first line that holds for a rank counts."""


MAX_JUDGED = 1024
"""Ranks that are judged, the first ones: more would not change whom to call."""


def find_domain(picture: Picture, cause: Cause, suspects: Sequence[Position]) -> Domain:
    """Return whom to call. Without suspects, all live ranks are judged."""
    return choose_line(picture, cause, suspects or picture.live).domain


def choose_line(picture: Picture, cause: Cause, positions: Sequence[Position]) -> Line:
    """Return the line whose domain holds for most of these ranks; of equal ones, the first.

    Ranks whose domain is unknown do not count if that of any other is known.
    """
    job = Job(picture)
    lines = [line for line in TABLE if cause in line.causes]
    chosen = [_find_line(lines, BlockedRank(job, item)) for item in positions[:MAX_JUDGED]]
    known = [index for index in chosen if lines[index].domain is not Domain.UNKNOWN]
    if not known:
        return TABLE[-1]
    count = Counter(lines[index].domain for index in known)
    return lines[min(known, key=lambda index: (-count[lines[index].domain], index))]


def _find_line(lines: Sequence[Line], rank: BlockedRank) -> int:
    return next(index for index, line in enumerate(lines) if line.holds(rank))
