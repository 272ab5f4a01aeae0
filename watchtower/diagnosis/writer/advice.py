"""Fills in the advice of an accusation; the sentences are data, `advice.toml`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from string import Formatter
from typing import NamedTuple

from watchtower.diagnosis.accusation import Accusation
from watchtower.diagnosis.bystanders import find_stuck_worker
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position
from watchtower.diagnosis.separation import Separation
from watchtower.diagnosis.subjects import (
    FailedLinks,
    FaultyGpus,
    LostNodes,
    MissingSends,
    NeverSeen,
    OddGpu,
    expect,
)
from watchtower.diagnosis.writer.hardware import name_link, write_source
from watchtower.diagnosis.writer.words import (
    CHILD_STATES,
    describe_program,
    find_busy_thread,
    name_tracer,
    node_of,
    where_of,
)
from watchtower.evidence.kernel import name_target
from watchtower.evidence.mounts import describe_mount, find_mounts
from watchtower.service.toml_tables import read_table
from watchtower.wire.dumps import ChildDump
from watchtower.wire.verdict import Cause
from watchtower.writing.ranksets import name_ranks
from watchtower.writing.text import clean, join_words

ADVICE: dict[str, str] = read_table("watchtower.diagnosis.writer", "advice")
COMPARE_ROOTS = "compare the root (src / dst) that each rank passed"
WAIT_PLACE = "wait_place"
"""The advice beside the call that a rank waits in, in `reading/facts/wait_places.toml`."""

ABOUT_OTHER_END = frozenset({WAIT_PLACE, "look_at_destination"})
"""Advice to check whatever is at the other end of a pipe or queue."""


MAX_MOUNTS = 4
"""Mounts named in one sentence, those of a network first."""

OF_A_PROCESS = frozenset({"pid", "worker", "child", "thread", "tracer"})
"""Names in a sentence of advice that need a process that still runs."""


class Step(NamedTuple):
    """One sentence of advice."""

    text: str
    lasts: bool
    """It stays useful when the processes of the job have ended."""


def write_advice(picture: Picture, accusation: Accusation) -> tuple[Step, ...]:
    """Return what helps. Nothing about the processes of a rank that has ended."""
    if not accusation.advice:
        return ()
    first = _first_of(accusation)
    values = _values_of(picture, first) if first else {}
    if accusation.cause in _OF_CAUSE:
        values |= _OF_CAUSE[accusation.cause](picture, accusation)
    templates = [_template(name, first) for name in choose_entries(picture, accusation)]
    steps = [Step(each.format_map(values), lasts=lasts(each)) for each in templates]
    useful = [step for step in steps if step.lasts or first is None or first.live]
    return tuple(_without_repeated_commands(useful))


def choose_entries(picture: Picture, accusation: Accusation) -> tuple[str, ...]:
    """Return the entries of `advice.toml` that are shown: a closer one in place of a general one.

    `WAIT_PLACE` is the advice beside the call that the rank waits in.
    """
    first = _first_of(accusation)
    return tuple(_choose_closer(picture, name, first) or name for name in accusation.advice)


def _first_of(accusation: Accusation) -> Position | None:
    return next(iter(accusation.suspects or accusation.witnesses), None)


def _without_repeated_commands(steps: Iterable[Step]) -> Iterator[Step]:
    """Leave out steps whose commands an earlier step has named."""
    named: set[str] = set()
    for step in steps:
        commands = {*step.text.split("`")[1::2]}
        if not commands or not commands <= named:
            yield step
        named |= commands


def lasts(template: str) -> bool:
    """Return whether advice stays useful when the processes of the job have ended."""
    return OF_A_PROCESS.isdisjoint(name for _, name, _, _ in Formatter().parse(template))


def _choose_closer(picture: Picture, name: str, first: Position | None) -> str:
    """Return advice about a child or thread that may hold up the rank; empty without one."""
    if name not in ABOUT_OTHER_END or first is None:
        return ""
    if _find_child_at_pipe(first):
        return "look_at_child"
    return "look_at_thread" if name == WAIT_PLACE and find_busy_thread(picture, first) else ""


def _find_child_at_pipe(first: Position) -> ChildDump | None:
    """Return a child that cannot run while the rank is blocked on a pipe; null without one."""
    dump = first.last_dump
    if dump is None or not first.asleep or first.wait.wait_class != "pipe":
        return None
    return next((each for each in dump.children if each.kernel.state in CHILD_STATES), None)


def _template(name: str, first: Position | None) -> str:
    place = first.wait_place if name == WAIT_PLACE and first else None
    return place.advice if place else ADVICE[name]


def _values_of(picture: Picture, first: Position) -> dict[str, object]:
    """Return what the sentences may name of the first suspect."""
    made = picture.step if first.step is not None else None
    worker, target = find_stuck_worker(picture.stacks, first), name_target(first.kernel)
    mounts = find_mounts(first.kernel, first.wait.wait_class)
    return {
        "rank": first.rank,
        "pid": first.evidence.pid,
        "node": node_of(first),
        "place": where_of(first) or "its stack",
        "target": target or "its descriptor",
        "opened": target or f"the file opened at {where_of(first) or 'its last line'}",
        "mount": describe_mount(mounts[0]) if len(mounts) == 1 else "that mount",
        "mount_path": _quote_path(mounts[0].point if len(mounts) == 1 else target),
        "stat_mounts": join_words(
            [f"`timeout 10 stat {_quote_path(each.point)}`" for each in mounts[:MAX_MOUNTS]]
        ),
        "destination": target or "the checkpoint's destination",
        # Without heartbeats it is not known that the suspect has made that step.
        "before_step": "" if made is None else f" before step {made}",
        "peer": _name_peer(first),
        "worker": worker.pid if worker else "",
        "ended_worker": worker.pid if worker else "",
        "thread": _name_thread(picture, first),
        "child": describe_program(child) if (child := _find_child_at_pipe(first)) else "",
    }


def _quote_path(path: str) -> str:
    """Write a path as one word for a shell: the names in it are another user's text."""
    return shlex.quote(clean(path, 120)) if path.startswith("/") else "PATH"


def _name_peer(first: Position) -> str:
    """Write the address for `nc`: "10.0.0.1 29500", "fd00::1 29500"."""
    host, _, port = clean(first.unanswered, 64).rpartition(":")
    return f"{host.strip('[]')} {port}"


def _name_thread(picture: Picture, first: Position) -> str:
    found = find_busy_thread(picture, first)
    if found is None:
        return ""
    name = "main thread" if found.thread.main else f"thread {clean(found.thread.name, 64)}"
    place = clean(found.known.reading.where) if found.known.reading else ""
    return f"{name} at {place}" if place else name


def _of_cycle(picture: Picture, accusation: Accusation) -> dict[str, object]:
    places = sorted({where_of(item) or "" for item in accusation.suspects} - {""})
    return {"places": join_words(places[:2])}


def _of_used_gpu(picture: Picture, accusation: Accusation) -> dict[str, object]:
    use = picture.gpu_use(accusation.suspects[0].rank)
    return {"device": clean(use.device, 32)} if use is not None else {}


def _of_slow_gpu(picture: Picture, accusation: Accusation) -> dict[str, object]:
    rank = accusation.suspects[0].rank
    found = picture.slowed_gpu(rank) or picture.ecc_errors(rank)
    return {"device": clean(found.device, 32)} if found is not None else {}


def _of_gpu(picture: Picture, accusation: Accusation) -> dict[str, object]:
    if isinstance(accusation.about, OddGpu | Separation):
        return _of_used_gpu(picture, accusation)
    error = expect(accusation.about, FaultyGpus).items[0].errors[0]
    return {"device": clean(error.device, 32), "source": write_source(error)}


_OF_CAUSE: dict[Cause, Callable[[Picture, Accusation], dict[str, object]]] = {
    Cause.NODE_LOST: lambda _, a: {"node": clean(expect(a.about, LostNodes).items[0].node, 64)},
    Cause.GPU_FAULT: _of_gpu,
    Cause.BEHIND_COLLECTIVE: _of_used_gpu,
    Cause.STRAGGLER: _of_slow_gpu,
    Cause.NEVER_STARTED: lambda _, a: {
        "ranks": name_ranks(i.rank for i in expect(a.about, NeverSeen).missing)
    },
    Cause.PROCESS_TRACED: lambda _, a: {"tracer": name_tracer(a.suspects[0])},
    Cause.MISSING_SEND: lambda _, a: {"receiver": expect(a.about, MissingSends).items[0].receiver},
    Cause.COLLECTIVE_CYCLE: _of_cycle,
    Cause.FABRIC_FAULT: lambda _, a: name_link(expect(a.about, FailedLinks).items[0]),
    Cause.SYMMETRIC_HANG: lambda *_: {"compare_roots": COMPARE_ROOTS},
}
"""Further values that the sentences of one cause may name."""
