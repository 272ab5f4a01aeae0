"""Healthy drills in random order for an hour, default settings: how many incidents? Wanted: none.

Exits 1 when there was one, or a status was wrong.
"""

from __future__ import annotations

import argparse
import random
import time

from drilling import run_drill

from watchtower.drills.catalogue import DRILLS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seed", type=int, default=None, help="order of the drills")
    args = parser.parse_args()
    order = random.Random(args.seed)
    names = [drill.name for drill in DRILLS if not drill.is_fault]
    until = time.monotonic() + 60 * args.minutes
    runs = wrong = 0
    while time.monotonic() < until:
        for name in order.sample(names, len(names)):
            started = time.monotonic()
            result = run_drill(name, ranks=args.ranks)
            runs += 1
            is_right = result["right_rank"] and result["right_cause"]
            wrong += not is_right
            word = "ok" if is_right else f"WRONG: {result['verdict']['summary']}"
            print(f"{name:<20} {time.monotonic() - started:6.0f} s  {word}", flush=True)
            if time.monotonic() >= until:
                break
    print(f"{runs} healthy drills in {args.minutes:g} minutes, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
