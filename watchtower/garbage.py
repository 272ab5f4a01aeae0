"""Python's collector of cyclic garbage, set for a process that holds a large live state.

A full collection walks through all that is alive: 60 to 150 ms for the evidence of 16,384 ranks,
about once a second while they report, and nothing else runs meanwhile. What is garbage in cycles
(requests, tracebacks) is young and found by the small collections, which stay as they are. What is
not in cycles is freed at once in any case.
"""

from __future__ import annotations

import gc

FULL_AFTER = 10_000
"""Collections of the middle generation before a full one; Python's own number is 10. About every
quarter of an hour with 16,384 ranks, so that an unforeseen leak of cycles stays bounded."""


def put_off_full_collections() -> None:
    """Collect everything seldom from now on, and what is there now (modules) never again."""
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, FULL_AFTER)
    gc.collect()
    gc.freeze()
