"""Run a random sample of the matrix of faults, moments and what the tower is given; resumes.

    python -m benchmarks.accuracy.matrix --cells 300
    python -m benchmarks.accuracy.matrix --cells 20 --only moment=exit,backend=torch

Each cell is one drill with real processes, agents and a tower. Its row is appended to the results
file; a cell that is there for the commit and the settings is not run again, unless its drill could
not run. The cells of one seed come in one order, so that a larger sample contains the smaller one;
those that have not run at any commit come first.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from threading import Lock

from benchmarks.accuracy.cells import (
    Cell,
    choose,
    count_left_out,
    draw,
    parse_only,
    plain,
    sensible_cells,
)
from benchmarks.accuracy.circumstances import name_settings, read_commit, read_versions
from benchmarks.accuracy.results import Row, append_row, read_rows
from benchmarks.accuracy.timeline import (
    find_incident_s,
    find_passing,
    find_right_s,
    find_suspect_s,
)
from benchmarks.drilling import run_drill
from watchtower.drills.catalogue import find_drill
from watchtower.drills.moments import find_moment

MATRIX = Path("benchmarks/results/matrix.jsonl")
SEED = 1
RANKS = 4
LONGEST_REASON = 500
"""Characters of the reason why a cell could not run."""

_APPENDING = Lock()


def main() -> None:
    args = _parse_arguments()
    cells = choose(draw(sensible_cells(), args.seed), parse_only(args.only))
    if args.list:
        _print_cells(cells)
        return
    commit, settings = read_commit(), name_settings(args.config)
    rows = [row for row in read_rows(args.results) if "failed" not in row]
    ever = {cell_of(row) for row in rows}
    there = {cell_of(row) for row in rows if is_of(row, commit, settings)}
    left = [cell for cell in cells[: args.cells] if cell not in there]
    left.sort(key=lambda cell: cell in ever)
    stop_at = time.monotonic() + args.minutes * 60

    def run(cell: Cell) -> bool:
        if time.monotonic() >= stop_at:
            return False
        row = _run(cell, args) | {"commit": commit, "settings": settings, "seed": args.seed}
        with _APPENDING:
            append_row(row, args.results)
        print(tell(row), flush=True)
        return True

    with ThreadPoolExecutor(args.beside) as pool:
        begun = sum(pool.map(run, left))
    done = min(args.cells, len(cells)) - len(left) + begun
    print(f"{done} of {min(args.cells, len(cells))} cells; {len(left) - begun} are left")


def is_of(row: Row, commit: str, settings: str) -> bool:
    """Return whether a row is of this commit with these settings."""
    return (row["commit"], row["settings"]) == (commit, settings)


def cell_of(row: Row) -> Cell:
    """Return the cell of a row."""
    return Cell(**{name: row[name] for name in Cell.__dataclass_fields__})  # type: ignore[arg-type]


def make_row(cell: Cell, result: dict) -> Row:
    """Return what is kept of one cell's drill."""
    expected = find_moment(cell.moment).expect(find_drill(cell.fault).expected)
    verdict, history = result["verdict"] or {}, result["history"]
    injected = result["injected"]["ranks"]
    causes = [str(expected.cause), *expected.or_causes]
    return {
        **asdict(cell),
        "injected": injected,
        "expected": causes,
        "accused": sorted(suspect["rank"] for suspect in verdict.get("suspects") or ()),
        "cause": verdict.get("cause"),
        "status": verdict.get("status"),
        "confidence": verdict.get("confidence"),
        "summary": verdict.get("summary"),
        "missing": verdict.get("missing_evidence") or [],
        "right_rank": result["right_rank"],
        "right_cause": verdict.get("cause") in causes,
        "right_domain": expected.domain in (None, verdict.get("domain")),
        "reasons": result["reasons"],
        "suspect_s": find_suspect_s(history),
        "right_s": find_right_s(history, injected, causes),
        "incident_s": find_incident_s(history),
        "passing": find_passing(history, injected),
    }


def _run(cell: Cell, args: argparse.Namespace) -> Row:
    circumstances: Row = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": read_versions(),
        "ranks": RANKS,
        "beside": args.beside,
    }
    options = ["--moment", cell.moment]
    options += [] if cell.heartbeats else ["--no-heartbeats"]
    options += [] if cell.log else ["--no-log"]
    with tempfile.TemporaryDirectory(prefix="watchtower-evidence-") as folder:
        try:
            result = run_drill(
                cell.fault,
                ranks=RANKS,
                backend=cell.backend,
                config=args.config,
                evidence=Path(folder),
                options=options,
            )
        except (SystemExit, subprocess.TimeoutExpired) as reason:
            return {**asdict(cell), **circumstances, "failed": str(reason)[-LONGEST_REASON:]}
    return {**make_row(cell, result), **circumstances}


def tell(row: Row) -> str:
    """Return one line about a cell's run."""
    names = " ".join(plain(value) for value in asdict(cell_of(row)).values())
    if "failed" in row:
        return f"{names}: could not run: {row['failed']}"
    if row["right_rank"] and row["right_cause"] and row["right_domain"]:
        return f"{names}: right after {row['right_s']} s, incident after {row['incident_s']} s"
    return f"{names}: WRONG, injected {row['injected']}: {row['reasons']}"


def _print_cells(cells: list[Cell]) -> None:
    for cell in cells:
        print(" ".join(plain(value) for value in asdict(cell).values()))
    print(f"{len(cells)} cells; left out:")
    for why, count in count_left_out():
        print(f"  {count:5} {why}")


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", type=int, default=300, help="size of the sample (300)")
    parser.add_argument("--seed", type=int, default=SEED, help=f"of the sample ({SEED})")
    parser.add_argument(
        "--only",
        default="",
        metavar="NAME=VALUE,...",
        help="fault, moment, heartbeats (on, off), log (on, off), backend",
    )
    parser.add_argument("--list", action="store_true", help="list the cells and the rules")
    parser.add_argument("--config", metavar="FILE", help="settings (the defaults)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start none after")
    parser.add_argument("--beside", type=int, default=1, help="drills at the same time (1)")
    parser.add_argument("--results", type=Path, default=MATRIX, help=f"file of rows ({MATRIX})")
    return parser.parse_args()


if __name__ == "__main__":
    main()
