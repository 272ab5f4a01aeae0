"""Writes the file of a snapshot: one line of JSON, bounded, readable by its owner only."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import msgspec

from agent.delivery.batch_size import HEAD_BYTES, fit_batch
from agent.delivery.shipping import choose_ranks
from watchtower.wire.bounds import MAX_DUMPS_BYTES
from watchtower.wire.report import Report
from watchtower.wire.snapshot import MAX_SNAPSHOT_BYTES, JobGap, Snapshot

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
