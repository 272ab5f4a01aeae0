"""The part of a summary with the waits: at most 12 boxes of ranks, arrows between them, and the
same in words.

The wait-for graph of a case has a node for each rank and each call. Ranks become one box if they
are equally far from the end of the waiting, wait in the same kind of call at the same place, and
are in the same state. If there are too many boxes, coarser keys are used. Only the farthest box
contains ranks of several distances, so an arrow always leads nearer to the end.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.waits.collective_logs import Group
from watchtower.diagnosis.waits.graph import WaitPoint, name_point
from watchtower.diagnosis.waits.sources import COLLECTIVE_LOG, GAVE_UP, SOURCES, STACK
from watchtower.views.case_summary import (
    RankState,
    WaitArrow,
    WaitBox,
    WaitBoxes,
    make_rank_set,
)
from watchtower.views.summary.distances import measure_waits
from watchtower.views.summary.grid import MAX_NODE, Places, find_only, find_state
from watchtower.writing.text import capitalise, clean, count_ranks, join_words

MAX_SENTENCE = 450
"""Characters. The picture shows the rest."""

NO_WAIT = "No rank is known to wait for another rank."

STATES = {
    RankState.CANNOT_RUN: "cannot run",
    RankState.ENDED: "ended",
    RankState.MISSING: "was never seen",
    RankState.UNSEEN: "shows no stack",
}

BY_NAME = {source.name: source for source in SOURCES}
"""The sources of waits."""

PLURALS = {"was never seen": "were never seen", "shows no stack": "show no stack"}

WAITING = (RankState.WAITING, RankState.DEVICE, RankState.PRESUMED)

NAMED = 3
"""Runs of ranks that are named; of more, the number is given."""


def write_waits(waits: WaitBoxes) -> str:
    """Return the graph in words: the ranks at the end of the waiting, then those that wait."""
    if not waits.boxes:
        return NO_WAIT
    sentences = []
    for index, box in sorted(enumerate(waits.boxes), key=lambda item: item[1].layer):
        arrows = [arrow for arrow in waits.arrows if arrow.from_box == index]
        sentences += _write_box(waits, box, arrows)
    sentences = list(dict.fromkeys(sentences))
    text = ""
    for number, sentence in enumerate(sentences):
        if len(text) + len(sentence) > MAX_SENTENCE:
            left = len(sentences) - number
            return f"{text} {left} more {'wait is' if left == 1 else 'waits are'} not named."
        text = f"{text} {sentence}".strip()
    return text


def name_box(box: WaitBox) -> str:
    """Return "rank 37 (gpu-042)", "ranks 0-6,8" or "480 ranks"."""
    ranks = box.rank_set
    node = f" ({box.node})" if box.node else ""
    if ranks.count == 1:
        return f"rank {ranks.text}{node}"
    if ranks.is_whole and ranks.text.count(",") < NAMED:
        return f"ranks {ranks.text}{node}"
    return f"{count_ranks(ranks.count)}{node}"


def _write_box(waits: WaitBoxes, box: WaitBox, arrows: list[WaitArrow]) -> list[str]:
    name = capitalise(name_box(box))
    is_one = box.rank_set.count == 1
    sentences = []
    if box.is_cycle:
        call = f" in {box.call}" if box.call else ""
        sentences.append(f"{name} wait for each other{call}.")
    elif box.call:
        wait = "waits" if is_one else "wait"
        others = "other ranks made another call" if _is_split(waits, box) else "no rank is missing"
        sentences.append(f"{name} {wait} in {box.call}, and {others} there.")
    by_call: dict[tuple[str, str], list[str]] = {}
    for arrow in arrows:
        target = name_box(waits.boxes[arrow.to_box])
        by_call.setdefault((arrow.label, arrow.source), []).append(target)
    for (label, source), targets in by_call.items():
        call = f" in {label}" if label else ""
        wait = BY_NAME[source].wait if is_one else BY_NAME[source].wait_all
        sentences.append(f"{name} {wait} for {join_words(targets)}{call}.")
    if not sentences:
        sentences.append(f"{name} {_end(box, is_one)}.")
    return sentences


def _is_split(waits: WaitBoxes, box: WaitBox) -> bool:
    """Return whether other ranks made a call with another operation as the same number."""
    operation, _, number = box.call.partition(" number ")
    others = (other.call.partition(" number ") for other in waits.boxes)
    return any(which == number and what != operation for what, _, which in others)


def _end(box: WaitBox, is_one: bool) -> str:
    if box.state in WAITING:
        return f"{'waits' if is_one else 'wait'}, and it is not known for which rank"
    words = STATES.get(box.state)
    if words is not None:
        return words if is_one else PLURALS.get(words, words)
    if box.place:
        return f"{'is' if is_one else 'are'} at {box.place}"
    return f"{'does' if is_one else 'do'} not wait for another rank"


MAX_BOXES = 12
"""Boxes of one picture. The coarsest key needs at most two for each layer."""

FEW_BOXES = 7
"""A finer key is used if it needs at most so many: a person reads no more of them on a phone."""

MAX_COLUMNS = 3
"""Boxes of one layer: the text of more is too small on half a page."""

MAX_LAYERS = 4
"""Layers of one picture. Ranks that are further away are in the box of the last layer: what they
wait for is seldom of use, and a pipeline has many stages."""

MAX_ARROWS = 24
"""Arrows of one picture: two for each box."""

MAX_LABEL = 120
"""Characters of the label of an arrow."""

LABELS_SHOWN = 2
"""Calls named at one arrow; further ones are counted."""

_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class _Call:
    """Ranks that wait in one call, and those that it waits for."""

    waiting: Sequence[int]
    awaited: Sequence[int]
    kind: str
    """Equal for the same call in groups of the same kind."""
    source: str
    point: WaitPoint | None = None
    """Null without a collective log."""


@dataclass(slots=True)
class _Members:
    """A box that is being filled."""

    level: int
    ranks: list[int] = field(default_factory=list)


_Key = tuple[object, ...]


def draw_waits(picture: Picture, states: Mapping[int, RankState], places: Places) -> WaitBoxes:
    """Return which ranks wait for which. `states` is by rank."""
    suspects = [rank for rank, state in states.items() if state is RankState.SUSPECT]
    calls = [*_logged_calls(picture), *_other_calls(picture, suspects)]
    if not calls:
        return WaitBoxes(sentence=write_waits(WaitBoxes()))
    drawn = _Drawing(picture, states, places, calls)
    return drawn.describe(drawn.make_boxes())


def _logged_calls(picture: Picture) -> list[_Call]:
    if picture.graph is None:
        return []
    calls = []
    for point in picture.graph.points:
        kind = _find_kind(point.operation, point.group)
        calls.append(_Call(point.waiting, point.held_up_by, kind, COLLECTIVE_LOG, point))
    return calls


def _find_kind(operation: str, group: Group | None) -> str:
    """Return a text that is equal for the same operation in groups of one kind: "tp1", "tp2"."""
    name = f"{_NUMBERS.sub('', group.name)} {group.shape}" if group else ""
    return f"{operation} {name}"


def _other_calls(picture: Picture, suspects: Sequence[int]) -> list[_Call]:
    """Return the waits of which no collective log names the call, by their source.

    Such a rank may wait for any rank that does not wait. The suspects are the likeliest.
    """
    logged = picture.graph.blocked_in if picture.graph else {}
    source_of: dict[int, str] = {}
    gave_up: set[int] = set()
    for edge in picture.edges:
        if edge.source == GAVE_UP:
            gave_up.update(edge.ranks)
        for rank in edge.ranks:
            source_of[rank] = edge.source
    waiting = {item.rank for item in picture.waiting if item.rank not in logged} | gave_up
    waiting.difference_update(logged, suspects)
    if not waiting:
        return []
    awaited = list(suspects) or _others(picture, waiting)
    by_source: dict[str, list[int]] = {}
    for rank in sorted(waiting):
        # Without an edge, its position shows the wait.
        by_source.setdefault(source_of.get(rank, STACK), []).append(rank)
    return [_Call(ranks, awaited, source, source) for source, ranks in by_source.items()]


def _others(picture: Picture, waiting: Collection[int]) -> list[int]:
    """Return the ranks that are not known to wait."""
    return [r for r, item in picture.by_rank.items() if not item.waits and r not in waiting]


class _Drawing:
    """The graph of ranks and calls, with the distance of each rank from the end of the waiting."""

    def __init__(
        self,
        picture: Picture,
        states: Mapping[int, RankState],
        places: Places,
        calls: Sequence[_Call],
    ) -> None:
        self._picture, self._states, self._places = picture, states, places
        self._suspects = frozenset(r for r, one in states.items() if one is RankState.SUSPECT)
        self._calls = calls
        self._kinds: dict[int, int] = {}
        """By rank, the kinds of the calls that it waits in, one bit each."""
        bits: dict[str, int] = {}
        for call in calls:
            bit = bits.setdefault(call.kind, 1 << len(bits))
            for rank in call.waiting:
                self._kinds[rank] = self._kinds.get(rank, 0) | bit
            for rank in call.awaited:
                self._kinds.setdefault(rank, 0)
        self._ranks = sorted(self._kinds)
        self._level, self._cycle = measure_waits([(call.waiting, call.awaited) for call in calls])

    def make_boxes(self) -> dict[_Key, _Members]:
        """Return the boxes by the finest key that needs few enough of them."""
        boxes: dict[_Key, _Members] = {}
        keys = list(self._keys())
        for key_of in keys:
            boxes = {}
            for rank in self._ranks:
                key = key_of(rank)
                box = boxes.get(key)
                if box is None:
                    box = boxes[key] = _Members(self._level[rank])
                box.ranks.append(rank)
                if len(boxes) > FEW_BOXES and key_of is not keys[-1]:
                    break
            else:
                columns = Counter(box.level for box in boxes.values())
                if max(columns.values()) <= MAX_COLUMNS:
                    break
        return boxes

    def _keys(self) -> Iterable[Callable[[int], _Key]]:
        """Yield functions that return the key of a rank's box, the finest one first."""
        state, level, cycle, kinds = self._states, self._level, self._cycle, self._kinds
        by_rank, names = self._picture.by_rank, self._places

        def place(rank: int) -> str:
            return names.name(by_rank[rank]) if rank in by_rank else ""

        distances = sorted(set(level.values()))
        far = distances[MAX_LAYERS - 1] if len(distances) > MAX_LAYERS else None

        def near(key_of: Callable[[int], _Key]) -> Callable[[int], _Key]:
            return lambda r: ("far",) if far is not None and level[r] >= far else key_of(r)

        def or_cycle(key_of: Callable[[int], _Key]) -> Callable[[int], _Key]:
            return near(lambda r: ("cycle", cycle[r]) if r in cycle else key_of(r))

        yield or_cycle(lambda r: (level[r], state.get(r), kinds[r], place(r)))
        yield or_cycle(lambda r: (level[r], state.get(r), kinds[r]))
        yield or_cycle(lambda r: (level[r], state.get(r)))
        # At most two boxes for each layer, and ranks of one cycle are never in two of them.
        yield near(lambda r: (level[r], r in self._suspects and r not in cycle))

    def describe(self, boxes: Mapping[_Key, _Members]) -> WaitBoxes:
        """Return the boxes with their arrows, the ranks that wait for the most others first."""
        ordered = sorted(boxes.values(), key=lambda box: (-box.level, box.ranks))
        box_of = {rank: index for index, box in enumerate(ordered) for rank in box.ranks}
        found: dict[tuple[int, int, str], list[_Call]] = {}
        inside: dict[int, list[_Call]] = {}
        for call in self._calls:
            waiting = {box_of[rank] for rank in call.waiting}
            awaited = {box_of[rank] for rank in call.awaited}
            for one in waiting:
                if one in awaited or not awaited:
                    inside.setdefault(one, []).append(call)
                for other in awaited - {one}:
                    found.setdefault((one, other, call.source), []).append(call)
        arrows = [
            WaitArrow(from_box=one, to_box=other, label=_label(made), source=source)
            for (one, other, source), made in sorted(found.items(), key=lambda item: item[0])
        ]
        layers = _find_layers(len(ordered), arrows)
        drawn = WaitBoxes(
            boxes=tuple(
                self._box(box, layers[index], inside.get(index, ()))
                for index, box in enumerate(ordered)
            ),
            arrows=tuple(arrows[:MAX_ARROWS]),
            arrows_left_out=len(arrows[MAX_ARROWS:]),
        )
        return replace(drawn, sentence=write_waits(drawn))

    def _box(self, box: _Members, layer: int, inside: Sequence[_Call]) -> WaitBox:
        known = [item for rank in box.ranks if (item := self._picture.by_rank.get(rank))]
        states = Counter(self._states[item.rank] for item in known)
        suspects = [rank for rank in box.ranks if rank in self._suspects]
        first = self._cycle.get(box.ranks[0])
        is_cycle = first is not None and all(self._cycle.get(r) == first for r in box.ranks)
        if states.pop(RankState.SUSPECT, 0):
            states.update(find_state(item) for item in known if item.rank in self._suspects)
        return WaitBox(
            rank_set=make_rank_set(box.ranks),
            suspect_ranks=make_rank_set(suspects).text,
            state=states.most_common(1)[0][0] if states else RankState.MISSING,
            place=find_only(self._places.name(item) for item in known),
            node=clean(find_only(item.evidence.node for item in known), MAX_NODE),
            is_cycle=is_cycle,
            call=_label(inside) if is_cycle else self._name_full(box, layer, inside),
            layer=layer,
        )

    def _name_full(self, box: _Members, layer: int, inside: Sequence[_Call]) -> str:
        """Name the call at which the waiting of a box ends, although all its ranks are there."""
        points = [each.point for each in inside if each.point is not None and not each.awaited]
        logs = self._picture.collective_logs
        if layer or not points or logs is None:
            return ""
        point = points[0]
        # Ranks may have entered different operations as the same call.
        log = logs.log_of(box.ranks[0], point.group.id) if point.group else None
        operation = log.record_of(point.number).operation if log else point.operation
        return clean(name_point(replace(point, operation=operation)), MAX_LABEL)


def _find_layers(count: int, arrows: Sequence[WaitArrow]) -> list[int]:
    """Return the longest way from each box to the end of its arrows.

    An arrow leads from a box to one of a lower level, which is later in the list.
    """
    layers = [0] * count
    for arrow in sorted(arrows, key=lambda arrow: -arrow.to_box):
        layers[arrow.from_box] = max(layers[arrow.from_box], layers[arrow.to_box] + 1)
    return layers


def _label(calls: Sequence[_Call]) -> str:
    """Name the calls of an arrow: one with its group, several by their operations."""
    points = [call.point for call in calls if call.point is not None]
    if not points:
        return ""
    if len(points) == 1:
        return clean(name_point(points[0]), MAX_LABEL)
    counts = Counter((clean(p.operation, 40) or "collective", p.group is None) for p in points)
    shown = [_name_calls(name, number, alone) for (name, alone), number in counts.items()]
    more = len(shown) - LABELS_SHOWN
    shown = [*shown[:LABELS_SHOWN], *([f"{more} more"] if more > 0 else [])]
    return clean(join_words(shown), MAX_LABEL)


def _name_calls(operation: str, number: int, is_message: bool) -> str:
    if number == 1:
        return operation
    return f"{operation} ({number} messages)" if is_message else f"{operation} in {number} groups"
