"""Healthy drills mixed, with default settings: how many incidents in two job-hours? None is right.

    python -m benchmarks.accuracy.healthy --job-hours 24 --beside 6 --ranks 2-4

Backend and ranks are random; the drill is one of those with the fewest runs. `--beside` jobs run at
once, each with a tower and agents of its own, and the time for which its tower knows it counts.
Job-hours that are
already in the results file for the commit and the settings count. Exits 1 if a run was wrong.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from threading import Lock

from benchmarks.accuracy.circumstances import name_settings, read_commit, read_versions
from benchmarks.accuracy.results import Row, append_row, read_rows
from benchmarks.accuracy.score import accused
from benchmarks.accuracy.timeline import find_passing
from benchmarks.drilling import run_drill
from watchtower.drills.catalogue import DRILLS
from watchtower.drills.drill_run import Drill
from watchtower.drills.launching import why_not
from watchtower.drills.settings import DrillSettings

HEALTHY = Path("benchmarks/results/healthy.jsonl")
RANKS = (4, 8)
STEP_S = DrillSettings().step_s
"""An accusation that is shown for longer counts: a person could have read it."""
FAILURES_IN_A_ROW = 5
"""After this many drills that could not run, the machine is the problem: more runs are useless."""


def main() -> int:
    args = _parse_arguments()
    commit, settings = read_commit(), name_settings(args.config)
    there = [row for row in read_rows(HEALTHY) if is_of(row, commit, settings)]
    course = Course(there, {"commit": commit, "settings": settings}, args)
    with ThreadPoolExecutor(args.beside) as pool:
        for one in [pool.submit(course.run) for _ in range(args.beside)]:
            one.result()
    wrong = sum(not row["right"] for row in course.rows)
    passed = sum(len(shown_long(row)) for row in course.rows)
    print(
        f"{len(course.rows)} healthy drills in {course.hours:.1f} job-hours, {wrong} wrong; "
        f"{passed} ranks or groups of ranks were accused for longer than a step"
    )
    return 1 if wrong or course.failures else 0


class Course:
    """The runs of one commit with one setting, made by several threads."""

    def __init__(self, rows: list[Row], marks: Row, args: argparse.Namespace) -> None:
        self.rows = rows
        self.failures = 0
        """Drills in a row that could not run."""
        self._marks = marks
        self._args = args
        self._runs = Counter(str(row["drill"]) for row in rows)
        self._lot = random.Random(args.seed)
        self._lock = Lock()

    @property
    def hours(self) -> float:
        """Return the job-hours so far."""
        return sum(float(str(row["minutes"])) for row in self.rows) / 60

    def run(self) -> None:
        """Run drills until there are enough job-hours, or the machine cannot run them."""
        while (drawn := self._draw()) is not None:
            row = _run(*drawn, self._args)
            with self._lock:
                self.failures = 0 if row else self.failures + 1
                if row:
                    row |= self._marks
                    append_row(row, HEALTHY)
                    self.rows.append(row)

    def _draw(self) -> tuple[Drill, str, int] | None:
        with self._lock:
            if self.hours >= self._args.job_hours or self.failures >= FAILURES_IN_A_ROW:
                return None
            drill = choose_drill(self._runs, self._lot)
            self._runs[drill.name] += 1
            backend = self._lot.choice(find_backends(drill))
            return drill, backend, draw_ranks(drill, self._lot, self._args.ranks)


def is_of(row: Row, commit: str, settings: str) -> bool:
    """Return whether a run is of this commit with these settings."""
    return (row["commit"], row["settings"]) == (commit, settings)


def choose_drill(runs: Counter[str], lot: random.Random) -> Drill:
    """Return one of the healthy drills with the fewest runs, of those that this machine can run."""
    healthy = [drill for drill in DRILLS if not drill.is_fault and find_backends(drill)]
    fewest = min(runs[drill.name] for drill in healthy)
    return lot.choice([drill for drill in healthy if runs[drill.name] == fewest])


def find_backends(drill: Drill) -> list[str]:
    """Return the backends of a drill that are installed here: without torch, perhaps none."""
    return [name for name in drill.backends if why_not(name) is None]


def draw_ranks(drill: Drill, lot: random.Random, bounds: tuple[int, int] = RANKS) -> int:
    """Return a number of ranks that the drill allows."""
    low, high = bounds
    least = max(low, drill.least_ranks)
    step = 2 if drill.whole_pairs else 1
    return lot.randrange(least, max(least, high) + 1, step)


def shown_long(row: Row) -> list[Row]:
    """Return the accusations of a healthy job that were shown for longer than one step."""
    passing = row.get("passing", [])
    assert isinstance(passing, list)
    return [one for one in passing if one["for_s"] > STEP_S]


def _run(drill: Drill, backend: str, ranks: int, args: argparse.Namespace) -> Row | None:
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    told = f"{drill.name:<24} {backend:<7} {ranks} ranks"
    with tempfile.TemporaryDirectory(prefix="watchtower-evidence-") as folder:
        try:
            result = run_drill(
                drill.name, ranks=ranks, backend=backend, config=args.config, evidence=Path(folder)
            )
        except (SystemExit, subprocess.TimeoutExpired) as reason:
            print(f"{told} {reason}", flush=True)
            return None
    verdict = result["verdict"] or {}
    right = result["right_rank"] and result["right_cause"]
    passing = find_passing(result["history"], [])
    print(told, "ok" if right else f"WRONG: {verdict.get('summary')}", passing or "", flush=True)
    return {
        "drill": drill.name,
        "backend": backend,
        "ranks": ranks,
        "date": date,
        "minutes": round(result["watched_s"] / 60, 2),
        "incidents": result["incidents"],
        "accused": sorted(accused(result)),
        "passing": passing,
        "beside": args.beside,
        "status": verdict.get("status"),
        "right": right,
        "versions": read_versions(),
    }


def _read_range(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    return int(low), int(high or low)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--job-hours", type=float, default=2.0, help="for the commit (2)")
    parser.add_argument("--beside", type=int, default=1, help="jobs at the same time (1)")
    parser.add_argument(
        "--ranks", type=_read_range, default=RANKS, metavar="LOW-HIGH", help="of a job (4-8)"
    )
    parser.add_argument("--seed", type=int, help="of the lot")
    parser.add_argument("--config", metavar="FILE", help="settings (the defaults)")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
