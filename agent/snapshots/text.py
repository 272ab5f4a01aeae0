"""Describes a snapshot in a few lines: the ranks of this node by stack, and the odd rank.

It only groups ranks with equal stacks; a rank that is held is shown apart. Which rank hung the job
is decided by `watchtower diagnose`, from the snapshots of all nodes of the job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from watchtower.wire.collectives import format_members
from watchtower.wire.dumps import DumpBatch, RankDump
from watchtower.wire.report import ProcessState
from watchtower.wire.snapshot import Snapshot
from watchtower.wire.stacks import Stack
from watchtower.writing.printable import printable

MAX_GROUPS = 12
"""Groups shown for each job. A job without a hang may have one for each rank."""

SHOWN_FRAMES = 4
MAX_LINE = 160
"""Characters of a line. A frame with a long path fits; a hostile name does not fill the screen."""

_ORDINARY = (ProcessState.RUNNING, ProcessState.SLEEPING, ProcessState.IDLE, ProcessState.OTHER)
"""States in which a rank may be at any moment. A rank in another one is held: it is shown apart."""

JobName = tuple[str, str]


def describe(snapshot: Snapshot) -> str:
    """Return the lines for people. They contain no character that a terminal interprets."""
    report = snapshot.reports[-1]
    number = len(report.ranks)
    lines = [
        f"node {_line(snapshot.node)}: {number} rank{'' if number == 1 else 's'}, "
        f"dumped twice in {snapshot.gap_s:.0f} s"
    ]
    lines += [f"limit: {_line(sentence, 400)}" for sentence in report.limits.sentences()]
    lines += [f"limit: {_line(each.text, 400)}" for each in report.unwatched]
    sizes: dict[JobName, int] = {}
    for rank in report.ranks:
        key = (rank.job, rank.owner)
        sizes[key] = max(sizes.get(key, 0), rank.world_size or 0)
    dumped = _last_rounds(snapshot.dumps)
    gaps: dict[JobName, list[str]] = {}
    for gap in snapshot.gaps:
        gaps.setdefault((gap.job, gap.owner), []).append(f"  missing: {_line(gap.text, 400)}")
    for batch in dumped:
        key = (batch.job, batch.owner)
        lines += _describe_job(batch, sizes.get(key, 0))
        lines += gaps.pop(key, ())
    for (job, _), missing in gaps.items():
        lines += [f"job {_line(job)}:", *missing]
    return "\n".join(lines)


def _last_rounds(batches: Sequence[DumpBatch]) -> list[DumpBatch]:
    last: dict[JobName, DumpBatch] = {}
    for batch in sorted(batches, key=lambda each: each.round):
        last[batch.job, batch.owner] = batch
    return list(last.values())


def _describe_job(batch: DumpBatch, world_size: int) -> Iterator[str]:
    of = f" of {world_size}" if world_size else ""
    yield f"job {_line(batch.job)}: {_name(batch.ranks)}{of}"
    stacks = {stack.digest: stack for stack in batch.stacks}
    groups = group_ranks(batch.ranks)
    for group in groups[:MAX_GROUPS]:
        yield from _describe_group(group, stacks)
    if len(groups) > MAX_GROUPS:
        yield f"  {len(groups) - MAX_GROUPS} more groups are only in the file"
    yield f"  {_name_odd(groups)}"


def group_ranks(dumps: Sequence[RankDump]) -> list[list[RankDump]]:
    """Return the ranks by the stack of their main thread and by the state of ranks that are held,
    the smallest group first."""
    groups: dict[tuple[str, str], list[RankDump]] = {}
    for dump in dumps:
        state = dump.kernel.state
        held = "" if state in _ORDINARY else state.value
        groups.setdefault((_main_digest(dump), held), []).append(dump)
    return sorted(groups.values(), key=lambda group: (len(group), group[0].rank))


def _name_odd(groups: Sequence[Sequence[RankDump]]) -> str:
    known = [group for group in groups if _main_digest(group[0])]
    unread = sum(map(len, groups)) - sum(map(len, known))
    left_out = f" ({unread} without a stack left out)" if unread else ""
    if not known:
        return "no odd rank: no stack was read"
    if len(known) == 1:
        alone = len(known[0]) == 1
        reason = "one rank only" if alone else "all stacks are equal"
        return f"no odd rank: {reason}{left_out}"
    if len(known[0]) == 1 and len(known[1]) > 1:
        odd = known[0][0]
        return f"odd rank: {odd.rank} (pid {odd.pid}), it differs from the other ranks{left_out}"
    return f"no odd rank: {len(known)} groups, the smallest has {len(known[0])}{left_out}"


def _describe_group(group: Sequence[RankDump], stacks: Mapping[str, Stack]) -> Iterator[str]:
    first, failure = group[0], group[0].failure
    kernel = first.kernel
    doing = " ".join(filter(None, (kernel.state.value, kernel.syscall, kernel.target)))
    yield f"  {_name(group)}: {_line(doing)}"
    stack = stacks.get(_main_digest(first))
    for frame in stack.frames[:SHOWN_FRAMES] if stack else ():
        yield f"      {_line(f'{frame.function} ({frame.file}:{frame.line})')}"
    if stack is None and failure is not None:
        yield f"      no stack: {_line(failure.help_text, 400)}"


def _main_digest(dump: RankDump) -> str:
    return next((thread.digest for thread in dump.threads if thread.main), "")


def _name(dumps: Sequence[RankDump]) -> str:
    ranks = tuple(sorted({dump.rank for dump in dumps}))
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {format_members(ranks)}"


def _line(text: str, limit: int = MAX_LINE) -> str:
    return printable(text, limit)
