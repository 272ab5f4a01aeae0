"""Settings of Python's garbage collector for a process with a large live state.

A full collection visits all live objects: 60 to 150 ms for the evidence of 16,384 ranks, about once
a second while they report. Nothing else runs during that time. Garbage in cycles (requests,
tracebacks) is young, so that the small collections find it. Other garbage is freed at once without
the collector.
"""

from __future__ import annotations

import gc

YOUNG_AFTER = 20_000
"""New objects, minus freed ones, before a small collection. Python's default is 700. With the
default, small collections took a tenth of the time of a tower with 2,000 reports a second."""

FULL_AFTER = 400
"""Collections of the middle generation before a full one. Python's default is 10. With 16,384 ranks
a full collection comes about every 15 minutes, so that an unknown leak of cycles stays bounded."""


def put_off_full_collections() -> None:
    """Make full collections rare, and exclude all objects that exist now (modules) from them."""
    _, middle, _ = gc.get_threshold()
    gc.set_threshold(YOUNG_AFTER, middle, FULL_AFTER)
    gc.collect()
    gc.freeze()
