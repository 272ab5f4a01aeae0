"""The results file: one JSON line per run. Lines are only appended.

A row without `tool` is a run judged by watchtower; `peers` has the peers' answers about the same
hung job. A row with `tool` is a run of a tool inside the job: the accused ranks, or in `why_not`
the reason why there are none. Its `settings` are the tool's own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

RESULTS = Path("benchmarks/results/accuracy.jsonl")
"""From the root of the repository, where benchmarks are run."""

Row = dict[str, object]
Key = tuple[str, str, int, str, str]


def key_of(row: Row) -> Key:
    """Return the key of a run. A run whose key is in the file is not repeated."""
    drill, backend, ranks = row["drill"], row["backend"], row["ranks"]
    return str(drill), str(backend), int(str(ranks)), str(row["settings"]), str(row["commit"])


def count_runs(rows: Iterable[Row]) -> Counter[Key]:
    """Count the runs of each key."""
    return Counter(key_of(row) for row in rows)


def read_rows(path: Path = RESULTS) -> list[Row]:
    """Return every run; none without a file. A last line cut by a kill is skipped.

    Raises ValueError with the line number if another line is not JSON.
    """
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    lines = text.split("\n")[:-1]
    return [_read_line(path, number, line) for number, line in enumerate(lines, 1) if line]


def append_row(row: Row, path: Path = RESULTS) -> None:
    """Append one run as a whole line. A last line cut by a kill is ended first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _drop_cut_line(path)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, sort_keys=True) + "\n")


def _drop_cut_line(path: Path) -> None:
    if not path.exists():
        return
    whole, newline, cut = path.read_bytes().rpartition(b"\n")
    if cut:
        path.write_bytes(whole + newline)


def _read_line(path: Path, number: int, line: str) -> Row:
    try:
        row: Row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{path}, line {number} is not JSON: remove it ({error})") from error
    return row
