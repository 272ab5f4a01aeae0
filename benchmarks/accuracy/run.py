"""Run every fault drill several times with random ranks, and append each result; resumes.

The peers judge each hung job too, from evidence collected while it hung. A run already in the
results file for the same drill, backend, settings and commit is not repeated.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from threading import Lock

from benchmarks.accuracy.asking import ask_peers
from benchmarks.accuracy.circumstances import name_settings, read_commit, read_versions
from benchmarks.accuracy.evidence import read_evidence
from benchmarks.accuracy.results import Key, Row, append_row, count_runs, read_rows
from benchmarks.drilling import run_drill
from watchtower.drills.catalogue import DRILLS
from watchtower.drills.setup import BACKENDS


def main() -> None:
    args = _parse_arguments()
    commit, settings = read_commit(), name_settings(args.config)
    rows = [
        (name, backend, args.ranks, settings, commit)
        for backend in args.backends.split(",")
        for name in choose_drills(backend, args.only)
    ]
    there: Counter[Key] = Counter() if args.again else count_runs(read_rows())
    keys = plan(rows, there, args.runs)
    how = How(config=args.config, beside=args.beside, keep=args.keep)
    stop_at = time.monotonic() + args.minutes * 60

    def run(key: Key) -> bool:
        if time.monotonic() >= stop_at:
            return False
        _run_once(key, how)
        return True

    with ThreadPoolExecutor(args.beside) as pool:
        begun = sum(pool.map(run, keys))
    if begun < len(keys):
        print(f"stopped after {args.minutes:g} minutes; run it again to go on")


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """Options for all drills of this run."""

    config: str | None
    beside: int
    """Drills at the same time. Each is slower then, and the row records it."""
    keep: Path | None
    """Folder for the evidence. Without it, the evidence is removed after it was judged."""


_APPENDING = Lock()


def choose_drills(backend: str, only: str) -> list[str]:
    """Return the drills with a fault that support this backend, in the order of the catalogue.

    Raises SystemExit if `only` (names with commas, all if empty) has an unknown name.
    """
    faults = {drill.name for drill in DRILLS if drill.is_fault}
    wanted = set(only.split(",")) if only else faults
    if unknown := wanted - faults:
        raise SystemExit(f"no drill with a fault is called {', '.join(sorted(unknown))}")
    return [drill.name for drill in DRILLS if drill.name in wanted and backend in drill.backends]


def plan(rows: list[Key], there: Counter[Key], runs: int) -> list[Key]:
    """Return the runs still to make, all runs of a row together."""
    return [key for key in rows for _ in range(runs - there[key])]


def _run_once(key: Key, how: How) -> None:
    name, backend, ranks, settings, commit = key
    circumstances: Row = {
        "ranks": ranks,
        "settings": settings,
        "commit": commit,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": read_versions(),
        "beside": how.beside,
    }
    with tempfile.TemporaryDirectory(prefix="watchtower-evidence-") as own:
        folder = _make_folder(how.keep, f"{name}-{backend}") if how.keep else Path(own)
        try:
            result = run_drill(
                name, ranks=ranks, backend=backend, config=how.config, evidence=folder
            )
        except (SystemExit, subprocess.TimeoutExpired) as reason:
            print(f"{name:<24} {backend:<7} {reason}", flush=True)
            return
        peers = ask_peers(read_evidence(folder, backend))
    row = {**result, "drill": name, "backend": backend, "peers": peers, **circumstances}
    with _APPENDING:
        append_row(row)
    print(_tell(row), flush=True)


def _make_folder(keep: Path, name: str) -> Path:
    keep.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=keep))


def _tell(row: dict) -> str:
    rank, cause = (("wrong", "right")[bool(row[part])] for part in ("right_rank", "right_cause"))
    peers = ", ".join(
        f"{name} {answer['accused']}"
        for name, answer in row["peers"].items()
        if not answer["why_not"]
    )
    told = f"{row['drill']:<24} {row['backend']:<7} rank {rank}, cause {cause}"
    return f"{told}; injected {row['injected']['ranks']}: {peers}" if peers else told


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="runs of each drill (5)")
    parser.add_argument("--ranks", type=int, default=8, help="ranks of the job (8)")
    parser.add_argument("--only", default="", help="names of drills, with commas (all faults)")
    parser.add_argument("--backends", default=",".join(BACKENDS), help="with commas (all)")
    parser.add_argument("--config", metavar="FILE", help="settings (the defaults)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start none after")
    parser.add_argument("--beside", type=int, default=1, help="drills at the same time (1)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the evidence there")
    parser.add_argument("--again", action="store_true", help="also runs that are there already")
    return parser.parse_args()


if __name__ == "__main__":
    main()
