"""The tables that compare every tool with watchtower: one row per fault, one column per tool."""

from __future__ import annotations

import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from benchmarks.accuracy.peers import PEERS
from benchmarks.accuracy.score import WATCHTOWER, Answer, answers_of, quantile, score_answers

ENOUGH_RUNS = 5
"""Rows with fewer runs are marked: they are an impression, not a score."""

NOTHING = "·"

WIDTH = 100

LEGEND = textwrap.fill(
    "`4/5 ×2.0 –1`: the ranks were right in 4 of 5 runs, 2.0 ranks were accused on average when "
    "any were, and 1 run named no rank although one is to blame, or the tool failed in it. "
    f"`{NOTHING}`: it cannot judge this job, or was not run on it.",
    WIDTH,
)

GIVEN = textwrap.fill(
    "These judge the same hung jobs as watchtower, from evidence taken while they hung: its case, "
    "with the stacks and records that it had itself, and flight recorder dumps taken when its "
    "verdict was final. They get all of it and as much time, so no threshold is theirs to miss. "
    "Tools that have to live inside the job have runs of their own, at equal thresholds.",
    WIDTH,
)

Row = dict[str, Any]
Cells = dict[str, list[Answer]]


def render_comparison(rows: list[Row]) -> str:
    """Render one table for each backend, and the description of each tool."""
    parts = ["## Beside other tools", LEGEND]
    for backend in sorted({row["backend"] for row in rows}, reverse=True):
        parts.append(f"### {backend}")
        parts.append(_table([row for row in rows if row["backend"] == backend]))
    return "\n\n".join([*parts, _abouts(rows), _failures(rows)])


def name_fault(row: Row) -> str:
    """Return the row of a table for a run: the drill, and its unusual settings."""
    is_usual = row["settings"] == "default" or "tool" in row
    unusual = [] if is_usual else [row["settings"]]
    unusual += [f"{row['ranks']} ranks"] if row["ranks"] != 8 else []
    return f"{row['drill']} ({', '.join(unusual)})" if unusual else row["drill"]


def mark_few(name: str, runs: int) -> str:
    """Mark the name if the row has few runs."""
    if runs >= ENOUGH_RUNS:
        return name
    return f"{name} **({count(runs)} only)**"


def count(runs: int) -> str:
    """Return "1 run" or "5 runs"."""
    return f"{runs} run{'' if runs == 1 else 's'}"


def _table(rows: list[Row]) -> str:
    faults: dict[str, Cells] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for tool, answer in answers_of(row).items():
            faults[name_fault(row)][tool].append(answer)
    tools = _order_tools(tool for cells in faults.values() for tool in cells)
    lines = [_line(["fault", *tools]), "|---" * (len(tools) + 1) + "|"]
    for name, cells in faults.items():
        runs = len(cells.get(WATCHTOWER) or next(iter(cells.values())))
        lines.append(_line([mark_few(name, runs), *(_cell(cells.get(tool, [])) for tool in tools)]))
    lines.append(_line(["**all**", *(_cell(_all(faults, tool)) for tool in tools)]))
    beside = [_cell(_all_beside(faults, tool)) for tool in tools]
    lines.append(_line(["watchtower on the same faults", *beside]))
    return "\n".join(lines)


def _all(faults: dict[str, Cells], tool: str) -> list[Answer]:
    return [answer for cells in faults.values() for answer in cells.get(tool, [])]


def _all_beside(faults: dict[str, Cells], tool: str) -> list[Answer]:
    """Return watchtower's answers to the faults for which this tool has answers."""
    return [answer for cells in faults.values() if tool in cells for answer in cells[WATCHTOWER]]


def _cell(answers: list[Answer]) -> str:
    if not answers:
        return NOTHING
    got = score_answers(answers)
    size = f" ×{got.accused:.1f}" if got.accused else ""
    none = f" –{got.abstained}" if got.abstained else ""
    return f"{got.rank_right}/{got.runs}{size}{none}"


def _order_tools(tools: Iterable[str]) -> list[str]:
    known = [WATCHTOWER, *(peer.name for peer in PEERS)]
    found = set(tools)
    return [name for name in known if name in found] + sorted(found - set(known))


def _abouts(rows: list[Row]) -> str:
    """Return the description, the input and the limits of each tool."""
    lines = [_item(f"**{peer.name}**: {peer.about}") for peer in PEERS]
    live = {row["tool"]: row["settings"] for row in rows if "tool" in row}
    for tool in sorted(live):
        settings = live[tool].removeprefix(f"{tool}: ")
        lines.append(_item(f"**{tool}**: inside the job, {settings}. {_write_times(rows, tool)}"))
    lines += [_item(text) for text in _why_not(rows)]
    return "\n".join(["### What they are, and what they were given", "", GIVEN, "", *lines])


def _write_times(rows: list[Row], tool: str) -> str:
    said = [row for row in rows if row.get("tool") == tool and row["accused"]]
    times = [row["fault_to_verdict_s"] for row in said if row["fault_to_verdict_s"] is not None]
    if not times:
        return "It never named a rank."
    half, most = quantile(times, 0.50), quantile(times, 0.95)
    return f"From the fault to the ranks it named: p50 {half:.1f} s, p95 {most:.1f} s."


def _why_not(rows: list[Row]) -> Iterable[str]:
    reasons: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        silent_ones: dict[str, list[str]] = defaultdict(list)
        for name, answer in _told(row).items():
            if answer["why_not"]:
                silent_ones[answer["why_not"]].append(name)
        for why, names in silent_ones.items():
            reasons[why, ", ".join(names), row["backend"]] += 1
    for (why, silent, backend), runs in sorted(reasons.items()):
        yield f"In {count(runs)} of {backend} not judged by {silent}: {why}."


def _told(row: Row) -> dict[str, Row]:
    """Return the answer of each tool but watchtower, or why it has none, by name."""
    return {row["tool"]: {"why_not": None, **row}} if "tool" in row else row.get("peers", {})


def _failures(rows: list[Row]) -> str:
    """Return the most frequent error message of a tool that failed, ignoring numbers in it."""
    told: dict[str, Counter[str]] = defaultdict(Counter)
    asked: Counter[str] = Counter()
    for row in rows:
        for name, answer in _told(row).items():
            asked[name] += not answer["why_not"]
            if answer.get("failed"):
                told[name][re.sub(r"\d+", "N", answer["said"])] += 1
    lines = []
    for name, answers in told.items():
        words, runs = answers.most_common(1)[0]
        shown = " ".join(words.replace("`", "'").split())[:120]
        share = f"{answers.total()} of {count(asked[name])}"
        lines.append(_item(f"{name} failed in {share}, {runs} times with `{shown}`."))
    return "\n".join(["### Failures of the others", "", *(lines or ["None."])])


def _item(text: str) -> str:
    return textwrap.fill(f"- {text}", WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
