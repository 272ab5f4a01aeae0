"""Runs one drill as `watchtower drill --json` does, and stores the evidence of its hung job.

The printed object has additional fields: `incidents` with the summaries of all opened incidents,
`reasons` why the verdict is wrong, `history` with every change of the verdict, and `watched_s`,
the seconds for which the tower knew the job.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path

from benchmarks.accuracy.collecting import collect
from benchmarks.accuracy.timeline import measure_watched_s, write_history
from watchtower.drills.catalogue import find_drill
from watchtower.drills.drill_run import DrillRun
from watchtower.drills.errors import DrillError
from watchtower.drills.moments import find_moment
from watchtower.drills.plain import PlainDisplay
from watchtower.drills.runner import Request, run_drill
from watchtower.drills.settings import read_config


def main() -> int:
    args = _parse_arguments()
    ended_at: list[float] = []

    def before_end(run: DrillRun) -> None:
        ended_at.append(time.monotonic())
        try:
            if args.evidence:
                collect(run, args.evidence)
        except Exception:  # the run counts anyway; the row records that peers had no evidence
            traceback.print_exc()

    try:
        config = read_config(args.config)
        switches = {"heartbeats": not args.no_heartbeats, "collective_log": not args.no_log}
        request = Request(
            drill=find_drill(args.name),
            ranks=args.ranks,
            backend=args.backend,
            moment=find_moment(args.moment) if args.moment else None,
            config=replace(config, drill=replace(config.drill, **switches)),
        )
        result = run_drill(request, PlainDisplay(sys.stderr), before_end)
    except DrillError as error:
        print(f"{error.help_text}\n{error}", file=sys.stderr)  # a reader of the end sees the reason
        return 2
    observed = result.observed
    more = {
        "incidents": [str(one.get("summary")) for one in observed.incidents],
        "reasons": result.judgement.reasons,
        "history": write_history(observed),
        "watched_s": measure_watched_s(observed, ended_at[0]),
    }
    print(json.dumps({**result.to_json(), **more}), flush=True)
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--moment")
    parser.add_argument("--no-heartbeats", action="store_true")
    parser.add_argument("--no-log", action="store_true", help="no log of collectives")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--evidence", type=Path, metavar="FOLDER", help="an empty folder")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
