"""What a beat costs the training process, beside one read of the clock.

Both are called in a plain loop and timed in turns, round after round, so that a noisy machine is
noisy for both; the numbers are medians. There is no agent and no tower in this measurement, and
none could change it: a beat stores into memory and talks to nobody.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from time import monotonic_ns, perf_counter_ns

from watchtower_heartbeat import beat

LIMIT = 3.0
"""A beat may cost this many reads of `time.monotonic_ns()`."""


def main() -> int:
    """Measure, print, and with --check fail above the limit."""
    options = parse_arguments()
    result = measure(rounds=options.rounds, calls=options.calls)
    print(json.dumps(result) if options.json else describe(result))
    if options.check and result["ratio"] > LIMIT:
        print(f"a beat costs more than {LIMIT} clock reads", file=sys.stderr)
        return 1
    return 0


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=301)
    parser.add_argument("--calls", type=int, default=5000, help="per round and subject")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--check", action="store_true", help=f"exit 1 above {LIMIT} clock reads")
    return parser.parse_args()


def measure(*, rounds: int, calls: int) -> dict[str, float]:
    """Return ns per call of each subject, and the ratio of beat to clock."""
    beat(0)  # the first one makes the page
    subjects: dict[str, Callable[[int], float]] = {
        "loop": time_loop,
        "monotonic_ns": time_clock,
        "beat": time_beat,
    }
    times: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(rounds):
        for name, run in subjects.items():
            times[name].append(run(calls))
    loop, clock, beats = (statistics.median(times[name]) for name in subjects)
    return {
        "loop_ns": round(loop, 1),
        "monotonic_ns_ns": round(clock, 1),
        "beat_ns": round(beats, 1),
        "ratio": round(beats / clock, 2),
        "ratio_without_loop": round((beats - loop) / (clock - loop), 2),
    }


def time_loop(calls: int) -> float:
    """Return ns per turn of an empty loop."""
    begun = perf_counter_ns()
    for _ in range(calls):
        pass
    return (perf_counter_ns() - begun) / calls


def time_clock(calls: int) -> float:
    """Return ns per read of the clock."""
    begun = perf_counter_ns()
    for _ in range(calls):
        monotonic_ns()
    return (perf_counter_ns() - begun) / calls


def time_beat(calls: int) -> float:
    """Return ns per beat."""
    begun = perf_counter_ns()
    for step in range(calls):
        beat(step)
    return (perf_counter_ns() - begun) / calls


def describe(result: dict[str, float]) -> str:
    """Return the result as a few lines for people."""
    return (
        f"time.monotonic_ns() {result['monotonic_ns_ns']:8.1f} ns\n"
        f"beat(step)          {result['beat_ns']:8.1f} ns\n"
        f"ratio               {result['ratio']:8.2f}    (limit {LIMIT};"
        f" {result['ratio_without_loop']} with the empty loop taken off both)"
    )


if __name__ == "__main__":
    sys.exit(main())
