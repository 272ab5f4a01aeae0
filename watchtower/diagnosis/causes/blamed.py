"""Something that collectors observed is to blame: a GPU, its driver, a process, a link or a node.

The rows of `blame_table.py` say what decides. Of a GPU or process, the rank that uses it is named,
if the others can wait for it: if another rank explains the stall, what was observed may have
nothing to do with it. Of a link or node no rank is to blame, and all ranks must wait: a rank that
does something else explains the stall by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from watchtower.diagnosis.accusation import CANDIDATE, MAX_QUOTED, Accusation, Doubt, Reason
from watchtower.diagnosis.advice import RESTART_BEFORE_STEP, TRY_OTHER_NODES
from watchtower.diagnosis.blame import QUOTE, Blamed
from watchtower.diagnosis.blame_table import ACTIONS
from watchtower.diagnosis.domain import BlockedRank, Line
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Place, Position, Shape
from watchtower.diagnosis.reasons import peers_reason, ranks_of, same_call_reason, step_reason
from watchtower.diagnosis.separation import do_all_wait
from watchtower.diagnosis.waits.graph import EndKind
from watchtower.evidence.gpus import WORKING, GpuPattern, find_asked
from watchtower.wire.observations import Observation
from watchtower.wire.report import ProcessState
from watchtower.wire.verdict import Cause, Domain
from watchtower.writing.text import clean, format_duration

WAIT_WEIGHT = 0.5

STEPS_AFTER, LEAST_AFTER_S = 3, 10.0
"""A rank that made more steps than this after an error, or for longer, went on in spite of it."""

MAX_SAID = 5
"""Observations about one device that are named."""

MAY_WAIT = (GpuPattern.SPINNING, GpuPattern.FROZEN)
"""Patterns of a GPU that may wait for a link. Counters that do not change show nothing about its
work. A GPU that works or has no work explains the stall by itself."""

GPU_ERROR_BESIDE = Doubt(
    "gpu_error_beside", CANDIDATE, "{suspects} waits for others, and another rank does not"
)
GPU_ERROR_GOES_ON = Doubt(
    "gpu_error_goes_on", CANDIDATE, "{suspects} does something else than to wait for its GPU"
)
GPU_ERROR_EARLIER = Doubt("gpu_error_earlier", 0.75, "the job continued after the error of the GPU")
LINK_MAY_BE_UNUSED = Doubt(
    "link_may_be_unused", 0.85, "it is not known whether the job uses this link"
)

READ_XIDS = "on {node}: `dmesg --level=err,warn | grep -i xid` shows every error of its GPUs"


def _is_of(cause: Cause, domain: Domain, rank: BlockedRank) -> bool:
    first = next(iter(_find(rank.job.picture, cause)), None)
    return first is not None and first.row.domain is domain


WHOM_OF_GPU = (Line(Domain.GPU),)
WHOM_OF_FABRIC = (
    Line(
        Domain.GPU,
        "the link is an NVLink, an NVSwitch reported an error, or the NVLink fabric is not set up",
        lambda rank: _is_of(Cause.FABRIC_FAULT, Domain.GPU, rank),
    ),
    Line(Domain.NETWORK),
)


def find_blamed(cause: Cause, picture: Picture) -> Accusation | None:
    """Accuse the ranks whose devices are blamed, else name the link or node."""
    found = _find(picture, cause)
    users = [each for each in found if each.row.names_ranks]
    if users:
        return _accuse(picture, cause, users)
    if found and _do_all_wait(picture):
        return _name_place(picture, cause, found)
    return None


def _find(picture: Picture, cause: Cause) -> list[Blamed]:
    return [each for each in picture.blamed if each.decides and each.row.cause is cause]


# Ranks


def _accuse(picture: Picture, cause: Cause, found: Sequence[Blamed]) -> Accusation:
    first = max(found, key=lambda each: each.seen.age_s)
    if first.row.is_first_only:
        found = [first]
    by_rank: dict[int, Position] = {}
    for each in sorted(found, key=lambda each: -each.seen.age_s):
        by_rank |= {item.rank: item for item in each.ranks if item.rank not in by_rank}
    suspects = tuple(by_rank.values())
    seen = next(node.observations for node in picture.case.nodes if node.node == first.node)
    asked = find_asked(seen, first.seen.subject)
    source = f"the driver itself asks for this ({asked.source})" if asked else ""
    advice = ACTIONS[asked.action] if asked else first.advice
    more = READ_XIDS if cause is Cause.GPU_FAULT else RESTART_BEFORE_STEP
    return Accusation(
        cause=cause,
        tier=first.row.tier,
        suspects=suspects,
        reasons=(
            *(_write_reason(picture, found, item) for item in suspects[:MAX_QUOTED]),
            *step_reason(picture, suspects[0]),
            *peers_reason(picture, suspects),
        ),
        doubts=tuple(_find_doubts(picture, suspects, first)),
        why=lambda position: f"uses {_write_device(picture, found, position)}",
        advice=(advice, more),
        names={"device": first.device, "source": source},
        quoted=_find_quoted(found),
    )


def _find_quoted(found: Sequence[Blamed]) -> tuple[Observation, ...]:
    """Return the observations whose text is the sentence: evidence does not show them again."""
    return tuple(each.seen for each in found if each.row.says == QUOTE)


def _write_reason(picture: Picture, found: Sequence[Blamed], position: Position) -> Reason:
    weight = max(each.row.weight for each in found if position in each.ranks)
    text = _write_device(picture, found, position, f" of rank {position.rank}")
    return Reason("gpu", weight, (position.rank,), text)


def _write_device(
    picture: Picture, found: Sequence[Blamed], position: Position, of_rank: str = ""
) -> str:
    """Return "GPU 3 (0000:3b:00) of rank 1: 5 new uncorrected memory errors; the driver ...".

    The first observation of `found` names the device. Whatever else blames it is added.
    """
    own = [each for each in found if position in each.ranks]
    first = max(own, key=lambda each: each.seen.age_s)
    about = [
        each
        for each in picture.blamed
        if each.is_used
        and (each.node, each.seen.subject) == (first.node, first.seen.subject)
        and (each.decides or each.seen.name in first.row.beside)
    ]
    about.sort(key=lambda each: (each.row is not first.row, not each.decides, -each.seen.age_s))
    said = dict.fromkeys(each.write(position) for each in about)
    return f"{first.named}{of_rank}: {'; '.join(list(said)[:MAX_SAID])}"


def _find_doubts(picture: Picture, suspects: Sequence[Position], first: Blamed) -> Iterator[Doubt]:
    if all(item.waits for item in suspects) and _has_other_reason(picture, suspects):
        yield GPU_ERROR_BESIDE
    if all(_goes_on(picture, item) for item in suspects):
        yield GPU_ERROR_GOES_ON
    before_s = first.seen.age_s - suspects[0].age_s
    if not first.row.is_first_only and before_s > max(
        STEPS_AFTER * picture.case.typical_step_s, LEAST_AFTER_S
    ):
        yield GPU_ERROR_EARLIER


def _goes_on(picture: Picture, position: Position) -> bool:
    """Return whether a rank is known to be busy with something that needs no answer of its GPU, or
    whose GPU still works.

    A line of the program may be a wait for the GPU that no frame shows.
    """
    if position.waits or position.waits_for_device:
        return False
    use = picture.gpu_use(position.rank)
    works = use is not None and use.pattern in WORKING
    is_moving = position.shape is Shape.CHANGED or position.transfers
    cannot_run = position.place is Place.CANNOT_RUN
    return works or is_moving or cannot_run or position.frame_class.traits.is_busy_elsewhere


def _has_other_reason(picture: Picture, suspects: Sequence[Position]) -> bool:
    """Return whether another rank explains why all wait."""
    accused = set(ranks_of(suspects))
    if any(item.rank not in accused for item in picture.sinks):
        return True
    ends = picture.graph.ends if picture.graph is not None else ()
    return any(
        end.kind is EndKind.RANK and end.certain and accused.isdisjoint(end.ranks) for end in ends
    )


# Links and nodes


def _name_place(picture: Picture, cause: Cause, found: Sequence[Blamed]) -> Accusation:
    first, ranks = found[0], ranks_of(picture.live)
    return Accusation(
        cause=cause,
        # A link that was lost explains every wait. Errors alone explain no more than the waits do.
        tier=first.row.tier,
        reasons=(
            *(
                Reason("fabric", each.row.weight, ranks, _write_place(each))
                for each in found[:MAX_QUOTED]
            ),
            same_call_reason(picture, WAIT_WEIGHT),
        ),
        doubts=tuple(_find_doubts_of_place(first)),
        summary=f"no rank is to blame: {_write_place(first)}",
        advice=(first.advice, TRY_OTHER_NODES),
        names={"node": clean(first.node, 64), "device": first.device},
        quoted=_find_quoted(found),
    )


def _write_place(each: Blamed) -> str:
    """Return "gpu-042, 12 s ago: GPU 3 (0000:3b:00): 6 of its 18 NVLinks were lost"."""
    text, ago = each.write(each.ranks[0]), format_duration(each.seen.age_s)
    device = "" if each.device in text else f"{each.named}: "
    return f"{clean(each.node, 64)}, {ago} ago: {device}{text}"


def _find_doubts_of_place(first: Blamed) -> Iterator[Doubt]:
    if first.row.doubt is not None:
        yield first.row.doubt
    elif not first.is_used:
        yield LINK_MAY_BE_UNUSED


def _do_all_wait(picture: Picture) -> bool:
    """Return whether every rank is known to wait for other ranks, and none holds up the others."""
    if not do_all_wait(picture):
        return False
    for item in picture.live:
        held = item.is_frozen or item.state is ProcessState.UNINTERRUPTIBLE
        use = picture.gpu_use(item.rank)
        if item.presumed or held or (use is not None and use.pattern not in MAY_WAIT):
            return False
    graph, logs = picture.graph, picture.collective_logs
    if graph is None or logs is None:
        return True
    held_up = any(point.held_up_by for end in graph.ends for point in end.points)
    return not (held_up or logs.advancing) and all(e.kind is EndKind.POINT for e in graph.ends)
