"""Run every fault drill several times, random ranks, and append each result; resumes.

A run already in the results file for the same drill, backend, settings and commit is not repeated.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from datetime import UTC, datetime

from benchmarks.accuracy.circumstances import name_settings, read_commit, read_versions
from benchmarks.accuracy.results import Key, Row, append_row, count_runs, read_rows
from benchmarks.drilling import run_drill
from watchtower.drills.catalogue import DRILLS

BACKENDS = ("stdlib", "torch")


def main() -> None:
    args = _parse_arguments()
    commit, settings = read_commit(), name_settings(args.config)
    rows = [
        (name, backend, args.ranks, settings, commit)
        for backend in args.backends.split(",")
        for name in choose_drills(backend, args.only)
    ]
    there: Counter[Key] = Counter() if args.again else count_runs(read_rows())
    stop_at = time.monotonic() + args.minutes * 60
    for key in plan(rows, there, args.runs):
        if time.monotonic() >= stop_at:
            print(f"stopped after {args.minutes:g} minutes; run it again to go on")
            return
        _run_once(key, args.config)


def choose_drills(backend: str, only: str) -> list[str]:
    """Drills with a fault that exist on this backend, in the order of the catalogue.

    Raises SystemExit when `only` (names with commas, all when empty) has an unknown name.
    """
    faults = {drill.name for drill in DRILLS if drill.is_fault}
    wanted = set(only.split(",")) if only else faults
    if unknown := wanted - faults:
        raise SystemExit(f"no drill with a fault is called {', '.join(sorted(unknown))}")
    return [drill.name for drill in DRILLS if drill.name in wanted and backend in drill.backends]


def plan(rows: list[Key], there: Counter[Key], runs: int) -> list[Key]:
    """List the runs still to make, a row's runs together."""
    return [key for key in rows for _ in range(runs - there[key])]


def _run_once(key: Key, config: str | None) -> None:
    name, backend, ranks, settings, commit = key
    circumstances: Row = {
        "ranks": ranks,
        "settings": settings,
        "commit": commit,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": read_versions(),
    }
    try:
        result = run_drill(name, ranks=ranks, backend=backend, config=config)
    except SystemExit as reason:
        print(f"{name:<24} {backend:<7} {reason}", flush=True)
        return
    append_row({**result, "drill": name, "backend": backend, **circumstances})
    rank, cause = (("wrong", "right")[bool(result[part])] for part in ("right_rank", "right_cause"))
    print(f"{name:<24} {backend:<7} rank {rank}, cause {cause}", flush=True)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="runs of each drill (5)")
    parser.add_argument("--ranks", type=int, default=8, help="ranks of the job (8)")
    parser.add_argument("--only", default="", help="names of drills, with commas (all faults)")
    parser.add_argument("--backends", default=",".join(BACKENDS), help="with commas (both)")
    parser.add_argument("--config", metavar="FILE", help="settings (the defaults)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start none after")
    parser.add_argument("--again", action="store_true", help="also runs that are there already")
    return parser.parse_args()


if __name__ == "__main__":
    main()
