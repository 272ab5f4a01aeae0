"""Writes the file of a snapshot: one line of JSON, bounded, readable by its owner only."""

from __future__ import annotations

import contextlib
import os
import sys

import msgspec

from agent.delivery.batch_size import HEAD_BYTES, encode_batch
from agent.delivery.shipping import encode_report
from watchtower.wire.bounds import MAX_DUMPS_BYTES
from watchtower.wire.snapshot import MAX_SNAPSHOT_BYTES, Snapshot

STDOUT = "-"


def encode_snapshot(snapshot: Snapshot, limit: int = MAX_SNAPSHOT_BYTES) -> bytes:
    """Return the snapshot as one line of JSON. Reports and dumps that are too long are cut.

    The dumps share what the reports leave free. If this is not enough, the last ones are dropped.
    """
    fields: dict[str, object] = {
        "format": snapshot.format,
        "watchtower": snapshot.watchtower,
        "node": snapshot.node,
        "taken_at": snapshot.taken_at,
        "gap_s": snapshot.gap_s,
        "reports": [msgspec.Raw(encode_report(each)) for each in snapshot.reports],
    }
    left = limit - len(msgspec.json.encode(fields)) - HEAD_BYTES
    share = min(MAX_DUMPS_BYTES - HEAD_BYTES, left // max(1, len(snapshot.dumps)))
    dumps = []
    for batch in snapshot.dumps:
        body = encode_batch(batch, share)
        left -= len(body) + 1
        if left < 0:
            break
        dumps.append(msgspec.Raw(body))
    fields["dumps"] = dumps
    return msgspec.json.encode(fields) + b"\n"


def default_path(node: str) -> str:
    """Return a name in the present folder that contains the name of the node."""
    safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in node)[:100]
    return f"watchtower-snapshot-{safe}.json"


def write_output(path: str, line: bytes) -> None:
    """Write to the path that the user asked for: a file, a pipe, a device. Raises OSError."""
    if path == STDOUT:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
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
