"""Which observations blame a GPU, a process, a link or a node, and the ranks that use it.

A kind of observation is one row of `blame_table.py`: how strong it is, for how long it counts, what
it is about, the cause, whom to call, one sentence and the advice. One rule joins all rows with
ranks: an observation is about a subject, and the ranks of the job that use the subject are blamed.

A subject that the job does not use blames no rank. If it is not known which ranks use a device,
none is named: it separates the ranks of its node from others, as any error of the node does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from watchtower.diagnosis.accusation import Doubt, Tier
from watchtower.diagnosis.position import Position
from watchtower.evidence.frames import FrameClass
from watchtower.evidence.gpus import find_gpu_index
from watchtower.evidence.observed import OF_GPUS, JobGpus, Observed
from watchtower.wire.observations import Observation
from watchtower.wire.verdict import Cause, Domain
from watchtower.writing.text import clean, format_duration

if TYPE_CHECKING:
    from watchtower.diagnosis.picture import Picture

BEFORE_S = 60.0
"""An event may come this many seconds before the last step: queued work and retries still end."""

NOW_S = 30.0
"""An older measurement says nothing about now. Agents read the slowest ones every 10 s."""

AT_ONCE_S = 1.0
"""An error this close to the last step came "at the last step": reports are a second apart."""

DECIDES_WEIGHT = 0.85
"""Of an error of a device around the stall."""

QUOTE = "{text}"
"""A sentence that is the text of the observation: evidence that quotes it is not shown again."""


class Strength(Enum):
    """What evidence shows about the ranks that it is about."""

    DECIDES = "decides"
    """It names them, if the others wait for them."""
    SEPARATES = "separates"
    """It differs from what others show: the verdict is not `symmetric_hang`, and names no rank."""
    EXPLAINS = "explains"
    """It says why a rank does not go on that the others wait for. It names and separates none."""
    SUPPORTS = "supports"
    """The same, unless collective logs show that these ranks have entered their call."""


class Subject(Enum):
    """What an observation is about. The value names that of several ranks."""

    GPU = "the GPUs"
    PROCESS = "the processes"
    LINK = "a link of the node"
    """The job may use it or not. No rank is to blame for it."""
    NODE = "the node"
    """All ranks of the node use it. No rank is to blame for it."""


class Since(Enum):
    """How the age of an observation relates to the stall, if it is to count."""

    STALL = "stall"
    """It happened, or the state began, around the stall. The job made steps with what is older; if
    it has made none, a state of any age counts."""
    NOW = "now"
    """It was measured in the last seconds."""
    ANY = "any"
    """It goes on, and the age says for how long."""


Words: TypeAlias = "str | Callable[[Observation], str]"
"""A sentence with names in braces, or how to make it."""


def _always(_: Observation) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kind of observation."""

    name: str
    observed: tuple[str, ...]
    """Beginnings of the names of observations, from the family on."""
    subject: Subject
    cause: Cause
    """The cause if it decides, else the likeliest one."""
    says: Words
    """One sentence about the subject: "{value:.0f} new uncorrected memory errors". Its names are
    text, value, age and when, the time from or to the last step of the rank."""
    domain: Domain = Domain.UNKNOWN
    """Whom to call, if it decides. The lines of the cause ask for it."""
    advice: Words = ""
    """What helps, if it decides: see `advice.py`; {device} and {node} are those of the subject."""
    strength: Strength = Strength.DECIDES
    since: Since = Since.STALL
    holds: Callable[[Observation], bool] = _always
    """Of several rows for one name, the first that holds counts."""
    beside: tuple[str, ...] = ()
    """It counts only beside one of these about the same subject, around the stall."""
    is_state: bool = False
    """It holds from its age on, until now. False: an event."""
    is_ordinary: bool = False
    """Many healthy machines show it: in a large job, that one rank has it separates none."""
    is_first_only: bool = False
    """Of several ranks only that with the oldest is blamed: it blocks the others."""
    weight: float = DECIDES_WEIGHT
    tier: Tier = Tier.CANNOT_ANSWER
    doubt: Doubt | None = None

    @property
    def names_ranks(self) -> bool:
        """Whether ranks are to blame. Else the cause is beside them."""
        return self.subject in (Subject.GPU, Subject.PROCESS)


class Blamed(NamedTuple):
    """One observation that counts, with the live ranks that use its subject."""

    row: Row
    node: str
    seen: Observation
    ranks: tuple[Position, ...]
    is_used: bool
    """The job is known to use the subject. Else `ranks` are those of the node."""
    number: int | None
    """Number of the GPU on its node."""

    @property
    def decides(self) -> bool:
        """Whether it can name a cause."""
        return self.row.strength is Strength.DECIDES and (self.is_used or not self.row.names_ranks)

    @property
    def device(self) -> str:
        """The device or link: "0000:3b:00", "eth1"."""
        subject = self.seen.subject
        return clean(subject.partition(":")[2] or subject, 64)

    @property
    def named(self) -> str:
        """The subject: "GPU 3 (0000:3b:00)", "process 4711", "eth1"."""
        if self.row.subject is Subject.GPU or self.seen.name.startswith(OF_GPUS):
            number = "" if self.number is None else f"{self.number} "
            return f"GPU {number}({self.device})" if number else f"GPU {self.device}"
        return f"process {self.device}" if self.row.subject is Subject.PROCESS else self.device

    @property
    def advice(self) -> str:
        """What helps, with names in braces."""
        return _word(self.row.advice, self.seen)

    def write(self, position: Position) -> str:
        """Return the sentence of the row, about the subject of this rank."""
        seen = self.seen
        names = {
            "text": clean(seen.text or seen.name, 160),
            "value": 0.0 if seen.value is None else seen.value,
            "age": format_duration(seen.age_s),
            "when": NO_TIME if position.of_files else _write_when(seen.age_s - position.age_s),
        }
        return _word(self.row.says, seen).format_map(names)


def _word(words: Words, seen: Observation) -> str:
    return words if isinstance(words, str) else words(seen)


NO_TIME = "at a time that its file does not show"


def _write_when(before_s: float) -> str:
    """Return "at its last step", "12 s before its last step"."""
    if abs(before_s) < AT_ONCE_S:
        return "at its last step"
    side = "before" if before_s > 0 else "after"
    return f"{format_duration(abs(before_s))} {side} its last step"


def index_rows(rows: Sequence[Row]) -> Mapping[str, tuple[tuple[str, Row], ...]]:
    """Return the rows with the beginnings of their names, by family."""
    by_family: dict[str, list[tuple[str, Row]]] = {}
    for row in rows:
        for name in row.observed:
            by_family.setdefault(name.partition(".")[0], []).append((name, row))
    return {family: tuple(each) for family, each in by_family.items()}


def find_blamed(
    picture: Picture, by_family: Mapping[str, Sequence[tuple[str, Row]]]
) -> tuple[Blamed, ...]:
    """Return the observations that count, those that decide first, then the oldest ones."""
    pids: dict[str, set[int | None]] = {}
    for evidence in picture.case.ranks:
        pids.setdefault(evidence.node, set()).add(evidence.pid)
    live: dict[str, list[Position]] = {}
    for item in picture.live:
        live.setdefault(item.evidence.node, []).append(item)
    rule = _Rule(picture.case.stalled_for_s, has_begun(picture), by_family)
    found = [
        each
        for node in picture.case.nodes
        if node.observations and node.node in live
        for each in rule.join(
            node.node,
            live[node.node],
            node.observations,
            JobGpus(node.observations, pids[node.node]),
        )
    ]
    return tuple(sorted(found, key=_rank_blamed))


def _rank_blamed(each: Blamed) -> tuple[bool, Tier, bool, float]:
    return not each.decides, each.row.tier, not each.is_used, -each.seen.age_s


def has_begun(picture: Picture) -> bool:
    """Return whether the job has worked with the state that its nodes have had since before."""
    if any(item.step is not None for item in picture.by_rank.values()):
        return True
    beats = any(item.evidence.beat is not None for item in picture.live)
    in_set_up = any(item.frame_class is FrameClass.INIT for item in picture.live)
    return not (beats or in_set_up)


@dataclass(frozen=True, slots=True)
class _Rule:
    """Joins observations with ranks."""

    stalled_for_s: float
    has_begun: bool
    by_family: Mapping[str, Sequence[tuple[str, Row]]]

    def join(
        self,
        node: str,
        live: Sequence[Position],
        observations: Sequence[Observation],
        gpus: JobGpus,
    ) -> Iterator[Blamed]:
        """Yield the observations of one node that count. `live`: the ranks there."""
        at_stall = {(each.subject, each.name) for each in observations if self._is_of_stall(each)}
        about = Observed(observations)
        written: set[tuple[str, str]] = set()
        for seen in sorted(observations, key=lambda each: -each.age_s):
            row = self._find_row(seen, at_stall)
            if row is None or (key := (row.name, f"{seen.subject} {seen.name}")) in written:
                continue
            ranks, is_used = _find_users(row, seen, live, gpus, about)
            if ranks:
                written.add(key)
                index = find_gpu_index(observations, seen.subject)
                yield Blamed(row, node, seen, ranks, is_used, index)

    def _find_row(self, seen: Observation, at_stall: set[tuple[str, str]]) -> Row | None:
        for name, row in self.by_family.get(seen.family, ()):
            is_beside = not row.beside or any(
                (seen.subject, each) in at_stall for each in row.beside
            )
            if seen.name.startswith(name) and row.holds(seen) and is_beside:
                return row if self._is_fresh(row, seen) else None
        return None

    def _is_fresh(self, row: Row, seen: Observation) -> bool:
        if row.since is Since.ANY:
            return True
        if row.since is Since.NOW:
            return seen.age_s <= NOW_S
        return self._is_of_stall(seen) or (row.is_state and not self.has_begun)

    def _is_of_stall(self, seen: Observation) -> bool:
        return seen.age_s <= self.stalled_for_s + BEFORE_S


def _find_users(
    row: Row, seen: Observation, live: Sequence[Position], gpus: JobGpus, about: Observed
) -> tuple[tuple[Position, ...], bool]:
    """Return the ranks that use a subject, and whether the job is known to use it.

    Of a device of which that is not known, the ranks of the node; none if others use it.
    """
    if row.subject is Subject.NODE:
        return tuple(live), True
    uses = gpus.uses(seen.subject)
    if row.subject is Subject.LINK:
        return (() if uses is False else tuple(live)), bool(uses)
    named = tuple(item for item in live if seen in about.about(item.evidence.pid, (seen.family,)))
    if named or row.subject is Subject.PROCESS:
        return named, bool(named)
    is_foreign = uses is False or seen.pid is not None
    return (() if is_foreign else tuple(live)), False
