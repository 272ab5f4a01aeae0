"""Writes the verdict where no rank is accused: it is not a fault, or the fault is not found.

Kernel states and heartbeats need no py-spy. Ranks with a stack are shown with their places. The
ranks that differ from the others come first: a person would check these.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from watchtower.diagnosis.advice import Step
from watchtower.diagnosis.gaps import is_in_no_snapshot
from watchtower.diagnosis.observed import COLLECTORS, find_events
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position
from watchtower.diagnosis.reasons import ranks_of
from watchtower.diagnosis.words import name_waits, node_of, where_of
from watchtower.evidence.exits import DeathKind
from watchtower.evidence.frames import describe_frames
from watchtower.wire.observations import Observation
from watchtower.wire.verdict import Alternative, Evidence
from watchtower.writing.cause_names import write_candidate
from watchtower.writing.ranksets import format_ranks, name_ranks
from watchtower.writing.text import capitalise, clean, count_ranks, format_duration, join_sentences

MAX_CANDIDATES = 3
"""Candidates that are named: a fourth one is hardly the cause."""

MAX_GROUPS = 2
"""Sentences of a kind: those that differ, and the many. More would push each other off a page."""


def explain_without_fault(picture: Picture) -> str:
    """Return why no rank is accused although the job does not step; empty if it is not known."""
    count, live = count_ranks(len(picture.by_rank)), count_ranks(len(picture.live))
    if picture.is_suspended:
        return f"All {live} are stopped: the job is suspended."
    if picture.live and all(item.is_frozen for item in picture.live):
        return f"All {live} are frozen by their cgroups: the job is suspended."
    if picture.is_cancelled:
        return f"All {count} were ended by SIGTERM or a similar signal: the job was cancelled."
    if _is_finished(picture):
        return f"All {count} exited with code 0: the job is finished."
    return ""


def _is_finished(picture: Picture) -> bool:
    deaths = picture.deaths
    return len(deaths) == len(picture.by_rank) > 0 and all(
        death.kind is DeathKind.CLEAN for death in deaths
    )


def summarise_unknown(picture: Picture, alternatives: Sequence[Alternative]) -> str:
    """Return what is seen when no accusation is sure enough, with the likeliest candidates."""
    seen = _write_seen(picture)
    is_awaited = bool(picture.waiting or picture.gave_up)
    candidates = [
        write_candidate(each, is_awaited=is_awaited) for each in alternatives[:MAX_CANDIDATES]
    ]
    if not candidates:
        return f"{capitalise(seen)}."
    likely = f"most likely: {' or '.join(candidates)}"
    return f"{capitalise(join_sentences(seen, 'the cause is not certain', likely))}."


def _write_seen(picture: Picture) -> str:
    live, waiting = picture.live, picture.waiting
    count = f"{count_ranks(len(live))}{_name_seen(picture)}"
    if live and len(waiting) == len(live):
        verb = "waits" if len(waiting) == 1 else "wait"
        seen = f"{'the' if len(live) == 1 else 'all'} {count} {verb} in {name_waits(waiting)}"
        seen += _write_unlogged(picture.unlogged) or _write_separated(picture)
    elif waiting:
        verb = "waits" if len(waiting) == 1 else "wait"
        seen = f"{len(waiting)} of {count} {verb} in {name_waits(waiting)}"
    else:
        seen = f"no rank is waiting for another ({count_ranks(len(live))} alive)"
        seen += _write_only_place(live)
    missing = len(picture.missing)
    was = "was" if missing == 1 else "were"
    never = f"; {count_ranks(missing)} {was} never seen" if missing else ""
    return seen + never + "".join(_write_unseen(picture))


def _write_only_place(live: Sequence[Position]) -> str:
    """Return " and all are at train.py:12 in work", or nothing if they are at several places."""
    places = {where_of(item) for item in live}
    where = places.pop() if len(places) == 1 and len(live) > 1 else None
    return f"; all are at {where}" if where else ""


def _name_seen(picture: Picture) -> str:
    """Return which ranks were seen, if some were not."""
    unseen = picture.unseen
    if picture.case.of_files:
        return " that wrote where they are" if unseen else ""
    if any(is_in_no_snapshot(item.evidence) for item in unseen):
        return " in the snapshots"
    return " that answered" if any(not item.live for item in unseen) else ""


def _write_separated(picture: Picture) -> str:
    found = picture.deciding_separations
    return f"; {found[0].text}" if found else ", and none is known to be behind"


def _write_unlogged(unlogged: Sequence[Position]) -> str:
    ranks = name_ranks(item.rank for item in unlogged)
    return f"; one may be behind: the collective log of {ranks} is missing" if unlogged else ""


def _write_unseen(picture: Picture) -> Iterator[str]:
    """Yield clauses: ranks whose node is silent, and live ones that were not seen well enough."""
    unseen = picture.unseen
    if picture.case.of_files:
        if unseen:
            yield f"; nothing shows where {name_ranks(ranks_of(unseen))} {_be(unseen)}"
        return
    live = [item for item in unseen if item.live]
    bare = sum(item.stack is None for item in live)
    absent = sum(is_in_no_snapshot(item.evidence) for item in unseen)
    for count, words in (
        (absent, f"{'is' if absent == 1 else 'are'} in no snapshot"),
        (len(unseen) - len(live) - absent, "did not answer"),
        (bare, "returned no stack"),
        (len(live) - bare, "may wait or work"),
    ):
        if count:
            yield f"; {count_ranks(count)} {words}"


def _be(positions: Sequence[Position]) -> str:
    return "is" if len(positions) == 1 else "are"


def show_ranks(picture: Picture) -> tuple[Evidence, ...]:
    """Quote stacks, and what kernel and heartbeats say of ranks without one, alike ones together.

    Steps are shown where there is no stack, or where they differ.
    """
    bare = [item for item in picture.live if item.stack is None and not item.of_files]
    seen = [item for item in picture.live if item.stack is not None]
    steps = {item.step for item in seen}
    stepped = [i for i in (picture.live if len(steps) > 1 else bare) if i.step is not None]
    return (
        *_quote("stacks", seen, _write_stack),
        *_quote("kernel", bare, _write_kernel),
        *_quote("heartbeat", stepped, _write_step),
    )


def add_event_step(
    picture: Picture, candidates: Sequence[Position], steps: Sequence[Step]
) -> tuple[Step, ...]:
    """Add the advice to check a node on which something was observed, unless the first candidate
    is on such a node. It comes first if the candidates are none, or most of the ranks."""
    events = list(find_events(picture))
    nodes = {node for node, _ in events}
    if not events or any(item.evidence.node in nodes for item in candidates[:1]):
        return tuple(steps)
    node, event = events[0]
    text = f"check {clean(node, 64)}: {COLLECTORS[event.source]}: {clean(event.text, 120)}"
    step = Step(text, lasts=True)
    is_narrow = 0 < 2 * len(candidates) < len(picture.by_rank)
    return (*steps, step) if is_narrow else (step, *steps)


def prefer_events(picture: Picture, positions: Sequence[Position]) -> tuple[Position, ...]:
    """Return the positions, those first about whose process or node something was observed."""
    events = list(find_events(picture))
    nodes = {node for node, _ in events}

    def key(item: Position) -> tuple[bool, bool]:
        about = any(each in events for each in _observed(picture, item))
        return not about, item.evidence.node not in nodes

    return tuple(sorted(positions, key=key)) if events else tuple(positions)


def _observed(picture: Picture, item: Position) -> Iterator[tuple[str, Observation]]:
    return ((item.evidence.node, each) for each in picture.observed(item.rank))


def advise_by_hand(picture: Picture) -> tuple[Step, ...]:
    """Return which rank to check by hand: one that differs from the others, or on whose node
    something was observed."""
    live = prefer_events(picture, picture.live)
    absent = [item for item in picture.unseen if is_in_no_snapshot(item.evidence)]
    if picture.case.of_files and picture.unseen:
        names = name_ranks(ranks_of(picture.unseen))
        text = f"find the log of {names}, or dump it: `py-spy dump --pid PID`"
        return (Step(text, lasts=False),)
    if absent:
        one = len(absent) == 1
        runs, its, node = ("runs", "its", "node") if one else ("run", "their", "nodes")
        text = f"find out whether {name_ranks(ranks_of(absent))} still {runs}: take a snapshot on "
        return (Step(f"{text}{its} {node}, and read the end of {its} log", lasts=True),)
    if not live:
        text = "read the end of the job's own log: no process of the job is left"
        return (Step(text, lasts=True),)
    unread = [item for item in live if item.stack is None]
    groups = _group(unread, _write_kernel) if unread else _group(live, _write_stack)
    differs = groups[0] if len(groups) > 1 else live
    if picture.deciding_separations:
        differs = picture.deciding_separations[0].ranks
    first = prefer_events(picture, sorted(differs, key=lambda item: -item.age_s))[0]
    pid = first.evidence.pid
    check = Step(f"check rank {first.rank} on {node_of(first)}: `py-spy dump --pid {pid}`", False)
    if first.stack is not None:
        return (check,)
    otherwise = (
        f"if py-spy returns no stack, run there: `watchtower-agent doctor`, `py-spy --version`, "
        f"`cat /proc/{pid}/stack` as root"
    )
    return (check, Step(otherwise, lasts=False))


def _quote(
    source: str, positions: Sequence[Position], write: Callable[[Position], str]
) -> Iterator[Evidence]:
    for group in _group(positions, write)[:MAX_GROUPS]:
        text = f"{name_ranks(ranks_of(group))}: {write(group[0])}"
        yield Evidence(source=source, text=text, ranks=format_ranks(ranks_of(group)), weight=0.0)


def _group(positions: Sequence[Position], write: Callable[[Position], str]) -> list[list[Position]]:
    """Put alike ones together, the fewest first."""
    groups: dict[str, list[Position]] = defaultdict(list)
    for item in positions:
        groups[write(item)].append(item)
    return sorted(groups.values(), key=len)


def _write_stack(position: Position) -> str:
    return clean(describe_frames(position.stack.frames), 400) if position.stack else ""


def _write_kernel(position: Position) -> str:
    kernel = position.kernel
    call = f"in {clean(kernel.syscall, 32)}()" if kernel.syscall else clean(kernel.wchan, 64)
    text = position.wait.text or call
    return f"state {position.state.value}{text and f', {text}'}"


def _write_step(position: Position) -> str:
    return f"last step {position.step}, {format_duration(position.age_s)} ago"
