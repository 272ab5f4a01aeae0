"""gloo's monitored_barrier, called by every rank before every step.

A strong baseline where it can be called: rank 0 names whoever did not come. It costs a barrier per
step (p50 2 ms with 8 ranks on 2 loaded cores) and is blind between two of them. The timeout is rank
0's alone: the others wait for its answer as long as the process group does, 30 minutes by default.
"""

from __future__ import annotations

import re

from benchmarks.accuracy.live.tool import THRESHOLD_S, Said, Text, Tool, shorten
from watchtower.drills.drill import Drill

NAMED = re.compile(
    r"RuntimeError: \[Rank 0\]: Ranks? ([\d, ]+) failed to pass monitoredBarrier in \d+ ms"
)
"""The one verdict: what rank 0 raises once it has waited for all."""
REFERRED = re.compile(
    r"RuntimeError: Rank \d+ successfully reached monitoredBarrier, but received errors while"
    r" waiting for send/recv from rank 0"
)
"""What the other ranks raise when rank 0 is gone: they refer to its log and accuse nobody."""


def read(text: Text) -> Said | None:
    """Read whom rank 0 names. Without rank 0 there is no verdict: the others only refer to it."""
    lines = [line for content in text.values() for line in content.splitlines()]
    named = [(line, found[1]) for line in lines if (found := NAMED.search(line))]
    if named:
        ranks = {int(rank) for _, listed in named for rank in re.findall(r"\d+", listed)}
        said = shorten([line for line, _ in named])
        return Said(accused=tuple(sorted(ranks)), text=said, is_final=True)
    referred = [line for line in lines if REFERRED.search(line)]
    return Said(text=shorten(referred[:1])) if referred else None


def why_not(drill: Drill) -> str | None:
    """Say where no barrier is ever reached."""
    if drill.name in ("never_started", "init_sleep"):
        return "no rank gets past init_process_group, and there is no barrier before it"
    return None


TOOL = Tool(
    name="monitored_barrier",
    settings=f"timeout {THRESHOLD_S:g} s, wait_all_ranks, before every step",
    packages=("torch",),
    module="torch",
    environment=lambda _: {"LIVE_THRESHOLD_S": f"{THRESHOLD_S:g}"},
    read=read,
    why_not=why_not,
)
