"""Python's collector of cyclic garbage, set for a process that holds a large live state.

A full collection walks through all that is alive: 60 to 150 ms for the evidence of 16,384 ranks,
about once a second while they report, and nothing else runs meanwhile. What is garbage in cycles
(requests, tracebacks) is young and found by the small collections. What is not in cycles is freed
at once in any case.
"""

from __future__ import annotations

import gc

YOUNG_AFTER = 20_000
"""Objects made, and not freed, before a small collection; Python's own number is 700. With it,
small collections took a tenth of the time of a tower that takes 2,000 reports a second."""

FULL_AFTER = 400
"""Collections of the middle generation before a full one; Python's own number is 10. About every
quarter of an hour with 16,384 ranks, so that an unforeseen leak of cycles stays bounded."""


def put_off_full_collections() -> None:
    """Collect everything seldom from now on, and what is there now (modules) never again."""
    _, middle, _ = gc.get_threshold()
    gc.set_threshold(YOUNG_AFTER, middle, FULL_AFTER)
    gc.collect()
    gc.freeze()
