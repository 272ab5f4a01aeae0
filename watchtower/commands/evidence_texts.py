"""Writes what `watchtower diagnose` found in files: a row for each rank, and each file's form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from watchtower.commands.printing import clean, table
from watchtower.evidence.case import Case, logs_of
from watchtower.fleet.found_files import Found, RankFound
from watchtower.readers.findings import FileFound, StacksFound
from watchtower.wire.collectives import GroupLog
from watchtower.writing.ranksets import format_ranks

MAX_ROWS = 32
"""Rows of the table by rank. Ranks with equal rows are one row, so that most jobs have a few."""

MAX_LAST_LINE = 72
"""Characters of a rank's last line."""


def write_ranks(found: Found, case: Case) -> str:
    """Return a table: what each rank last did. Ranks with the same row share it."""
    logs = {log.digest: log for log in case.group_logs}
    names = {group.id: group.name for group in case.groups}
    rows: dict[tuple[str, ...], list[int]] = {}
    for item in case.ranks:
        own = found.ranks.get(item.rank) or RankFound(item.rank)
        listed = [each for dump in item.dumps[-1:] for each in logs_of(dump)]
        for digest in listed or [""]:
            log = logs.get(digest)
            group = ("-",) * 4 if log is None else (names[log.group], *_columns(log))
            rows.setdefault((*group, *_ends(own)), []).append(item.rank)
    head = ("RANKS", "GROUP", "WAITS IN", "CALLED", "COMPLETED", "LAST LINE OR PLACE", "FILE")
    shown = [(format_ranks(ranks), *row) for row, ranks in list(rows.items())[:MAX_ROWS]]
    more = len(rows) - MAX_ROWS
    return table([head, *shown]) + (f"\n... and {more} more rows" if more > 0 else "")


def _columns(log: GroupLog) -> tuple[str, str, str]:
    number = log.completed + 1
    operation = next((each.operation for each in log.records if each.number == number), "")
    waits = f"{operation} {number}".strip() if log.called >= number else "no call"
    return waits, str(log.called), str(max(0, log.completed))


def _ends(own: RankFound) -> tuple[str, str]:
    """Return the last line of a rank that wrote no evidence, or its place, and the file."""
    if own.calls or own.records:
        return "", ""
    if own.stacks:
        return _place_of(own.stacks[-1]), own.stacks[-1].place.file
    return own.last_line[-MAX_LAST_LINE:] or "-", own.files[-1].name if own.files else "no file"


def _place_of(found: StacksFound) -> str:
    """Return the innermost line of the user's code in the main thread."""
    frames = next((s.frames for s in found.threads.stacks), ())
    shown = next((frame for frame in frames if not frame.library), frames[0] if frames else None)
    return f"in {shown.function} ({shown.file}:{shown.line})" if shown else "-"


def write_files(files: Sequence[FileFound]) -> str:
    """Return what the files were taken for, and what of them was not understood."""
    forms = Counter(file.form or "not known" for file in files)
    words = ", ".join(f"{count} {form}" for form, count in forms.most_common())
    missed = sum(file.not_understood for file in files)
    lines = [f"{len(files)} files: {words}; {missed} lines that were not understood"]
    lines += [f"  {clean(file.name)}: {file.trouble}" for file in files if file.trouble]
    return "\n".join(lines)
