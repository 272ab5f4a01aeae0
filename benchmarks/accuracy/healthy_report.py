"""The section of the report about healthy jobs. Pure."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]
HEAD = "| drill | runs | minutes | incidents | false accusations | not as wanted |"


def render_healthy(rows: list[Row]) -> str:
    """Render the runs of the newest commit and settings."""
    if not rows:
        return "## Healthy jobs\n\nNone were run: `python -m benchmarks.accuracy.healthy` does."
    last = max(rows, key=lambda row: row["date"])
    wanted = (last["commit"], last["settings"])
    shown = [row for row in rows if (row["commit"], row["settings"]) == wanted]
    drills = sorted({row["drill"] for row in shown})
    lines = [_line(name, [row for row in shown if row["drill"] == name]) for name in drills]
    minutes = sum(row["minutes"] for row in shown)
    return "\n".join(
        [
            "## Healthy jobs",
            "",
            f"{minutes:.0f} minutes of drills with nothing wrong, in random order, with 4 to 8 "
            "ranks and both backends,",
            f"settings {last['settings']}, at commit `{last['commit']}`. No incident may be",
            "opened and no rank accused; not as wanted: also where the last status was wrong.",
            "",
            HEAD,
            "|---" * HEAD.count(" | ") + "|---|",
            *lines,
            _line("**all**", shown),
            *_wrong(shown),
        ]
    )


def _line(name: str, rows: list[Row]) -> str:
    minutes = sum(row["minutes"] for row in rows)
    incidents = sum(len(row["incidents"]) for row in rows)
    accusations = sum(bool(row["accused"]) for row in rows)
    wrong = sum(not row["right"] for row in rows)
    return f"| {name} | {len(rows)} | {minutes:.1f} | {incidents} | {accusations} | {wrong} |"


def _wrong(rows: list[Row]) -> list[str]:
    lines = [
        f"- {row['drill']}, {row['backend']}, {row['ranks']} ranks, {row['date']}: status "
        f"{row['status']}, accused {row['accused']}, incidents {len(row['incidents'])}"
        for row in rows
        if not row["right"] or row["accused"]
    ]
    return ["", *lines] if lines else []
