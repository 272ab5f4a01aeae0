"""gloo's monitored_barrier, called by every rank before every step.

A strong baseline where it can be called: rank 0 names the ranks that did not arrive. It costs a
barrier per step (p50 2 ms with 8 ranks on 2 loaded cores), and sees nothing between two of them.
Only rank 0 has the timeout. The others wait for its answer until the timeout of the process group,
30 minutes by default.
"""

from __future__ import annotations

import re

from benchmarks.accuracy.live.tool import THRESHOLD_S, Said, Text, Tool, shorten
from watchtower.drills.drill_run import Drill

NAMED = re.compile(
    r"RuntimeError: \[Rank 0\]: Ranks? ([\d, ]+) failed to pass monitoredBarrier in \d+ ms"
)
"""The only verdict: the error of rank 0 after it has waited for all."""
REFERRED = re.compile(
    r"RuntimeError: Rank \d+ successfully reached monitoredBarrier, but received errors while"
    r" waiting for send/recv from rank 0"
)
"""The error of the other ranks after rank 0 has ended. It refers to rank 0's log and accuses no
rank.
"""


def read(text: Text) -> Said | None:
    """Return the ranks that rank 0 names; None without rank 0, because the others only refer to
    it.
    """
    lines = [line for content in text.values() for line in content.splitlines()]
    named = [(line, found[1]) for line in lines if (found := NAMED.search(line))]
    if named:
        ranks = {int(rank) for _, listed in named for rank in re.findall(r"\d+", listed)}
        said = shorten([line for line, _ in named])
        return Said(accused=tuple(sorted(ranks)), text=said, is_final=True)
    referred = [line for line in lines if REFERRED.search(line)]
    return Said(text=shorten(referred[:1])) if referred else None


def why_not(drill: Drill) -> str | None:
    """Return why no barrier is reached in a drill."""
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
