"""Write docs/accuracy.md, from the results files alone.

The tables show one commit of each tool, including watchtower: the one at which most faults were
run often enough; of equal ones the newest. Newer runs of watchtower are counted in a section of
their own, and the wrong ones are listed. Older runs stay in the file and are not used.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.accuracy.calibration import points_of, render_calibration
from benchmarks.accuracy.comparison import (
    ENOUGH_RUNS,
    WIDTH,
    count,
    mark_few,
    name_fault,
    render_comparison,
)
from benchmarks.accuracy.field import FIELD, render_field
from benchmarks.accuracy.healthy import HEALTHY
from benchmarks.accuracy.healthy_report import render_healthy
from benchmarks.accuracy.matrix import MATRIX
from benchmarks.accuracy.matrix_report import render_sample
from benchmarks.accuracy.results import RESULTS, read_rows
from benchmarks.accuracy.score import WATCHTOWER, accused, score
from watchtower.drills.catalogue import DRILLS

REPORT = Path("docs/accuracy.md")
HEAD = "| fault | backend | rank right | cause right | accused | abstained | p50 s | p95 s |"

Row = dict[str, Any]


def main() -> None:
    rows = read_rows()
    if not rows:
        raise SystemExit(f"{RESULTS} has no runs: python -m benchmarks.accuracy.run makes them")
    text = render(rows, read_rows(HEALTHY), read_rows(MATRIX), read_rows(FIELD))
    REPORT.write_text(text, encoding="utf-8")
    print(f"wrote {REPORT} from {len(rows)} runs")


def render(
    rows: list[Row], healthy: list[Row], sample: list[Row], field: Sequence[Row] = ()
) -> str:
    """Render the report of these runs."""
    shown = choose_rows(rows)
    own = [row for row in shown if "tool" not in row]
    later = _find_later(rows, own)
    parts = [
        _head(own),
        _table(own, later),
        render_comparison(shown),
        _failures(own),
        f"## Calibration\n\n{render_calibration(points_of(own))}",
    ]
    parts += [*_since(later, own), render_sample(sample, healthy)]
    parts += [render_healthy(healthy), render_field(list(field))]
    return "\n\n".join([*parts, _notes(shown)]) + "\n"


def choose_rows(rows: list[Row]) -> list[Row]:
    """Return the rows of one commit for each tool, including watchtower."""
    by_tool: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        of_tool = by_tool.setdefault(row.get("tool", WATCHTOWER), {})
        of_tool.setdefault(row["commit"], []).append(row)
    shown = [row for commits in by_tool.values() for row in max(commits.values(), key=_measure)]
    return _in_order(shown)


def _in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=_place)


def _find_later(rows: list[Row], own: list[Row]) -> list[Row]:
    """Return watchtower's runs after those of the table, the oldest first."""
    last = max(row["date"] for row in own)
    later = [row for row in rows if "tool" not in row and row["date"] > last]
    return sorted(later, key=lambda row: str(row["date"]))


def _measure(rows: list[Row]) -> tuple[int, str]:
    """Return how many faults were run often enough, and when the last run was."""
    runs = Counter((row["drill"], row["backend"]) for row in rows)
    enough = sum(number >= ENOUGH_RUNS for number in runs.values())
    return enough, max(row["date"] for row in rows)


def _since(later: list[Row], own: list[Row]) -> list[str]:
    """Return the section about watchtower's runs at later commits; nothing without any."""
    if not later:
        return []
    by_commit: dict[str, list[Row]] = {}
    for row in later:
        by_commit.setdefault(row["commit"], []).append(row)
    counts = [line for commit, rows in by_commit.items() for line in _count_commit(commit, rows)]
    newest = by_commit[later[-1]["commit"]]
    known = _grouped(own)
    new = [row for name, rows in _grouped(newest).items() if name not in known for row in rows]
    parts = ["## Runs at later commits", "\n".join(counts)]
    if new:
        parts += [f"New faults, at `{newest[0]['commit']}`:", "\n".join(_lines(_in_order(new)))]
    return parts


def _count_commit(commit: str, rows: list[Row]) -> list[str]:
    got = score(rows)
    line = (
        f"- `{commit}`: {count(len(rows))} of {len(_grouped(rows))} faults: "
        f"rank right {got.rank_right}/{got.runs}, cause right {got.cause_right}/{got.runs}."
    )
    return [line, *(f"  {_failure(row)}" for row in rows if not _is_right(row))]


def _place(row: Row) -> tuple[int, str, str, str]:
    """Return a sort key: the order of the catalogue, whatever the order of the runs."""
    names = [drill.name for drill in DRILLS]
    known = row["drill"] in names
    at = names.index(row["drill"]) if known else len(names)
    return at, row["drill"], name_fault(row), row["backend"]


def _head(rows: list[Row]) -> str:
    commits = ", ".join(sorted({f"`{row['commit']}`" for row in rows}))
    return (
        "# Accuracy\n\n"
        "Written by `make accuracy` from `benchmarks/results/`; do not edit.\n\n"
        f"{count(len(rows))} of real hung jobs, product at commit {commits}.\nThe rank is random. "
        "Right means: the named ranks are exactly the injected ones. Accused: mean\nranks named "
        "when any were. Abstained: no rank named although one is to blame. Times are from the\n"
        "fault to the first published verdict, while other drills ran beside (`--beside`).\n\n"
        "## watchtower"
    )


def _table(rows: list[Row], later: list[Row]) -> str:
    return "\n".join([*_lines(rows), "", _write_missing([*rows, *later])])


def _lines(rows: list[Row]) -> list[str]:
    lines = [HEAD, "|---" * HEAD.count(" | ") + "|---|"]
    for (name, backend), group in _grouped(rows).items():
        lines.append(_line(mark_few(name, len(group)), backend, group))
    return [*lines, _line("**all**", "", rows)]


def _write_missing(rows: list[Row]) -> str:
    """Return the faults of the catalogue that have no run, so that none is missing unnoticed."""
    run = {(row["drill"], row["backend"]) for row in rows}
    faults = [(drill.name, name) for drill in DRILLS if drill.is_fault for name in drill.backends]
    missing = [f"{name} ({backend})" for name, backend in faults if (name, backend) not in run]
    return textwrap.fill(f"Without a run: {', '.join(missing) or 'none'}.", WIDTH)


def _line(name: str, backend: str, rows: list[Row]) -> str:
    got = score(rows)
    return (
        f"| {name} | {backend} | {got.rank_right}/{got.runs} | {got.cause_right}/{got.runs} "
        f"| {got.accused:.1f} | {got.abstained} | {_time(got.p50_s)} | {_time(got.p95_s)} |"
    )


def _grouped(rows: list[Row]) -> dict[tuple[str, str], list[Row]]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((name_fault(row), row["backend"]), []).append(row)
    return groups


def _failures(rows: list[Row]) -> str:
    lines = [_failure(row) for row in rows if not _is_right(row)]
    return "## Failures of watchtower\n\n" + ("\n".join(lines) or "None.")


def _is_right(row: Row) -> bool:
    return bool(row["right_rank"] and row["right_cause"])


def _failure(row: Row) -> str:
    verdict, injected = row["verdict"] or {}, row["injected"]
    return (
        f"- {row['drill']}, {row['backend']}, {row['date']}: injected {injected['ranks']} "
        f"{injected['cause']}; said {sorted(accused(row))} {verdict.get('cause')}, "
        f"status {verdict.get('status')}, confidence {verdict.get('confidence')}"
    )


def _notes(rows: list[Row]) -> str:
    made = {", ".join(f"{name} {got}" for name, got in row["versions"].items()) for row in rows}
    dates = sorted(row["date"] for row in rows)
    settings = sorted({row["settings"] for row in rows if "tool" not in row})
    beside = sorted({row.get("beside", 1) for row in rows if "tool" not in row})
    commits = {row["tool"]: row["commit"] for row in rows if "tool" in row}
    return "\n".join(
        [
            "## Machine and settings",
            "",
            f"- Runs from {dates[0]} to {dates[-1]}.",
            f"- Settings: {', '.join(settings)}.",
            f"- Drills at the same time: {', '.join(map(str, beside))}.",
            *(f"- Runs of {tool} at commit `{commits[tool]}`." for tool in sorted(commits)),
            *(f"- Made with {text}." for text in sorted(made)),
        ]
    )


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f}"


if __name__ == "__main__":
    main()
