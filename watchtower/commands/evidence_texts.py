"""Writes what `watchtower diagnose` found in files: a row for each rank, and each file's form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from watchtower.commands.printing import clean, table
from watchtower.fleet.found_files import Found, RankFound
from watchtower.readers.findings import CallsFound, FileFound
from watchtower.writing.ranksets import name_ranks

MAX_ROWS = 32
"""Rows of the table by rank. Ranks with equal rows are one row, so that most jobs have a few."""

MAX_LAST_LINE = 72
"""Characters of a rank's last line."""


def write_ranks(found: Found) -> str:
    """Return a table: what each rank last did. Ranks with the same row share it."""
    rows: dict[tuple[str, ...], list[int]] = {}
    for rank in range(found.world_size):
        own = found.ranks.get(rank) or RankFound(rank)
        for row in _rows(own):
            rows.setdefault(row, []).append(rank)
    head = ("RANKS", "GROUP", "WAITS IN", "ENQUEUED", "COMPLETED", "LAST LINE", "FILE")
    shown = [(_short(ranks), *row) for row, ranks in list(rows.items())[:MAX_ROWS]]
    more = len(rows) - MAX_ROWS
    return table([head, *shown]) + (f"\n... and {more} more rows" if more > 0 else "")


def _short(ranks: Sequence[int]) -> str:
    return name_ranks(ranks).partition(" ")[2]


def _rows(own: RankFound) -> Iterable[tuple[str, ...]]:
    file = own.files[-1] if own.files else None
    last = file.last_line[-MAX_LAST_LINE:] if file and file.owner.rank == own.rank else ""
    if not own.calls:
        yield ("-", "-", "-", "-", last or "-", file.name if file else "no file")
    for call in own.calls.values():
        yield (
            call.group,
            _name_call(call),
            _number(call.enqueued),
            _number(call.completed),
            "",
            "",
        )


def _name_call(call: CallsFound) -> str:
    return " ".join(filter(None, (call.operation, str(call.waits_in))))


def _number(number: int) -> str:
    return str(number) if number >= 0 else "?"


def write_files(files: Sequence[FileFound]) -> str:
    """Return what the files were taken for, and what of them was not understood."""
    forms = Counter(file.form or "not known" for file in files)
    words = ", ".join(f"{count} {form}" for form, count in forms.most_common())
    missed = sum(file.not_understood for file in files)
    lines = [f"{len(files)} files: {words}; {missed} lines that were not understood"]
    lines += [f"  {clean(file.name)}: {file.trouble}" for file in files if file.trouble]
    return "\n".join(lines)
