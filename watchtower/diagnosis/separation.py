"""Which evidence separates a rank from its peers, while all ranks wait for each other.

That no rank holds up the job is the strongest claim of all: it is true only if nothing measured
separates a rank from the others. So every kind of evidence is asked here, in one order, from the
hardware to the activity of the host. The names of functions are not asked: they are the weakest
evidence, and show that a rank waits at most.

Evidence separates ranks if it holds for some of them, and for at most half. It need not be the
reason of the hang. Evidence that is older than the stall explains nothing, and events of a node
separate its ranks from those of other nodes.

What collectors observe of GPUs, processes, links and nodes is one kind for each row of
`blame_table.py`. Each kind has a strength. What a host does beside its wait (an upload, a logger, a
full cgroup) may mean that its rank is elsewhere. If the collective log of the rank shows that it
has entered its call, this is only shown. An error of a GPU, a link or a process always counts,
unless its kind is ordinary: many healthy machines show it, so that in a large job some rank has it
at any time. But no rank whose log shows that it has entered is accused of being behind: its log
disproves it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from watchtower.diagnosis.blame import Row, Strength, Subject
from watchtower.diagnosis.blame_table import ROWS
from watchtower.diagnosis.position import Position
from watchtower.diagnosis.waits.graph import EndKind
from watchtower.evidence.gpus import FRESH_S as PATTERN_FRESH_S
from watchtower.evidence.gpus import GPU_PATTERN, GpuPattern
from watchtower.evidence.movement import BUSY_CORES
from watchtower.evidence.native import is_watchdog_blocked
from watchtower.wire.dumps import NativeKind
from watchtower.wire.observations import Observation
from watchtower.wire.report import ProcessState
from watchtower.wire.verdict import Cause
from watchtower.writing.ranksets import name_ranks
from watchtower.writing.text import clean, format_duration

if TYPE_CHECKING:
    from watchtower.diagnosis.picture import Picture

ORDINARY_RANKS = 64
"""Of so many healthy ranks, one may have evidence of an ordinary kind around the time of any stall:
an estimate, on the safe side for jobs of one or two nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Separation:
    """Ranks that one kind of evidence separates from the others."""

    kind: str
    """The kind: "GPU error"."""
    cause: Cause | None
    """The likeliest cause if this is the reason of the hang. None if it would be that the ranks are
    behind, and their collective logs disprove it."""
    ranks: tuple[Position, ...]
    words: str
    """A sentence in which `{ranks}` stands for one or several ranks."""
    quoted: str
    """What was observed about the first of them: "Xid 79 ... (12 s ago)"; empty for the rest."""
    decides: bool
    """True if the verdict is not `symmetric_hang` because of it. Else it is only shown."""

    @property
    def text(self) -> str:
        """A sentence: "the GPU of rank 3 only: Xid 79 ... (12 s ago)"."""
        sentence = self.words.format(ranks=clean(name_ranks(i.rank for i in self.ranks), 60))
        return f"{sentence}: {self.quoted}" if self.quoted else sentence


class Found(NamedTuple):
    """A rank for which a kind of evidence holds."""

    position: Position
    seen: Observation | None = None
    """What was observed, if a collector did."""
    says: str = ""
    """The same in words."""
    subject: str = ""
    """What it is about: "GPU 3 (0000:3b:00)"."""


class Kind(NamedTuple):
    """One kind of evidence."""

    name: str
    cause: Cause
    """The likeliest cause if it is the reason of the hang."""
    find: Callable[[Picture], Iterable[Found]]
    """Returns the live ranks for which it holds."""
    words: str
    """A sentence. `{ranks}` stands for one or several ranks in it, and `SUBJECT` for a subject."""
    strength: Strength = Strength.SEPARATES
    is_ordinary: bool = False
    """Many healthy machines show it: in a large job, that one rank has it separates none."""
    is_mutual: bool = False
    """It holds for the other ranks the other way round, so that of two halves none differs."""
    subject: str = ""
    """Of several ranks: "the GPUs"."""


def do_all_wait(picture: Picture) -> bool:
    """Return whether every rank of the job waits for other ranks, and no log shows for which."""
    live = picture.live
    if len(live) < 2 or len(live) < len(picture.by_rank) or len(picture.waiting) < len(live):
        return False
    if picture.split or picture.missing_sends:
        return False
    ends = picture.graph.ends if picture.graph is not None else ()
    known = (
        end.kind is EndKind.CYCLE or (end.kind is EndKind.RANK and end.certain) for end in ends
    )
    return not any(known)


def find_separations(picture: Picture) -> tuple[Separation, ...]:
    """Return what separates ranks from the others, the strongest evidence first.

    Empty if not every rank waits: then where the ranks are separates them.
    """
    if not do_all_wait(picture):
        return ()
    return tuple(found for kind in KINDS if (found := _ask(picture, kind)) is not None)


def _ask(picture: Picture, kind: Kind) -> Separation | None:
    found: dict[int, Found] = {}
    for each in kind.find(picture):
        found.setdefault(each.position.rank, each)
    if not found or 2 * len(found) + kind.is_mutual > len(picture.live):
        return None
    items = [found[rank] for rank in sorted(found)]
    entered = picture.entered.issuperset(found)
    is_chance = kind.is_ordinary and _is_chance(items, len(picture.live))
    seen = items[0].seen
    return Separation(
        kind=kind.name,
        cause=None if entered and kind.cause is Cause.BEHIND_COLLECTIVE else kind.cause,
        ranks=tuple(each.position for each in items),
        words=kind.words.replace(SUBJECT, items[0].subject if len(items) == 1 else kind.subject),
        quoted=f"{items[0].says} ({format_duration(seen.age_s)} ago)" if seen else "",
        decides=not is_chance and (kind.strength is not Strength.SUPPORTS or not entered),
    )


def _is_chance(items: Sequence[Found], ranks: int) -> bool:
    """Return whether so many healthy ranks may show as much. All ranks of a node show one event."""
    events = {(each.position.evidence.node, each.seen and each.seen.subject) for each in items}
    return len(events) * ORDINARY_RANKS <= ranks


# What collectors observed

SUBJECT = "SUBJECT"
"""Stands for the device, process, link or node in the words of a kind."""


def _kinds_of(row: Row) -> Iterator[Kind]:
    """Yield the kinds of a row: about those that use its subject, and those on the same node."""
    strength, is_ordinary = row.strength, row.is_ordinary
    words = f"{SUBJECT} of {{ranks}} only"

    def make(name: str, subject: Subject, cause: Cause, is_used: bool) -> Kind:
        find = _blamed_by(row, is_used)
        return Kind(name, cause, find, words, strength, is_ordinary, subject=subject.value)

    yield make(row.name, row.subject, row.cause, True)
    if row.subject is Subject.GPU:
        yield make(f"{row.name} on the node", Subject.NODE, Cause.BEHIND_COLLECTIVE, False)


def _blamed_by(row: Row, is_used: bool) -> Callable[[Picture], Iterator[Found]]:
    is_any = row.subject is Subject.LINK

    def find(picture: Picture) -> Iterator[Found]:
        for each in picture.blamed:
            if each.row is row and (is_any or each.is_used is is_used):
                for item in each.ranks:
                    named = each.named if each.is_used and row.names_ranks else row.subject.value
                    yield Found(item, each.seen, each.write(item), named)

    return find


# GPUs


def _find_odd_patterns(picture: Picture) -> Iterator[Found]:
    """Yield the ranks whose GPUs do something else than most. If half of the GPUs wait in a kernel,
    yield the other half: the first half may wait for it.
    """
    uses = [(item, use) for item in picture.live if (use := picture.gpu_use(item.rank)) is not None]
    counts = Counter(use.pattern for _, use in uses)
    usual = max(counts, key=lambda each: (counts[each], each is GpuPattern.SPINNING), default=None)
    if usual is None or 2 * counts[usual] < len(uses) + (usual is not GpuPattern.SPINNING):
        return
    for item, use in uses:
        if use.pattern is not usual:
            yield _with_load(item, _pattern_of(picture, item))


def _find_odd_loads(picture: Picture) -> Iterator[Found]:
    """Yield the ranks whose GPUs have a load that fits no pattern, while those of others agree."""
    if len({use.pattern for i in picture.live if (use := picture.gpu_use(i.rank))}) != 1:
        return
    for item in picture.live:
        seen = _pattern_of(picture, item)
        if picture.gpu_use(item.rank) is None and seen is not None and seen.text:
            yield _with_load(item, seen)


def _with_load(position: Position, seen: Observation | None) -> Found:
    return Found(position, seen, clean(seen.text or seen.name, 160) if seen else "")


def _pattern_of(picture: Picture, position: Position) -> Observation | None:
    seen = picture.observed(position.rank, GPU_PATTERN)
    return next((each for each in seen if each.age_s <= PATTERN_FRESH_S), None)


# Processes


def _where(
    holds: Callable[[Position], bool],
) -> Callable[[Picture], Iterator[Found]]:
    return lambda picture: (Found(item) for item in picture.live if holds(item))


def _is_held(position: Position) -> bool:
    return (
        position.is_frozen
        or position.state is ProcessState.UNINTERRUPTIBLE
        or position.kernel.tracer_pid != 0
    )


def _ran_python(position: Position) -> bool:
    return any(dump.native and dump.native.ran_python for dump in position.evidence.dumps[-2:])


def _find_odd_places(picture: Picture) -> Iterator[Found]:
    """Yield the ranks whose threads are in other native code than most. Unknown is not other."""
    kinds = [(item, item.native.kind) for item in picture.live if item.native is not None]
    waits = any(kind is NativeKind.DEVICE_WAIT for _, kind in kinds)
    usual = Counter(kind for _, kind in kinds).most_common(1)
    if not usual or 2 * usual[0][1] <= len(kinds) or not waits:
        return
    for item, kind in kinds:
        if kind is not usual[0][0]:
            yield Found(item)


def _computes(position: Position) -> bool:
    return position.movement.computes and position.evidence.movement.cpu_cores >= BUSY_CORES


def _find_running(picture: Picture) -> Iterator[Found]:
    """Yield the ranks whose main thread runs in every sample while those of all others sleep."""
    return _part(picture, lambda item: item.always_runs, _always_sleeps)


def _find_sleeping(picture: Picture) -> Iterator[Found]:
    """Yield the ranks whose main thread sleeps in every sample while those of all others run."""
    return _part(picture, _always_sleeps, lambda item: item.always_runs)


def _part(
    picture: Picture, holds: Callable[[Position], bool], of_others: Callable[[Position], bool]
) -> Iterator[Found]:
    if all(holds(item) or of_others(item) for item in picture.live):
        yield from (Found(item) for item in picture.live if holds(item))


def _always_sleeps(position: Position) -> bool:
    states = {dump.kernel.state for dump in position.evidence.dumps} | {position.state}
    return position.asleep and states == {ProcessState.SLEEPING}


def _find_unlogged(picture: Picture) -> Sequence[Found]:
    return [Found(item) for item in picture.unlogged]


_SUPPORTS, _BEHIND = Strength.SUPPORTS, Cause.BEHIND_COLLECTIVE

_DECIDING = [row for row in ROWS if row.strength is Strength.DECIDES]
_OTHERS = [row for row in ROWS if row.strength in (Strength.SEPARATES, Strength.SUPPORTS)]

KINDS: tuple[Kind, ...] = (
    *(kind for row in _DECIDING for kind in _kinds_of(row)),
    Kind(
        "watchdog",
        Cause.GPU_FAULT,
        _where(lambda position: is_watchdog_blocked(position.evidence.dumps)),
        "a call of the GPU driver does not return to torch's watchdog of {ranks} only",
    ),
    Kind(
        "GPU pattern", _BEHIND, _find_odd_patterns, "the load on the GPU differs for {ranks} only"
    ),
    Kind(
        "GPU load",
        _BEHIND,
        _find_odd_loads,
        "the load on the GPU fits no known pattern for {ranks} only",
    ),
    *(kind for row in _OTHERS for kind in _kinds_of(row)),
    Kind("process state", _BEHIND, _where(_is_held), "the kernel or a tracer holds {ranks} only"),
    Kind(
        "Python run",
        _BEHIND,
        _where(_ran_python),
        "Python code ran between two samples in {ranks} only",
        _SUPPORTS,
    ),
    Kind(
        "native place",
        _BEHIND,
        _find_odd_places,
        "the native code of the training thread differs in {ranks} only",
        _SUPPORTS,
    ),
    Kind(
        "movement",
        _BEHIND,
        _where(lambda position: position.movement.moves_data),
        "data is read, written or sent by {ranks} only",
        _SUPPORTS,
    ),
    Kind(
        "CPU", _BEHIND, _where(_computes), "CPU is used by {ranks} only", _SUPPORTS, is_mutual=True
    ),
    Kind(
        "running",
        _BEHIND,
        _find_running,
        "the main thread always runs in {ranks} only",
        _SUPPORTS,
        is_mutual=True,
    ),
    Kind(
        "sleeping",
        _BEHIND,
        _find_sleeping,
        "the main thread always sleeps in {ranks} only",
        _SUPPORTS,
        is_mutual=True,
    ),
    Kind(
        "collective log", _BEHIND, _find_unlogged, "the collective log is missing for {ranks} only"
    ),
)
"""All kinds of evidence about ranks that wait, in the order in which they are asked."""
