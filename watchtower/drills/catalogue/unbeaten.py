"""Drills on jobs without heartbeats: the programs do not even import the client."""

from __future__ import annotations

from dataclasses import replace

from watchtower.drills.catalogue import collectives, groups, kernel, outside, stalls
from watchtower.drills.drill import Drill, Plan, Variables


def unbeaten(drill: Drill) -> Drill:
    """The same drill, with the same right answer, on a job that never beats."""

    def make_plan(variables: Variables) -> Plan:
        return {**drill.plan(variables), "beats": False}

    return replace(
        drill, name=f"{drill.name}_unbeaten", shows=f"{drill.shows}; no heartbeats", plan=make_plan
    )


UNBEATEN = tuple(
    unbeaten(drill)
    for drill in (
        stalls.DATALOADER_SLEEP,
        outside.SIGSTOP,
        collectives.CONDITIONAL_COLLECTIVE,
        groups.TP_DP_CASCADE,
        kernel.D_STATE,
    )
)
