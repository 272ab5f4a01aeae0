"""The section of the report about healthy jobs. Pure."""

from __future__ import annotations

from typing import Any

from benchmarks.accuracy.healthy import STEP_S, shown_long

Row = dict[str, Any]
HEAD = "| drill | runs | minutes | incidents | false accusations | for a time | not as wanted |"

ENOUGH_MINUTES = 60.0


def render_healthy(rows: list[Row]) -> str:
    """Render the runs of one commit and settings: the newest that ran for `ENOUGH_MINUTES`."""
    if not rows:
        return "## Healthy jobs\n\nNone were run: `python -m benchmarks.accuracy.healthy` does."
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["commit"], row["settings"]), []).append(row)
    shown = max(groups.values(), key=lambda group: (_is_enough(group), _find_last(group)))
    last = shown[-1]
    later = [row for row in rows if row["date"] > _find_last(shown)]
    drills = sorted({row["drill"] for row in shown})
    lines = [_line(name, [row for row in shown if row["drill"] == name]) for name in drills]
    minutes = sum(row["minutes"] for row in shown)
    return "\n".join(
        [
            "## Healthy jobs",
            "",
            f"{minutes / 60:.1f} job-hours of drills with nothing wrong, in random order, with "
            f"{_name_ranks(shown)} ranks,",
            f"settings {last['settings']}, at commit `{last['commit']}`. No incident may be",
            "opened and no rank accused; not as wanted: also where the last status was wrong.",
            f"For a time: accusations that passed, shown for more than a step of {STEP_S:g} s.",
            "",
            HEAD,
            "|---" * HEAD.count(" | ") + "|---|",
            *lines,
            _line("**all**", shown),
            *_wrong(shown),
            *_since(later),
        ]
    )


def _is_enough(rows: list[Row]) -> bool:
    return sum(row["minutes"] for row in rows) >= ENOUGH_MINUTES


def _find_last(rows: list[Row]) -> str:
    return max(str(row["date"]) for row in rows)


def _since(rows: list[Row]) -> list[str]:
    """Return lines about the runs at later commits; none without any."""
    commits = sorted({row["commit"] for row in rows}, key=[row["commit"] for row in rows].index)
    lines = []
    for commit in commits:
        group = [row for row in rows if row["commit"] == commit]
        minutes, wrong = sum(row["minutes"] for row in group), sum(not r["right"] for r in group)
        lines.append(f"- Later, at `{commit}`: {minutes:.0f} minutes, {wrong} not as wanted.")
    return ["", *lines, *_wrong(rows)] if lines else []


def _line(name: str, rows: list[Row]) -> str:
    minutes = sum(row["minutes"] for row in rows)
    incidents = sum(len(row["incidents"]) for row in rows)
    accusations = sum(bool(row["accused"]) for row in rows)
    wrong = sum(not row["right"] for row in rows)
    passed = sum(len(shown_long(row)) for row in rows)
    counts = f"{incidents} | {accusations} | {passed} | {wrong}"
    return f"| {name} | {len(rows)} | {minutes:.1f} | {counts} |"


def _name_ranks(rows: list[Row]) -> str:
    ranks = [row["ranks"] for row in rows]
    return f"{min(ranks)} to {max(ranks)}"


def _wrong(rows: list[Row]) -> list[str]:
    lines = [
        f"- {row['drill']}, {row['backend']}, {row['ranks']} ranks, {row['date']}: status "
        f"{row['status']}, accused {row['accused']}, incidents {len(row['incidents'])}"
        for row in rows
        if not row["right"] or row["accused"]
    ]
    lines += [
        f"- {row['drill']}, {row['backend']}, {row['ranks']} ranks, {row['date']}: accused "
        f"{one['ranks']} of {one['cause']} after {one['at_s']:.0f} s for {one['for_s']:.1f} s"
        for row in rows
        for one in shown_long(row)
    ]
    return ["", *lines] if lines else []
