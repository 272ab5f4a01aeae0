"""Formats and parses rank sets such as "0-36,38-511"."""

from __future__ import annotations

from collections.abc import Iterable


def format_ranks(ranks: Iterable[int]) -> str:
    """Return ranks in ascending order, runs as `first-last`; an empty string for no ranks."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def parse_ranks(text: str) -> frozenset[int]:
    """Return the ranks of a text such as "0-36,38".

    Raises ValueError with the part that is not a rank or a range.
    """
    ranks: set[int] = set()
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        first, _, last = part.partition("-")
        try:
            ranks.update(range(int(first), int(last or first) + 1))
        except ValueError:
            raise ValueError(f"{part!r} is not a rank or a range like 3-7") from None
    return frozenset(ranks)


def measure(text: str) -> int:
    """Return the number of ranks of a text that `format_ranks` has written, without a set of
    them."""
    ends = (run.partition("-") for run in text.split(",") if run)
    return sum(int(last or first) - int(first) + 1 for first, _, last in ends)


def name_ranks(ranks: Iterable[int]) -> str:
    """Return "rank 3" or "ranks 3,5-7"."""
    known = sorted(set(ranks))
    return f"rank {known[0]}" if len(known) == 1 else f"ranks {format_ranks(known)}"


def name_set(text: str) -> str:
    """Return "rank 3" or "ranks 5-7" for a text that `format_ranks` has written."""
    return f"rank {text}" if text.isdigit() else f"ranks {text}"
