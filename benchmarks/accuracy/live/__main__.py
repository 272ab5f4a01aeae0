"""Run the drills on jobs with another tool inside, and append each result; resumes.

A run already in the results file for the same tool, drill, settings and commit is not repeated.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Iterator
from datetime import datetime, timezone

from benchmarks.accuracy.circumstances import DRILLS, read_commit, read_version, read_versions
from benchmarks.accuracy.live import TOOLS
from benchmarks.accuracy.live.staging import Heard, play
from benchmarks.accuracy.live.tool import Said, Tool
from benchmarks.accuracy.results import Row, append_row, count_runs, read_rows
from benchmarks.accuracy.run import choose_drills
from watchtower.drills.catalogue import find_drill
from watchtower.drills.drill_run import Drill
from watchtower.drills.errors import DrillError
from watchtower.drills.network import why_no_network

BACKEND = "torch"
"""Both tools are part of torch's process groups or launchers."""


def main() -> None:
    args = _parse_arguments()
    names = choose_drills(BACKEND, args.only)
    stop_at = time.monotonic() + args.minutes * 60
    for tool in _choose_tools(args.tools):
        for name in names:
            for _ in _missing(tool, name, args):
                if time.monotonic() >= stop_at:
                    print(f"stopped after {args.minutes:g} minutes; run it again to go on")
                    return
                _run_once(tool, find_drill(name), args.ranks)


def why_not(tool: Tool, drill: Drill) -> str | None:
    """Return why a tool cannot work in this drill; None if it is run."""
    if drill.name.endswith("_no_heartbeat"):
        return "the tool needs a call in the training code, and this job makes none"
    if drill.name.startswith("tower_restart"):
        return "the drill restarts watchtower itself; its fault is that of dataloader_sleep"
    return tool.why_not(drill)


def make_row(tool: Tool, drill: Drill, ranks: int, heard: Heard | None, excuse: str | None) -> Row:
    """Return the row of one run, or of the reason why there is none."""
    said = heard.said if heard else Said()
    return {
        "tool": tool.name,
        "drill": drill.name,
        "backend": BACKEND,
        "ranks": ranks,
        "settings": tool.label,
        "commit": read_commit(DRILLS),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": read_versions() | {name: read_version(name) for name in tool.packages},
        "injected": {
            "ranks": list(heard.ranks) if heard else [],
            "cause": drill.expected.cause,
        },
        "accused": list(said.accused),
        "cause": None,
        "said": said.text,
        "fault_to_verdict_s": heard.fault_to_verdict_s if heard else None,
        "why_not": excuse,
    }


def _missing(tool: Tool, name: str, args: argparse.Namespace) -> Iterator[int]:
    """Yield the runs still to make. One row gives the reason if there are none."""
    key = name, BACKEND, args.ranks, tool.label, read_commit(DRILLS)
    wanted = 1 if why_not(tool, find_drill(name)) else args.runs
    yield from range(wanted - count_runs(read_rows())[key])


def _run_once(tool: Tool, drill: Drill, ranks: int) -> None:
    told = f"{tool.name:<18} {drill.name:<24}"
    excuse = why_not(tool, drill)
    heard = None
    if excuse is None:
        needs_network = BACKEND in drill.networked and tool.in_own_network
        if needs_network and (lack := why_no_network()):
            print(f"{told} not here: {lack}", flush=True)
            return
        try:
            heard = play(tool, drill, ranks)
        except DrillError as reason:
            print(f"{told} {reason}", flush=True)
            return
    row = make_row(tool, drill, ranks, heard, excuse)
    append_row(row)
    if heard is None:
        print(f"{told} not applicable: {excuse}", flush=True)
        return
    after = f"after {heard.fault_to_verdict_s} s" if heard.said.accused else "abstains"
    print(f"{told} injected {list(heard.ranks)} accused {row['accused']} {after}", flush=True)
    print(f"  {row['said'] or '(nothing)'}", flush=True)


def _choose_tools(only: str) -> list[Tool]:
    """Return the tools by name, all if empty. Raises SystemExit if one is unknown or not
    installed.
    """
    wanted = set(only.split(",")) if only else {tool.name for tool in TOOLS}
    if unknown := wanted - {tool.name for tool in TOOLS}:
        raise SystemExit(f"no tool is called {', '.join(sorted(unknown))}")
    chosen = [tool for tool in TOOLS if tool.name in wanted]
    for tool in chosen:
        if importlib.util.find_spec(tool.module) is None:
            raise SystemExit(f"{tool.name} needs {', '.join(tool.packages)}: see its file")
    return chosen


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="runs of each drill (5)")
    parser.add_argument("--ranks", type=int, default=8, help="ranks of the job (8)")
    parser.add_argument("--only", default="", help="names of drills, with commas (all faults)")
    parser.add_argument("--tools", default="", help="names of tools, with commas (all)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start none after")
    return parser.parse_args()


if __name__ == "__main__":
    main()
