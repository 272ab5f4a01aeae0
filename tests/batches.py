"""A batch of dumps to begin with. A test replaces what it needs otherwise."""

from __future__ import annotations

from watchtower.wire.dumps import DumpBatch

EMPTY_BATCH = DumpBatch(
    version=1,
    id="b",
    node="n",
    job="j",
    round=1,
    reason="deadline",
    held_s=0.0,
    ranks=(),
    stacks=(),
)
