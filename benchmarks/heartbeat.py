"""Measures the cost of a heartbeat for the training process, compared with one read of the clock.

Both are called in a plain loop and timed in turns, round after round, so that noise of the machine
affects both. The numbers are medians. The measurement has no agent and no tower, and they would not
change it: a heartbeat only stores into memory.

With --transfers: measures the cost of counting a blocking send and receive between two gloo ranks,
with and without counting in turns (needs torch).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from time import monotonic_ns, perf_counter_ns

from watchtower_heartbeat import beat

LIMIT = 3.0
"""A heartbeat may cost this many reads of `time.monotonic_ns()`."""


def main() -> int:
    """Measure, print, and with --check fail above the limit."""
    options = parse_arguments()
    if options.transfers:
        transfers = measure_transfers(rounds=options.rounds, calls=options.calls)
        print(json.dumps(transfers) if options.json else describe_transfers(transfers))
        return 0
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
    parser.add_argument("--transfers", action="store_true", help="measure sends and receives")
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
    """Return ns per iteration of an empty loop."""
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
    """Return ns per heartbeat."""
    begun = perf_counter_ns()
    for step in range(calls):
        beat(step)
    return (perf_counter_ns() - begun) / calls


def measure_transfers(*, rounds: int, calls: int) -> dict[str, float]:
    """Return us for a send and a receive of 16 bytes, there and back, counted and not."""
    calls = max(1, calls // 50)  # each takes about as long as 50 beats or more
    with tempfile.TemporaryDirectory() as folder:
        spawning = multiprocessing.get_context("spawn")
        job = (f"file://{folder}/store", rounds, calls)
        other = spawning.Process(target=exchange, args=(1, *job), daemon=True)
        other.start()
        counted, plain = exchange(0, *job)
        other.join(60)
    return {
        "counted_us": round(counted, 2),
        "plain_us": round(plain, 2),
        "ratio": round(counted / plain, 3),
    }


def exchange(rank: int, store: str, rounds: int, calls: int) -> tuple[float, float]:
    """Run one of the two ranks; return the median times with and without counting."""
    os.environ["WATCHTOWER_RECORDS"] = "on"
    import torch  # noqa: PLC0415  -- a beat is measured without it, and not everybody has it
    import torch.distributed as dist  # noqa: PLC0415

    beat(0)  # makes the page: from here on transfers are counted
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    tensor = torch.ones(4)
    cells = [
        cell
        for each in (dist.send, dist.recv)
        for cell in each.__closure__
        if getattr(cell.cell_contents, "__wrapped__", None) is each.__wrapped__
    ]
    assert len(cells) == 2, "nothing is counted in this torch"
    counting = [cell.cell_contents for cell in cells]
    times: dict[bool, list[float]] = {True: [], False: []}
    for number in range(2 * rounds):
        is_counted = number % 2 == 0
        for cell, function in zip(cells, counting, strict=True):
            cell.cell_contents = function if is_counted else function.__wrapped__
        begun = perf_counter_ns()
        for _ in range(calls):
            (dist.recv if rank else dist.send)(tensor, 1 - rank)
            (dist.send if rank else dist.recv)(tensor, 1 - rank)
        times[is_counted].append((perf_counter_ns() - begun) / calls / 1000)
    dist.destroy_process_group()
    return statistics.median(times[True]), statistics.median(times[False])


def describe_transfers(result: dict[str, float]) -> str:
    """Return the result as a few lines for people."""
    return (
        f"send and receive, plain    {result['plain_us']:8.2f} us\n"
        f"send and receive, counted  {result['counted_us']:8.2f} us\n"
        f"ratio                      {result['ratio']:8.3f}"
    )


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
