"""`watchtower-agent snapshot`: takes one, writes its file, and prints what it shows."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TextIO

import msgspec

from agent.delivery.dump_queue import HEAD_BYTES, fit_batch
from agent.delivery.shipping import choose_ranks
from agent.snapshot.taking import SnapshotOptions, SnapshotTaker
from watchtower.wire.bounds import MAX_DUMPS_BYTES, MAX_TEXT
from watchtower.wire.collectives import format_members
from watchtower.wire.dumps import DumpBatch, RankDump
from watchtower.wire.report import ProcessState, Report
from watchtower.wire.snapshot import MAX_SNAPSHOT_BYTES, JobGap, Snapshot
from watchtower.wire.stacks import Stack
from watchtower.writing.printable import printable

STDOUT = "-"

ALONE = "take a snapshot of this job alone (--match)"

CUT = (
    "parts of its dumps are not in the file, which would be too long. Stacks of child processes "
    f"are dropped first, those of main threads last: {ALONE}"
)
DROPPED = f"some of its dumps are not in the file, which would be too long: {ALONE}"
LOST_RANKS = "{count} of its ranks are not in the file: their names and messages are too long"


class EncodedSnapshot(NamedTuple):
    """A snapshot as one line of JSON, and what it lacks. The line contains these gaps, too."""

    line: bytes
    gaps: tuple[JobGap, ...]


def encode_snapshot(snapshot: Snapshot, limit: int = MAX_SNAPSHOT_BYTES) -> EncodedSnapshot:
    """Return the snapshot as one line of JSON. Reports and dumps that are too long are cut.

    The dumps share what the reports leave free. If this is not enough, the last ones are dropped.
    What is cut or dropped is added to the gaps of its job.
    """
    reports = [replace(each, ranks=choose_ranks(each)) for each in snapshot.reports]
    gaps = [*snapshot.gaps, *_find_lost_ranks(snapshot.reports[-1], reports[-1])]
    fields: dict[str, object] = {
        "format": snapshot.format,
        "watchtower": snapshot.watchtower,
        "node": snapshot.node,
        "taken_at": snapshot.taken_at,
        "gap_s": snapshot.gap_s,
        "reports": reports,
    }
    jobs = dict.fromkeys((batch.job, batch.owner) for batch in snapshot.dumps)
    # Space for the gaps: it is not known yet which of these jobs will have one.
    with_gaps = {**fields, "gaps": [*gaps, *(JobGap(job=j, owner=o, text=CUT) for j, o in jobs)]}
    left = limit - len(msgspec.json.encode(with_gaps)) - HEAD_BYTES
    share = min(MAX_DUMPS_BYTES - HEAD_BYTES, left // max(1, len(snapshot.dumps)))
    dumps: list[msgspec.Raw] = []
    cut: dict[tuple[str, str], str] = {}
    for batch in snapshot.dumps:
        body, is_cut = fit_batch(batch, share)
        left -= len(body) + 1
        if left < 0:
            break
        dumps.append(msgspec.Raw(body))
        if is_cut:
            cut[batch.job, batch.owner] = CUT
    cut |= {(batch.job, batch.owner): DROPPED for batch in snapshot.dumps[len(dumps) :]}
    gaps += [JobGap(job=job, owner=owner, text=text) for (job, owner), text in cut.items()]
    line = msgspec.json.encode({**fields, "dumps": dumps, "gaps": gaps}) + b"\n"
    return EncodedSnapshot(line, tuple(gaps))


def _find_lost_ranks(whole: Report, kept: Report) -> list[JobGap]:
    """Return a gap for each job with ranks that do not fit into a report."""
    lost = Counter((rank.job, rank.owner) for rank in whole.ranks)
    lost -= Counter((rank.job, rank.owner) for rank in kept.ranks)
    return [
        JobGap(job=job, owner=owner, text=LOST_RANKS.format(count=count))
        for (job, owner), count in lost.items()
    ]


def default_path(node: str) -> str:
    """Return a name in the present folder that contains the name of the node."""
    safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in node)[:100]
    return f"watchtower-snapshot-{safe}.json"


def write_output(path: str, line: bytes) -> None:
    """Write to the path that the user asked for: a file, a pipe, a device. Raises OSError."""
    if path == STDOUT:
        # With PYTHONUNBUFFERED, sys.stdout.buffer writes once, and a full disk may take a part.
        with open(os.dup(sys.stdout.fileno()), "wb") as output:
            output.write(line)
        return
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as device:  # a pipe or /dev/stdout
            device.write(line)
        return
    write_file(path, line)


def write_file(path: str, line: bytes) -> None:
    """Write the file for its owner only, in place of whatever has this name. Raises OSError.

    A new file replaces it, so that a link that another user put there is not followed.
    """
    new = f"{path}.{os.getpid()}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(new, flags, 0o600)
    try:
        with open(file, "wb") as opened:
            opened.write(line)
        os.replace(new, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


MAX_GROUPS = 12
"""Groups shown for each job. A job without a hang may have one for each rank."""

SHOWN_FRAMES = 4
MAX_LINE = 160
"""Characters of a line. A frame with a long path fits; a hostile name does not fill the screen."""

_ORDINARY = (ProcessState.RUNNING, ProcessState.SLEEPING, ProcessState.IDLE, ProcessState.OTHER)
"""States in which a rank may be at any moment. A rank in another one is held: it is shown apart."""

JobName = tuple[str, str]


def describe(snapshot: Snapshot) -> str:
    """Return the lines for people. They contain no character that a terminal interprets.

    Ranks with equal stacks are one group; a rank that is held is shown apart. Which rank hung the
    job is decided by `watchtower diagnose`, from the snapshots of all nodes of the job.
    """
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


DONE, NOTHING_FOUND, NOT_WRITTEN = 0, 1, 5

NO_RANKS = (
    "no rank was found on this node{matching}. A rank is a process with RANK (or the variable of "
    "another launcher) in its environment"
)


def snapshot(options: SnapshotOptions) -> int:
    """Take a snapshot, print its groups and write the file; return the exit code."""
    taker = SnapshotTaker(options)
    if not taker.find_ranks():
        pairs = " and ".join(f"{key}={value}" for key, value in options.match)
        none = NO_RANKS.format(matching=f" with {pairs} in its environment" if pairs else "")
        for sentence in (none, *taker.unwatched_texts, *taker.gaps.sentences()):
            _show(f"watchtower-agent: {printable(sentence, MAX_TEXT)}", sys.stderr)
        return NOTHING_FOUND
    taken = taker.take()
    line, gaps = encode_snapshot(taken)
    path = options.output or default_path(options.node)
    write = write_output if options.output else write_file
    trouble = ""
    try:
        write(path, line)  # first: the reader of the text may end before it has read all of it
    except OSError as error:
        trouble = f"cannot write {path!r}: {error.strerror}"
    # The text must not be mixed with a file on standard output.
    about = sys.stderr if path == STDOUT else sys.stdout
    _show(describe(replace(taken, gaps=gaps)), about)
    if trouble:
        _show(f"watchtower-agent: {trouble}", sys.stderr)
        return NOT_WRITTEN
    if path != STDOUT:
        size = f"{len(line) / 1000:.0f} kB"
        _show(f"written: {path} ({size}). Diagnose it together with the files of", about)
        _show("the other nodes of the job: watchtower diagnose FILE...", about)
    return DONE


def _show(text: str, file: TextIO) -> None:
    """Print a text, unless its reader has closed it. The exit code is that of the file."""
    try:
        print(text, file=file, flush=True)
    except BrokenPipeError:
        # Python would write the rest again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())
