"""Healthy drills mixed, with default settings: how many incidents in two hours? The goal is none.

Backend and ranks are random; the drill is one of those with the fewest runs. Minutes that are
already in the results file for the commit and the settings count. Exits 1 if a run was wrong.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import tempfile
import time
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path

from benchmarks.accuracy.circumstances import name_settings, read_commit, read_versions
from benchmarks.accuracy.results import Row, append_row, read_rows
from benchmarks.accuracy.score import accused
from benchmarks.drilling import run_drill
from watchtower.drills.catalogue import DRILLS
from watchtower.drills.drill_run import Drill
from watchtower.drills.launching import why_not

HEALTHY = Path("benchmarks/results/healthy.jsonl")
RANKS = (4, 8)
FAILURES_IN_A_ROW = 5
"""After this many drills that could not run, the machine is the problem: more runs are useless."""


def main() -> int:
    args = _parse_arguments()
    commit, settings = read_commit(), name_settings(args.config)
    there = [row for row in read_rows(HEALTHY) if is_of(row, commit, settings)]
    minutes = sum(float(str(row["minutes"])) for row in there)
    runs = Counter(str(row["drill"]) for row in there)
    lot = random.Random(args.seed)
    failures = 0
    while minutes < args.minutes and failures < FAILURES_IN_A_ROW:
        drill = choose_drill(runs, lot)
        row = _run(drill, lot, args.config)
        runs[drill.name] += 1
        failures = 0 if row else failures + 1
        if row:
            row |= {"commit": commit, "settings": settings}
            append_row(row, HEALTHY)
            there.append(row)
            minutes += float(str(row["minutes"]))
    wrong = sum(not row["right"] for row in there)
    print(f"{len(there)} healthy drills in {minutes:.0f} minutes, {wrong} wrong")
    return 1 if wrong or failures else 0


def is_of(row: Row, commit: str, settings: str) -> bool:
    """Return whether a run is of this commit with these settings."""
    return (row["commit"], row["settings"]) == (commit, settings)


def choose_drill(runs: Counter[str], lot: random.Random) -> Drill:
    """Return one of the healthy drills with the fewest runs."""
    healthy = [drill for drill in DRILLS if not drill.is_fault]
    fewest = min(runs[drill.name] for drill in healthy)
    return lot.choice([drill for drill in healthy if runs[drill.name] == fewest])


def draw_ranks(drill: Drill, lot: random.Random) -> int:
    """Return a number of ranks that the drill allows."""
    low, high = RANKS
    step = 2 if drill.whole_pairs else 1
    return lot.randrange(max(low, drill.least_ranks), high + 1, step)


def _run(drill: Drill, lot: random.Random, config: str | None) -> Row | None:
    here = [name for name in drill.backends if why_not(name) is None]
    backend, ranks = lot.choice(here), draw_ranks(drill, lot)
    date, started = datetime.now(timezone.utc).isoformat(timespec="seconds"), time.monotonic()
    print(f"{drill.name:<24} {backend:<7} {ranks} ranks ", end="", flush=True)
    with tempfile.TemporaryDirectory(prefix="watchtower-evidence-") as folder:
        try:
            result = run_drill(
                drill.name, ranks=ranks, backend=backend, config=config, evidence=Path(folder)
            )
        except (SystemExit, subprocess.TimeoutExpired) as reason:
            print(reason, flush=True)
            return None
    verdict = result["verdict"] or {}
    right = result["right_rank"] and result["right_cause"]
    print("ok" if right else f"WRONG: {verdict.get('summary')}", flush=True)
    return {
        "drill": drill.name,
        "backend": backend,
        "ranks": ranks,
        "date": date,
        "minutes": round((time.monotonic() - started) / 60, 2),
        "incidents": result["incidents"],
        "accused": sorted(accused(result)),
        "status": verdict.get("status"),
        "right": right,
        "versions": read_versions(),
    }


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=120.0, help="for the commit (120)")
    parser.add_argument("--seed", type=int, help="of the lot")
    parser.add_argument("--config", metavar="FILE", help="settings (the defaults)")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
