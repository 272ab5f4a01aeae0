"""Advice: the sentences that several causes give, and how their names are filled in.

A cause gives its advice as sentences with names in braces: {rank}, {pid}, {node}, {place} and so on
describe the first suspect (`_values_of`). `Accusation.names` has further ones.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from string import Formatter
from typing import NamedTuple

from watchtower.diagnosis.accusation import Accusation
from watchtower.diagnosis.bystanders import (
    CHILD_STATES,
    describe_program,
    find_busy_thread,
    find_stuck_worker,
)
from watchtower.diagnosis.paths import find_unanswered
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position
from watchtower.diagnosis.words import node_of, where_of
from watchtower.evidence.kernel import describe_mount, find_mounts, name_target
from watchtower.wire.dumps import ChildDump
from watchtower.writing.text import clean, join_words

WAIT_PLACE = "wait_place"
"""Stands for the advice beside the call that a rank waits in, in `evidence/facts/wait_places.toml`.
"""
READ_CODE = "read the code around {place}: what does rank {rank} wait for or do there?"
DUMP_THREADS = "`py-spy dump --pid {pid}` on {node} shows every thread"
RESTART_BEFORE_STEP = "restart the job from its last checkpoint{before_step}"
CHECK_SEPARATED = (
    "check rank {rank} on {node} first: the evidence shows how it differs from most ranks"
)
TRY_OTHER_NODES = (
    "restart the job on other nodes: if it hangs again, the program is the more likely cause than "
    "the network"
)
LOOK_AT_DESTINATION = (
    "check {destination} on {node}: is it full, does it hang, or does its reader not read?"
)
LOOK_AT_THREAD = "rank {rank} on {node} may wait for its {thread}: find what that thread waits for"
LOOK_AT_CHILD = "check the child process {child}, on {node}: it may be at the other end of {target}"

ABOUT_OTHER_END = frozenset({WAIT_PLACE, LOOK_AT_DESTINATION})
"""Advice to check whatever is at the other end of a pipe or queue: a child or thread that may hold
up the rank is named in its place."""

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
    values = (_values_of(picture, first) if first else {}) | dict(accusation.names)
    templates = choose_closest(picture, accusation)
    steps = [Step(each.format_map(values), lasts=lasts(each)) for each in templates]
    useful = [step for step in steps if step.lasts or first is None or first.live]
    return tuple(_without_repeated_commands(useful))


def choose_closest(picture: Picture, accusation: Accusation) -> tuple[str, ...]:
    """Return the sentences that are shown: a closer one in place of a general one."""
    first = _first_of(accusation)
    return tuple(_choose_closer(picture, each, first) or each for each in accusation.advice)


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


def _choose_closer(picture: Picture, advice: str, first: Position | None) -> str:
    """Return advice about a child or thread that may hold up the rank; empty without one."""
    if advice not in ABOUT_OTHER_END or first is None:
        return ""
    if _find_child_at_pipe(first):
        return LOOK_AT_CHILD
    if advice != WAIT_PLACE:
        return ""
    busy = find_busy_thread(picture, first)
    # A main thread that waits for the thread which trains leads back to where the rank is.
    if busy is not None and not busy.leads_back:
        return LOOK_AT_THREAD
    return first.wait_place.advice if first.wait_place else READ_CODE


def _find_child_at_pipe(first: Position) -> ChildDump | None:
    """Return a child that cannot run while the rank is blocked on a pipe; null without one."""
    dump = first.last_dump
    if dump is None or not first.asleep or first.wait.wait_class != "pipe":
        return None
    return next((each for each in dump.children if each.kernel.state in CHILD_STATES), None)


def _values_of(picture: Picture, first: Position) -> dict[str, object]:
    """Return what the sentences may name of the first suspect."""
    made = picture.step if first.step is not None else None
    worker, target = find_stuck_worker(picture.stacks, first), name_target(first.kernel)
    mounts = find_mounts(first.kernel, first.wait.wait_class)
    slow_gpu = picture.slowed_gpu(first.rank) or picture.ecc_errors(first.rank)
    return {
        "rank": first.rank,
        "pid": "PID" if first.evidence.pid is None else first.evidence.pid,
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
        "peer": _name_peer(picture, first),
        "worker": worker.pid if worker else "",
        "ended_worker": worker.pid if worker else "",
        "thread": _name_thread(picture, first),
        "tracer": name_tracer(first),
        "device": clean(slow_gpu.device, 32) if slow_gpu is not None else "",
        "child": describe_program(child) if (child := _find_child_at_pipe(first)) else "",
    }


def _quote_path(path: str) -> str:
    """Write a path as one word for a shell: the names in it are another user's text."""
    return shlex.quote(clean(path, 120)) if path.startswith("/") else "PATH"


def _name_peer(picture: Picture, first: Position) -> str:
    """Write the address for `nc`: "10.0.0.1 29500", "fd00::1 29500"."""
    host, _, port = clean(find_unanswered(picture, first), 64).rpartition(":")
    return f"{host.strip('[]')} {port}"


def _name_thread(picture: Picture, first: Position) -> str:
    found = find_busy_thread(picture, first)
    if found is None:
        return ""
    name = "main thread" if found.thread.main else f"thread {clean(found.thread.name, 64)}"
    place = clean(found.known.reading.where) if found.known.reading else ""
    return f"{name} at {place}" if place else name


def name_tracer(position: Position) -> str:
    """Return "gdb (pid 77)", "pid 77" or "another process"."""
    kernel = position.kernel
    if not kernel.tracer_pid:
        return "another process"
    name = clean(kernel.tracer_name, 64)
    return f"{name} (pid {kernel.tracer_pid})" if name else f"pid {kernel.tracer_pid}"
