"""Measures the time from the fault to the named verdict, on real hung jobs with default settings.

Runs each drill several times, one after the other, with random ranks, and prints median and p95.
Targets: 10 s for a stall, 4 s for a death, both as p95. `--check` exits 1 above them, or if a
verdict was wrong.
"""

from __future__ import annotations

import argparse
import json
import math
from statistics import median

from drilling import run_drill

TARGETS_S = {
    "dataloader_sleep": 10.0,
    "busy_loop": 10.0,
    "sigstop": 10.0,
    "exception": 4.0,
    "consequential": 4.0,
}


def p95(values: list[float]) -> float:
    """Return the value that 95 of 100 do not exceed; the largest one of fewer than twenty."""
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--drills", default=",".join(TARGETS_S), help="comma-separated names")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    args = parser.parse_args()
    rows = []
    for name in args.drills.split(","):
        results = [run_drill(name, ranks=args.ranks) for _ in range(args.runs)]
        times = [result["fault_to_verdict_s"] for result in results]
        known = [seconds for seconds in times if seconds is not None]
        row = {
            "drill": name,
            "runs": args.runs,
            "right": sum(r["right_rank"] and r["right_cause"] for r in results),
            "median_s": median(known) if known else None,
            "p95_s": p95(known) if len(known) == len(times) else None,
            "target_s": TARGETS_S.get(name),
        }
        rows.append(row)
        if not args.json:
            print("  ".join(f"{key}={value}" for key, value in row.items()), flush=True)
    if args.json:
        print(json.dumps(rows))
    missed = [row for row in rows if row["right"] < row["runs"] or _is_late(row)]
    return 1 if args.check and missed else 0


def _is_late(row: dict) -> bool:
    return row["p95_s"] is None or (row["target_s"] or math.inf) < row["p95_s"]


if __name__ == "__main__":
    raise SystemExit(main())
