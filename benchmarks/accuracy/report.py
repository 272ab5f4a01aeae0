"""Write docs/accuracy.md, from the results file alone.

Shows the newest commit's runs for each drill, backend, ranks and settings; older runs stay in the
file and are not mixed in.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.accuracy.results import RESULTS, read_rows
from benchmarks.accuracy.score import accused, brier, calibrate, score

REPORT = Path("docs/accuracy.md")
HEAD = "| fault | backend | rank right | cause right | accused | abstained | p50 s | p95 s |"


def main() -> None:
    rows = read_rows()
    if not rows:
        raise SystemExit(f"{RESULTS} has no runs: python -m benchmarks.accuracy.run makes them")
    REPORT.write_text(render(rows), encoding="utf-8")
    print(f"wrote {REPORT} from {len(rows)} runs")


def render(rows: list[dict[str, Any]]) -> str:
    """Render the report of these runs."""
    commit = max(rows, key=lambda row: row["date"])["commit"]
    shown = [row for row in rows if row["commit"] == commit]
    parts = (_head(shown, commit), _table(shown), _failures(shown), _calibration(shown))
    return "\n\n".join([*parts, _notes(shown)]) + "\n"


def _head(rows: list[dict[str, Any]], commit: str) -> str:
    return (
        "# Accuracy\n\n"
        "Written by `make accuracy` from `benchmarks/results/accuracy.jsonl`; do not edit.\n\n"
        f"{len(rows)} runs of real hung jobs, product at commit `{commit}`. Right means: the named "
        "ranks are exactly\nthe injected ones. Accused: mean ranks named when any were. "
        "Times are from the fault to the first published verdict.\n"
        "Other tools were not run on these jobs: the harness does not collect their evidence yet."
    )


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [HEAD, "|---" * HEAD.count(" | ") + "|---|"]
    for (drill, backend, settings), group in _grouped(rows).items():
        got = score(group)
        name = drill if settings == "default" else f"{drill} ({settings})"
        lines.append(
            f"| {name} | {backend} | {got.rank_right}/{got.runs} | {got.cause_right}/{got.runs} "
            f"| {got.accused:.1f} | {got.abstained} | {_time(got.p50_s)} | {_time(got.p95_s)} |"
        )
    return "\n".join(lines)


def _grouped(rows: list[dict[str, Any]]) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        settings = f"{row['settings']}, {row['ranks']} ranks" if row["ranks"] != 8 else ""
        key = (row["drill"], row["backend"], settings or row["settings"])
        groups.setdefault(key, []).append(row)
    return groups


def _failures(rows: list[dict[str, Any]]) -> str:
    lines = [_failure(row) for row in rows if not (row["right_rank"] and row["right_cause"])]
    return "## Failures\n\n" + ("\n".join(lines) or "None.")


def _failure(row: dict[str, Any]) -> str:
    verdict, injected = row["verdict"] or {}, row["injected"]
    return (
        f"- {row['drill']}, {row['backend']}, {row['date']}: injected {injected['ranks']} "
        f"{injected['cause']}; said {sorted(accused(row))} {verdict.get('cause')}, "
        f"status {verdict.get('status')}, confidence {verdict.get('confidence')}"
    )


def _calibration(rows: list[dict[str, Any]]) -> str:
    lines = ["## Calibration", "", "| confidence | runs | right |", "|---|---|---|"]
    for low, high, runs, right in calibrate(rows):
        share = f"{right / runs:.0%}" if runs else "-"
        lines.append(f"| {low:.2f} to {min(high, 1.0):.2f} | {runs} | {share} |")
    score_ = brier(rows)
    told = "no run has a cause" if score_ is None else f"{score_:.3f}"
    return "\n".join([*lines, "", f"Brier score (0 is perfect): {told}."])


def _notes(rows: list[dict[str, Any]]) -> str:
    made = {", ".join(f"{name} {got}" for name, got in row["versions"].items()) for row in rows}
    dates = sorted(row["date"] for row in rows)
    settings = sorted({row["settings"] for row in rows})
    return "\n".join(
        [
            "## Machine and settings",
            "",
            f"- Runs from {dates[0]} to {dates[-1]}.",
            f"- Settings: {', '.join(settings)}.",
            *(f"- Made with {text}." for text in sorted(made)),
        ]
    )


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f}"


if __name__ == "__main__":
    main()
