"""The part of a summary that compares the first suspect with the other ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position, Shape
from watchtower.evidence.frames import last_component, name_line
from watchtower.evidence.native import describe_native
from watchtower.views.case_summary import STATE_WORDS, Contrast, Difference
from watchtower.views.summary.grid import MAX_NODE, MAX_PLACE, Places, find_state
from watchtower.wire.report import ProcessState
from watchtower.writing.text import clean, format_duration

MAX_PEERS = 512
"""Ranks that the suspect is compared with. Of more, evenly spaced ones are taken: with so many, a
share is exact to a few percent, and the cost does not grow with the job."""

SAME_SHARE = 0.5
"""If more peers have the suspect's value, it does not differ."""

NEAR = 0.25
"""Numbers that differ by a smaller share of the larger one are the same."""


@dataclass(frozen=True, slots=True)
class _Word:
    """A property whose values are words."""

    name: str
    read: Callable[[Picture, Position], str]
    """Returns an empty text if it is not known."""


@dataclass(frozen=True, slots=True)
class _Number:
    """A property whose values are numbers."""

    name: str
    read: Callable[[Picture, Position], float | None]
    write: Callable[[float], str]
    least: float
    """Numbers that differ by less are the same."""


def contrast_suspect(picture: Picture, suspects: Sequence[int], places: Places) -> Contrast | None:
    """Compare the first suspect with the ranks that are no suspects; None without both."""
    item = picture.by_rank.get(suspects[0]) if suspects else None
    peers = _choose_peers(picture, set(suspects))
    if item is None or not peers:
        return None
    found: list[tuple[float, Difference]] = []
    same: list[str] = []
    for word in (_Word("place in the code", lambda _, one: places.name(one)), *_WORDS):
        _note(_compare_words(picture, word, item, peers), word.name, found, same)
    for number in _NUMBERS:
        _note(_compare_numbers(picture, number, item, peers), number.name, found, same)
    found.sort(key=lambda each: each[0])
    return Contrast(
        rank=item.rank,
        node=clean(item.evidence.node, MAX_NODE),
        peer_count=len(peers),
        differences=tuple(difference for _, difference in found),
        same=tuple(same),
    )


def _choose_peers(picture: Picture, suspects: Collection[int]) -> list[Position]:
    peers = [item for rank, item in picture.by_rank.items() if rank not in suspects]
    if len(peers) <= MAX_PEERS:
        return peers
    return [peers[index * len(peers) // MAX_PEERS] for index in range(MAX_PEERS)]


def _note(
    compared: Difference | None,
    name: str,
    found: list[tuple[float, Difference]],
    same: list[str],
) -> None:
    if compared is None:
        return
    share = compared.agreeing / compared.known
    if compared.suspect == compared.peers or share > SAME_SHARE:
        same.append(name)
    else:
        found.append((share, compared))


def _compare_words(
    picture: Picture, word: _Word, item: Position, peers: Sequence[Position]
) -> Difference | None:
    own = word.read(picture, item)
    values = Counter(value for peer in peers if (value := word.read(picture, peer)))
    if not values:
        return None
    most = values.most_common(1)[0][0]
    return Difference(
        name=word.name,
        suspect=clean(own, MAX_PLACE) or "not known",
        peers=clean(most, MAX_PLACE),
        agreeing=values[own],
        known=values.total(),
    )


def _compare_numbers(
    picture: Picture, number: _Number, item: Position, peers: Sequence[Position]
) -> Difference | None:
    own = number.read(picture, item)
    read = (number.read(picture, peer) for peer in peers)
    values = sorted(value for value in read if value is not None)
    if own is None or not values:
        return None
    median = values[len(values) // 2]
    distance = abs(own - median)
    if distance < max(number.least, NEAR * max(abs(own), abs(median))):
        far = len(values)  # it does not differ
    else:
        far = sum(abs(v - median) >= distance and (v > median) == (own > median) for v in values)
    return Difference(
        name=number.name,
        suspect=number.write(own),
        peers=number.write(median),
        agreeing=far,
        known=len(values),
    )


def _innermost(_: Picture, item: Position) -> str:
    if item.stack is None or not item.stack.frames:
        return ""
    frame = item.stack.frames[0]
    return f"{last_component(frame.function)} {name_line(frame)}"


def _gpu(picture: Picture, item: Position) -> str:
    use = picture.gpu_use(item.rank)
    return use.pattern.value if use else ""


def _node_facts(picture: Picture, item: Position) -> str:
    """Return the names of what the collectors of its node report about it or its node."""
    found = {each.family for each in picture.observed(item.rank)}
    return ", ".join(sorted(found)) or "none"


def _ending(_: Picture, item: Position) -> str:
    ended = item.evidence.ended
    if ended is None:
        return ""
    code = "" if ended.code is None else f" {ended.code}"
    return ended.exception_type or f"{ended.kind.value}{code}"


def _exception(_: Picture, item: Position) -> str:
    beat = item.evidence.beat
    return (beat.exception_type or "none") if beat else ""


def _limits(picture: Picture, item: Position) -> str:
    return "limited" if picture.cpu_limit(item.rank) else "none"


def _call(picture: Picture, item: Position) -> str:
    """Return the operation and the shapes of the first call that a rank waits in by its log."""
    graph, logs = picture.graph, picture.collective_logs
    indices = graph.blocked_in.get(item.rank, ()) if graph else ()
    if graph is None or logs is None:
        return ""
    if not indices:
        return "none" if item.rank in logs.of_rank else ""
    point = graph.points[indices[0]]
    log = logs.log_of(item.rank, point.group.id) if point.group else None
    if log is None:
        return point.operation
    record = log.record_of(point.number)
    return f"{record.operation} {point.number} {record.signature}".strip()


def _native(_: Picture, item: Position) -> str:
    return (describe_native(item.native) or item.native.kind.value) if item.native else ""


def _system_call(_: Picture, item: Position) -> str:
    return "none" if item.state is ProcessState.RUNNING else item.kernel.syscall


def _two_dumps(_: Picture, item: Position) -> str:
    return "" if item.shape is Shape.UNKNOWN else item.shape.value


_WORDS = (
    _Word("position", lambda _, item: STATE_WORDS[find_state(item)]),
    _Word("collective", _call),
    _Word("phase", lambda _, item: item.phase or ("training" if item.evidence.beat else "")),
    _Word("ending", _ending),
    _Word("exception", _exception),
    _Word("GPU", _gpu),
    _Word("process", lambda _, item: item.evidence.presence.value),
    _Word("process state", lambda _, item: item.state.name.lower()),
    _Word("innermost frame", _innermost),
    _Word("system call", _system_call),
    _Word("kernel wait", lambda _, item: item.kernel.wchan or item.evidence.wchan),
    _Word("native code", _native),
    _Word("two dumps", _two_dumps),
    _Word("CPU limit", _limits),
    _Word("node reports", _node_facts),
)


def _rate(value: float) -> str:
    return f"{value / 1e6:.3g} MB/s"


def _step(_: Picture, item: Position) -> float | None:
    return None if item.step is None else float(item.step)


def _beat_age(_: Picture, item: Position) -> float | None:
    return item.evidence.beat.age_s if item.evidence.beat else None


def _wait_share(_: Picture, item: Position) -> float | None:
    return item.evidence.waits / item.evidence.samples if item.evidence.samples else None


_NUMBERS = (
    _Number("step", _step, lambda value: f"{value:.0f}", 1.0),
    _Number("last step", _beat_age, lambda value: f"{format_duration(value)} ago", 2.0),
    _Number("waits for others", _wait_share, lambda value: f"{value:.0%} of samples", 0.2),
    _Number(
        "CPU use",
        lambda _, item: item.evidence.movement.cpu_cores,
        lambda value: f"{value:.2f} cores",
        0.1,
    ),
    _Number(
        "storage",
        lambda _, item: (
            item.evidence.movement.read_bytes_per_s + item.evidence.movement.write_bytes_per_s
            if item.evidence.movement.io_readable
            else None
        ),
        _rate,
        100_000.0,
    ),
    _Number("network", lambda _, item: item.evidence.movement.socket_bytes_per_s, _rate, 100_000.0),
)
