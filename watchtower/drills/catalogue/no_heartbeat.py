"""Drills on jobs without heartbeats: the programs do not even import the client."""

from __future__ import annotations

from dataclasses import replace

from watchtower.drills.catalogue import collectives, kernel, outside, stalls
from watchtower.drills.catalogue.stalls import short_grace
from watchtower.drills.drill_run import Drill
from watchtower.drills.setup import Plan, Variables


def without_heartbeats(drill: Drill) -> Drill:
    """Return the same drill, with the same right answer, on a job without heartbeats."""

    def make_plan(variables: Variables) -> Plan:
        return {**drill.plan(variables), "beats": False}

    return replace(
        drill,
        name=f"{drill.name}_no_heartbeat",
        shows=f"{drill.shows}; no heartbeats",
        plan=make_plan,
        detection=short_grace,
        sampled=True,
    )


NO_HEARTBEAT = tuple(
    without_heartbeats(drill)
    for drill in (
        stalls.DATALOADER_SLEEP,
        outside.SIGSTOP,
        collectives.CONDITIONAL_COLLECTIVE,
        collectives.TP_DP_CASCADE,
        kernel.D_STATE,
    )
)

RENAMED_RANKS = replace(
    without_heartbeats(stalls.DATALOADER_SLEEP),
    name="renamed_ranks",
    shows="one rank sleeps while it fetches a batch; each rank has a title and set its number at "
    "run time; no heartbeats",
    renamed=True,
    # A program that starts its own ranks does this. torchrun does not.
    bare_launch=True,
)
