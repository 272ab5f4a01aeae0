"""The section of the report about the sample of the matrix, with every miss. Pure."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable
from typing import Any

from benchmarks.accuracy.calibration import Point, render_calibration
from benchmarks.accuracy.cells import count_left_out, plain, sensible_cells
from benchmarks.accuracy.score import quantile
from watchtower.drills.catalogue import DRILLS
from watchtower.drills.moments import MOMENTS

Row = dict[str, Any]

MOMENT_ORDER = {moment.name: place for place, moment in enumerate(MOMENTS)}
FAULT_ORDER = {drill.name: place for place, drill in enumerate(DRILLS)}

TITLE = "## Any moment: a sample of all combinations"
HEAD = (
    "cells",
    "rank right",
    "cause right",
    "domain right",
    "incident",
    "suspect p50",
    "p95",
    "right p50",
    "p95",
    "incident p50",
    "p95",
    "wrong before",
)
TIMES = ("suspect_s", "right_s", "incident_s")
WIDTH = 100
NOTE_LONGEST = 300

ABOUT = (
    "Each cell is one fault at one moment, with or without heartbeats and collective log, on one "
    "backend: real processes, agents and a tower with default settings. The cells are drawn at "
    "random, by `python -m benchmarks.accuracy.matrix`, and the newest run of each counts. Seconds "
    "are from the fault to the first suspicion, to the verdict that is right and stays right, and "
    "to the incident; a cell without one has no time. Wrong before: cells in which an innocent "
    "rank was shown as accused for a time."
)
POINTS = (
    "Of the verdicts with this confidence, the share whose rank and cause were right. The last "
    "verdict of each cell counts once. Each accusation of an innocent rank that passed counts as "
    "wrong, in these cells and in the healthy jobs at the same commits."
)


def render_sample(rows: list[Row], healthy: list[Row]) -> str:
    """Render the newest run of each cell, whatever its commit."""
    if not rows:
        return f"{TITLE}\n\nNone was run: `python -m benchmarks.accuracy.matrix` does."
    newest = {name_cell(row): row for row in sorted(rows, key=_when) if is_default(row)}
    ran = [row for row in newest.values() if "failed" not in row]
    commits = Counter(row["commit"] for row in ran)
    beside = [row for row in healthy if row["commit"] in commits]
    parts = [
        TITLE,
        textwrap.fill(ABOUT, WIDTH, break_on_hyphens=False),
        _count(newest, ran),
        textwrap.fill(f"Commits: {_list(commits)}.", WIDTH),
        *(_table(title, ran, name) for title, name in _tables()),
        "### Misses of the sample",
        _list_misses(ran),
        "### Innocent ranks that were accused for a time",
        _list_passing(ran),
        "### Calibration over the sample",
        textwrap.fill(POINTS, WIDTH),
        render_calibration(points_of_sample(ran, beside)),
        "### Left out",
        "\n".join(f"- {count} cells: {why}." for why, count in count_left_out()),
    ]
    return "\n\n".join(parts)


def is_right(row: Row) -> bool:
    """Return whether rank, cause and domain of a cell are right."""
    return bool(row["right_rank"] and row["right_cause"] and row["right_domain"])


def is_default(row: Row) -> bool:
    """Return whether a row was run with default settings."""
    return bool(row["settings"] == "default")


def points_of_sample(rows: list[Row], healthy: list[Row]) -> list[Point]:
    """Return every diagnosis of the cells, and every accusation that passed."""
    points = [
        Point(confidence=row["confidence"], is_right=row["right_rank"] and row["right_cause"])
        for row in rows
        if row["cause"] and row["confidence"] is not None
    ]
    passing = [one for row in (*rows, *healthy) for one in row.get("passing", ())]
    wrong = [one["confidence"] for one in passing if one["confidence"] is not None]
    return points + [Point(confidence=confidence, is_right=False) for confidence in wrong]


def _when(row: Row) -> tuple[bool, str]:
    """Order of the runs of one cell: one that could not run never replaces one that did."""
    return "failed" not in row, row["date"]


def _list(commits: Counter[str]) -> str:
    return ", ".join(f"`{commit[:12]}` ({count})" for commit, count in commits.items())


def _tables() -> list[tuple[str, Callable[[Row], str]]]:
    return [
        ("moment", lambda row: str(row["moment"])),
        ("heartbeats, log", lambda row: f"{plain(row['heartbeats'])}, {plain(row['log'])}"),
        ("backend", lambda row: str(row["backend"])),
        ("fault", lambda row: str(row["fault"])),
    ]


def _count(newest: dict[str, Row], ran: list[Row]) -> str:
    right = sum(map(is_right, ran))
    share = f" ({right / len(ran):.1%})" if ran else ""
    told = (
        f"{len(ran)} of {len(sensible_cells())} cells: rank, cause and domain right in {right}"
        f"{share}. {len(newest) - len(ran)} more could not run."
    )
    return textwrap.fill(told, WIDTH)


def _table(title: str, rows: list[Row], name: Callable[[Row], str]) -> str:
    groups: dict[str, list[Row]] = {}
    for row in sorted(rows, key=_order):
        groups.setdefault(name(row), []).append(row)
    lines = [f"| {title} | {' | '.join(HEAD)} |", "|---" * (len(HEAD) + 1) + "|"]
    lines += [_line(label, group) for label, group in groups.items()]
    return "\n".join([*lines, _line("**all**", rows)])


def _order(row: Row) -> tuple[int, int, bool, bool, str]:
    return (
        MOMENT_ORDER.get(row["moment"], len(MOMENT_ORDER)),
        FAULT_ORDER.get(row["fault"], len(FAULT_ORDER)),
        not row["heartbeats"],
        not row["log"],
        row["backend"],
    )


def _line(label: str, rows: list[Row]) -> str:
    shares = [
        sum(bool(row[f"right_{part}"]) for row in rows) for part in ("rank", "cause", "domain")
    ]
    opened = sum(row["incident_s"] is not None for row in rows)
    times = [_time(rows, name, share) for name in TIMES for share in (0.50, 0.95)]
    passed = sum(bool(row["passing"]) for row in rows)
    return f"| {' | '.join(map(str, [label, len(rows), *shares, opened, *times, passed]))} |"


def _time(rows: list[Row], name: str, share: float) -> str:
    found = quantile([row[name] for row in rows if row[name] is not None], share)
    return "-" if found is None else f"{found:.1f}"


def name_cell(row: Row) -> str:
    """Return the cell of a row as one line names it."""
    switches = f"heartbeats {plain(row['heartbeats'])}, log {plain(row['log'])}"
    return f"{row['fault']} at {row['moment']}, {row['backend']}, {switches}"


def _list_misses(rows: list[Row]) -> str:
    lines = [_item(_miss(row)) for row in sorted(rows, key=_order) if not is_right(row)]
    return "\n".join(lines) or "None."


def _miss(row: Row) -> str:
    reasons = "; ".join(row["reasons"])[:NOTE_LONGEST] or "the domain is another"
    missing = f" It says what is missing: {'; '.join(row['missing'])}." if row["missing"] else ""
    said = f"{row['summary']} (confidence {row['confidence']}, status {row['status']})"
    return f"{name_cell(row)}: {reasons}. Said: {said}.{missing}"


def _list_passing(rows: list[Row]) -> str:
    lines = [
        _item(
            f"{name_cell(row)}: accused {one['ranks']} of {one['cause']} at {one['at_s']:.0f} s "
            f"for {one['for_s']:.1f} s, confidence {one['confidence']}; injected {row['injected']}"
        )
        for row in sorted(rows, key=_order)
        for one in row["passing"]
    ]
    return "\n".join(lines) or "None."


def _item(text: str) -> str:
    clean = " ".join(text.split()).replace("`", "'")
    return textwrap.fill(f"- {clean}", WIDTH, subsequent_indent="  ", break_on_hyphens=False)
