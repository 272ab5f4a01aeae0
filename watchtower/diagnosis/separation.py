"""Which evidence separates a rank from its peers, while all ranks wait for each other.

That no rank holds up the job is the strongest claim of all: it is true only if nothing measured
separates a rank from the others. So every kind of evidence is asked here, in one order, from the
hardware to the activity of the host. The names of functions are not asked: they are the weakest
evidence, and show that a rank waits at most.

Evidence separates ranks if it holds for some of them, and for at most half. It need not be the
reason of the hang. Evidence that is older than the stall explains nothing, and events of a node
separate its ranks from those of other nodes.

Each kind has a strength. What a host does beside its wait (an upload, a logger, a full cgroup) may
mean that its rank is elsewhere. If the collective log of the rank shows that it has entered its
call, this is only shown. An error of a GPU, a link or a process always counts, unless its kind is
ordinary: many healthy machines show it, so that in a large job some rank has it at any time. But no
rank whose log shows that it has entered is accused of being behind: its log disproves it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from watchtower.diagnosis.position import Position
from watchtower.diagnosis.waits.graph import EndKind
from watchtower.evidence.gpus import FAULTS, GPU_PATTERN, STUCK_FAMILY, GpuPattern, is_about_nothing
from watchtower.evidence.gpus import FRESH_S as PATTERN_FRESH_S
from watchtower.evidence.movement import BUSY_CORES
from watchtower.evidence.native import is_watchdog_blocked
from watchtower.evidence.observed import JobGpus
from watchtower.wire.dumps import NativeKind
from watchtower.wire.observations import Observation
from watchtower.wire.report import ProcessState
from watchtower.wire.verdict import Cause
from watchtower.writing.ranksets import name_ranks
from watchtower.writing.text import clean, format_duration

if TYPE_CHECKING:
    from watchtower.diagnosis.picture import Picture

BEFORE_S = 60.0
"""An event may come this many seconds before the last step: queued work and retries still end."""

STATE_FRESH_S = 30.0
"""An older state says nothing about now. Agents read the slowest ones every 10 s."""

GPU_EVENTS = (
    *("gpu_nvlink_lost", "gpu_fabric", "gpu_recovery", "gpu_frozen"),
    *("gpu_errors.ecc_uncorrected", "pcie_error"),
)
"""Beginnings of names of observations that something is wrong with a GPU."""

GPU_RETRIES = ("gpu_errors.nvlink", "gpu_errors.pcie")
"""Counters of the links of a GPU. Most errors that they count are repaired by another try."""

NODE_EVENTS = ("pcie_error", "gpu_errors.ecc_uncorrected")
"""Errors of the hardware of a node, where no process shows whose device it is."""

NODE_LINES = ("machine_check",)
"""Errors of the hardware of a node, most of which were corrected."""

PROCESS_EVENTS = ("hung_task", "soft_lockup", "segfault", "oom_kill")
"""Lines of the kernel log about a process."""

PROCESS_ENDS = ("segfault", "oom_kill")
"""Those about a process that ends."""

LIMITS = ("cpu_limit", "memory_limit")
"""Limits of a cgroup that a rank has reached."""


ORDINARY_RANKS = 64
"""Of so many healthy ranks, one may have evidence of an ordinary kind around the time of any stall:
an estimate, on the safe side for jobs of one or two nodes."""


class Strength(Enum):
    """What a kind of evidence shows about ranks that wait."""

    DECIDES = "decides"
    """While it separates ranks, the verdict is not `symmetric_hang`."""
    SUPPORTS = "supports"
    """The same, unless collective logs show that these ranks have entered their call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Separation:
    """Ranks that one kind of evidence separates from the others."""

    kind: str
    """The kind: "GPU error"."""
    cause: Cause | None
    """The likeliest cause if this is the reason of the hang. None if it would be that the ranks are
    behind, and their collective logs disprove it."""
    ranks: tuple[Position, ...]
    observation: Observation | None
    """What was observed about the first of them, if it is to be quoted."""
    words: str
    """As in `Kind`."""
    decides: bool
    """True if the verdict is not `symmetric_hang` because of it. Else it is only shown."""

    @property
    def text(self) -> str:
        """A sentence: "GPU errors were reported for rank 3 only: NVRM: Xid ... (12 s ago)"."""
        sentence = self.words.format(ranks=clean(name_ranks(i.rank for i in self.ranks), 60))
        seen = self.observation
        if seen is None:
            return sentence
        ago = format_duration(seen.age_s)
        return f"{sentence}: {clean(seen.text or seen.name, 160)} ({ago} ago)"


class Kind(NamedTuple):
    """One kind of evidence."""

    name: str
    cause: Cause
    """The likeliest cause if it is the reason of the hang."""
    find: Callable[[Picture], Iterable[tuple[Position, Observation | None]]]
    """Returns the live ranks for which it holds, each with the observation, if there is one."""
    words: str
    """A sentence in which `{ranks}` stands for one or several ranks."""
    strength: Strength = Strength.DECIDES
    is_ordinary: bool = False
    """Many healthy machines show it: in a large job, that one rank has it separates none."""
    is_mutual: bool = False
    """It holds for the other ranks the other way round, so that of two halves none differs."""


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
    found: dict[int, tuple[Position, Observation | None]] = {}
    for position, seen in kind.find(picture):
        found.setdefault(position.rank, (position, seen))
    if not found or 2 * len(found) + kind.is_mutual > len(picture.live):
        return None
    items = [found[rank] for rank in sorted(found)]
    entered = picture.entered.issuperset(found)
    is_chance = kind.is_ordinary and _is_chance(items, len(picture.live))
    return Separation(
        kind=kind.name,
        cause=None if entered and kind.cause is Cause.BEHIND_COLLECTIVE else kind.cause,
        ranks=tuple(position for position, _ in items),
        observation=items[0][1],
        words=kind.words,
        decides=not is_chance and (kind.strength is Strength.DECIDES or not entered),
    )


def _is_chance(items: Sequence[tuple[Position, Observation | None]], ranks: int) -> bool:
    """Return whether so many healthy ranks may show as much. All ranks of a node show one event."""
    events = {(position.evidence.node, seen and seen.subject) for position, seen in items}
    return len(events) * ORDINARY_RANKS <= ranks


def _is_of_stall(picture: Picture, observation: Observation) -> bool:
    return observation.age_s <= picture.case.stalled_for_s + BEFORE_S


# GPUs


def _find_stuck_calls(picture: Picture) -> Iterator[tuple[Position, Observation]]:
    for item in picture.live:
        for each in picture.observed(item.rank, STUCK_FAMILY):
            yield item, each


def _find_errors(picture: Picture) -> Iterator[tuple[Position, Observation]]:
    """Yield errors of GPUs, also those that a program causes. Messages are not errors."""
    for item in picture.live:
        for each in picture.observed(item.rank, *FAULTS):
            if _is_of_stall(picture, each) and not is_about_nothing(each):
                yield item, each


def _find_odd_patterns(picture: Picture) -> Iterator[tuple[Position, Observation | None]]:
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
            yield item, _pattern_of(picture, item)


def _find_odd_loads(picture: Picture) -> Iterator[tuple[Position, Observation | None]]:
    """Yield the ranks whose GPUs have a load that fits no pattern, while those of others agree."""
    if len({use.pattern for i in picture.live if (use := picture.gpu_use(i.rank))}) != 1:
        return
    for item in picture.live:
        seen = _pattern_of(picture, item)
        if picture.gpu_use(item.rank) is None and seen is not None and seen.text:
            yield item, seen


def _pattern_of(picture: Picture, position: Position) -> Observation | None:
    seen = picture.observed(position.rank, GPU_PATTERN)
    return next((each for each in seen if each.age_s <= PATTERN_FRESH_S), None)


def _find_memory_errors(picture: Picture) -> Iterator[tuple[Position, Observation | None]]:
    for item in picture.live:
        if picture.ecc_errors(item.rank) is not None:
            seen = picture.observed(item.rank, "gpu_ecc")
            yield item, max(seen, key=lambda each: each.value or 0.0)


# Events


def _events(names: tuple[str, ...]) -> Callable[[Picture], Iterator[tuple[Position, Observation]]]:
    """Return a function that yields the ranks about which such an event was observed."""

    def find(picture: Picture) -> Iterator[tuple[Position, Observation]]:
        for item in picture.live:
            for each in picture.observed(item.rank):
                if each.name.startswith(names) and _is_of_stall(picture, each):
                    yield item, each

    return find


def _find_process_events(picture: Picture) -> Iterator[tuple[Position, Observation]]:
    events = _events(PROCESS_EVENTS)(picture)
    return ((item, seen) for item, seen in events if not _is_end_of_helper(item, seen))


def _find_ended_helpers(picture: Picture) -> Iterator[tuple[Position, Observation]]:
    events = _events(PROCESS_ENDS)(picture)
    return ((item, seen) for item, seen in events if _is_end_of_helper(item, seen))


def _is_end_of_helper(position: Position, seen: Observation) -> bool:
    """Return whether a process below the rank has ended. The rank itself may still be dying."""
    is_end = seen.name.startswith(PROCESS_ENDS)
    return is_end and seen.subject != f"pid:{position.evidence.pid}"


def _find_links(picture: Picture) -> Iterator[tuple[Position, Observation]]:
    """Yield the ranks of nodes with a failed link that the job may use."""
    failed = {fault.node: fault.observation for fault in reversed(picture.link_faults)}
    return _of_nodes(picture, failed)


def _node_events(
    names: tuple[str, ...],
) -> Callable[[Picture], Iterator[tuple[Position, Observation]]]:
    """Return a function that yields the ranks of nodes with such errors, except of a GPU that
    others use."""

    def find(picture: Picture) -> Iterator[tuple[Position, Observation]]:
        events: dict[str, Observation] = {}
        pids: dict[str, set[int | None]] = {}
        for item in picture.live:
            pids.setdefault(item.evidence.node, set()).add(item.evidence.pid)
        for node in picture.case.nodes:
            found = [each for each in node.observations if each.name.startswith(names)]
            if not found:
                continue
            gpus = JobGpus(node.observations, pids.get(node.node, set()))
            for each in found:
                is_foreign = each.pid is not None or gpus.is_of_others(each.subject)
                if not is_foreign and _is_of_stall(picture, each):
                    events.setdefault(node.node, each)
        return _of_nodes(picture, events)

    return find


def _of_nodes(
    picture: Picture, events: dict[str, Observation]
) -> Iterator[tuple[Position, Observation]]:
    for item in picture.live:
        if item.evidence.node in events:
            yield item, events[item.evidence.node]


def _find_limits(picture: Picture) -> Iterator[tuple[Position, Observation]]:
    for item in picture.live:
        for each in picture.observed(item.rank, *LIMITS):
            if each.age_s <= STATE_FRESH_S:
                yield item, each


# Processes


def _where(
    holds: Callable[[Position], bool],
) -> Callable[[Picture], Iterator[tuple[Position, None]]]:
    return lambda picture: ((item, None) for item in picture.live if holds(item))


def _is_held(position: Position) -> bool:
    return (
        position.is_frozen
        or position.state is ProcessState.UNINTERRUPTIBLE
        or position.kernel.tracer_pid != 0
    )


def _ran_python(position: Position) -> bool:
    return any(dump.native and dump.native.ran_python for dump in position.evidence.dumps[-2:])


def _find_odd_places(picture: Picture) -> Iterator[tuple[Position, None]]:
    """Yield the ranks whose threads are in other native code than most. Unknown is not other."""
    kinds = [(item, item.native.kind) for item in picture.live if item.native is not None]
    waits = any(kind is NativeKind.DEVICE_WAIT for _, kind in kinds)
    usual = Counter(kind for _, kind in kinds).most_common(1)
    if not usual or 2 * usual[0][1] <= len(kinds) or not waits:
        return
    for item, kind in kinds:
        if kind is not usual[0][0]:
            yield item, None


def _computes(position: Position) -> bool:
    return position.movement.computes and position.evidence.movement.cpu_cores >= BUSY_CORES


def _find_running(picture: Picture) -> Iterator[tuple[Position, None]]:
    """Yield the ranks whose main thread runs in every sample while those of all others sleep."""
    return _part(picture, lambda item: item.always_runs, _always_sleeps)


def _find_sleeping(picture: Picture) -> Iterator[tuple[Position, None]]:
    """Yield the ranks whose main thread sleeps in every sample while those of all others run."""
    return _part(picture, _always_sleeps, lambda item: item.always_runs)


def _part(
    picture: Picture, holds: Callable[[Position], bool], of_others: Callable[[Position], bool]
) -> Iterator[tuple[Position, None]]:
    if all(holds(item) or of_others(item) for item in picture.live):
        yield from ((item, None) for item in picture.live if holds(item))


def _always_sleeps(position: Position) -> bool:
    states = {dump.kernel.state for dump in position.evidence.dumps} | {position.state}
    return position.asleep and states == {ProcessState.SLEEPING}


def _find_unlogged(picture: Picture) -> Sequence[tuple[Position, None]]:
    return [(item, None) for item in picture.unlogged]


_SUPPORTS = Strength.SUPPORTS
_GPU, _BEHIND, _FABRIC = Cause.GPU_FAULT, Cause.BEHIND_COLLECTIVE, Cause.FABRIC_FAULT

KINDS: tuple[Kind, ...] = (
    Kind(
        "GPU driver",
        _GPU,
        _find_stuck_calls,
        "a call of the GPU driver does not return for {ranks} only",
    ),
    Kind(
        "watchdog",
        _GPU,
        _where(lambda position: is_watchdog_blocked(position.evidence.dumps)),
        "a call of the GPU driver does not return to torch's watchdog of {ranks} only",
    ),
    Kind("GPU error", _GPU, _find_errors, "GPU errors were reported for {ranks} only"),
    Kind(
        "GPU pattern", _BEHIND, _find_odd_patterns, "the load on the GPU differs for {ranks} only"
    ),
    Kind(
        "GPU load",
        _BEHIND,
        _find_odd_loads,
        "the load on the GPU fits no known pattern for {ranks} only",
    ),
    Kind("GPU memory", _GPU, _find_memory_errors, "errors in GPU memory increase for {ranks} only"),
    Kind(
        "GPU state",
        _GPU,
        _events(GPU_EVENTS),
        "the state or an error counter of the GPU changed for {ranks} only",
    ),
    Kind(
        "GPU retries",
        _GPU,
        _events(GPU_RETRIES),
        "an error counter of the links of the GPU changed for {ranks} only",
        is_ordinary=True,
    ),
    Kind("link", _FABRIC, _find_links, "a link failed on the node of {ranks} only"),
    Kind(
        "kernel log", _BEHIND, _find_process_events, "the kernel log has an error of {ranks} only"
    ),
    Kind(
        "ended helper",
        _BEHIND,
        _find_ended_helpers,
        "the kernel log has the end of a helper of {ranks} only",
        is_ordinary=True,
    ),
    Kind(
        "node",
        _BEHIND,
        _node_events(NODE_EVENTS),
        "hardware errors were logged on the node of {ranks} only",
    ),
    Kind(
        "machine check",
        _BEHIND,
        _node_events(NODE_LINES),
        "hardware errors were logged on the node of {ranks} only",
        is_ordinary=True,
    ),
    Kind(
        "cgroup limit",
        _BEHIND,
        _find_limits,
        "a cgroup limit was reached by {ranks} only",
        _SUPPORTS,
    ),
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
