"""Accuses, in each process group, the members with fewer collectives than the member with the most.

A Ray pull request proposed this (64993, closed), and NVIDIA's trace analyzer does it: group by
group, with the accused ranks of all groups together.
"""

from __future__ import annotations

from collections import defaultdict

from benchmarks.accuracy.evidence import Evidence
from benchmarks.accuracy.peers.peer import Opinion, Peer, needs_records
from watchtower.evidence.case import Case
from watchtower.wire.bounds import MAX_WORLD_SIZE
from watchtower.wire.collectives import parse_members


def judge(evidence: Evidence) -> Opinion:
    """Accuse every member below its group's leader. A rank without a record counts as 0."""
    case = evidence.case
    if not case.group_logs:
        return Opinion(said="no rank gave records", failed=True)
    counts = _count_calls(case)
    accused: set[int] = set()
    said = []
    for group in case.groups:
        called = counts[group.id]
        leader = max(called.values(), default=0)
        members = parse_members(group.members, MAX_WORLD_SIZE)
        behind = {rank for rank in members if called.get(rank, 0) < leader}
        if behind:
            said.append(f"group {group.members}: {sorted(behind)} below {leader}")
        accused |= behind
    return Opinion(
        accused=tuple(sorted(accused)), said="; ".join(said) or "no rank is below the leader"
    )


def _count_calls(case: Case) -> dict[str, dict[int, int]]:
    """Return, for each group, the number of the last collective that each rank has called."""
    logs = {log.digest: log for log in case.group_logs}
    counts: dict[str, dict[int, int]] = defaultdict(dict)
    for evidence in case.ranks:
        for dump in evidence.dumps:  # oldest first, so the newest one wins
            for digest in dump.collectives.logs if dump.collectives else ():
                counts[logs[digest].group][evidence.rank] = logs[digest].called
    return counts


PEER = Peer(
    name="count_below_leader",
    about="In each process group, every member whose count of collectives is below the leader's "
    "is accused, over all groups: the rule of a closed pull request to Ray's hang detector "
    "(64993) and of NVIDIA's flight recorder analyzer, written again here. It reads the records "
    "that watchtower had; a rank that gave none counts as 0.",
    applies=needs_records,
    judge=judge,
)
