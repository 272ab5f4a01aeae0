"""Changes to a case that say nothing about the fault: what real evidence is full of."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace

from watchtower.evidence.case import Case, RankEvidence
from watchtower.wire.collectives import ProcessGroup, make_group_log, name_group
from watchtower.wire.dumps import RankDump, ThreadDump
from watchtower.wire.report import AgentGaps, Movement
from watchtower.wire.stacks import Frame, make_stack

IDLE = make_stack(
    (
        Frame(function="Condition.wait", file="threading.py", line=359, library=True),
        Frame(function="Thread._bootstrap", file="threading.py", line=1030, library=True),
    )
)
QUIET_CORES = 0.04
"""Under what counts as moving: threads that poll."""

KEEPALIVE_BYTES_PER_S = 200.0


def add_noise(case: Case, guilty: Collection[int], rng: random.Random) -> Case:
    """Change what innocents show in passing, and add groups, stacks and limits nobody asked for."""
    ranks = tuple(
        item if item.rank in guilty else _disturb(item, rng, case.moving_cpu_cores)
        for item in case.ranks
    )
    nodes = list(case.nodes)
    if nodes:
        index = rng.randrange(len(nodes))
        nodes[index] = replace(nodes[index], limits=AgentGaps(spool="the disk is full"))
    members = f"0-{case.world_size - 1}"
    idle = ProcessGroup(id=name_group(members, 7), members=members, order=7, name="monitoring")
    log = make_group_log(group=idle.id, called=3, entered=3, completed=3, records=())
    return replace(
        case,
        ranks=ranks,
        nodes=tuple(nodes),
        stacks=(*case.stacks, IDLE),
        groups=(*case.groups, idle) if case.groups else (),
        group_logs=(*case.group_logs, log) if case.groups else (),
    )


def _disturb(item: RankEvidence, rng: random.Random, moving_cpu_cores: float) -> RankEvidence:
    beat = item.beat
    if beat is not None:
        beat = replace(
            beat, age_s=beat.age_s + rng.uniform(-0.5, 0.5), loss_is_bad=rng.random() < 0.1
        )
    return replace(
        item,
        beat=beat,
        movement=Movement(
            cpu_cores=rng.uniform(0, min(QUIET_CORES, moving_cpu_cores * 0.8)),
            socket_bytes_per_s=rng.uniform(0, KEEPALIVE_BYTES_PER_S),
        ),
        dumps=tuple(_with_idle_thread(dump) for dump in item.dumps)
        if rng.random() < 0.5
        else item.dumps,
    )


def _with_idle_thread(dump: RankDump) -> RankDump:
    idle = ThreadDump(name="Thread-1 (monitor)", digest=IDLE.digest)
    return replace(dump, threads=(*dump.threads, idle))
