"""Messages of the agents of an imagined job: a report and a batch of dumps for each node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from watchtower.evidence.case import Case, Presence, RankEvidence, digests_of, logs_of
from watchtower.wire import PROTOCOL_VERSION
from watchtower.wire.dumps import DumpBatch
from watchtower.wire.report import Beat, RankVitals, Report

START_TIME = 1
"""Of every imagined process, as in its dumps."""


def launch(case: Case, job: str, pids_from: int) -> Case:
    """Give a case another job and other processes, so that two of them share nodes."""
    ranks = (
        replace(
            item,
            pid=pids_from + item.rank,
            dumps=tuple(replace(dump, pid=pids_from + item.rank) for dump in item.dumps),
        )
        for item in case.ranks
    )
    return replace(case, job=job, ranks=tuple(ranks))


def by_node(case: Case) -> dict[str, list[RankEvidence]]:
    """Sort the ranks by node."""
    nodes: dict[str, list[RankEvidence]] = defaultdict(list)
    for item in case.ranks:
        nodes[item.node].append(item)
    return dict(nodes)


def write_reports(cases: Iterable[Case], beat: Beat | None = None) -> Iterator[Report]:
    """Write one report a node on all jobs there; `beat` instead of what each rank last did."""
    vitals: dict[str, list[RankVitals]] = defaultdict(list)
    for case in cases:
        for item in case.ranks:
            if item.presence is not Presence.MISSING:
                vitals[item.node].append(_vitals(case, item, beat))
    for node, ranks in vitals.items():
        yield Report(
            version=PROTOCOL_VERSION,
            node=node,
            agent_id=f"agent of {node}",
            interval_s=1.0,
            ranks=tuple(ranks),
        )


def _vitals(case: Case, item: RankEvidence, beat: Beat | None) -> RankVitals:
    assert item.pid is not None
    return RankVitals(
        job=case.job,
        rank=item.rank,
        pid=item.pid,
        start_time=START_TIME,
        world_size=case.world_size,
        local_rank=item.local_rank,
        found_age_s=100.0,
        beat=beat or item.beat,
        state=item.state,
        wchan=item.wchan,
        movement=item.movement,
        ended=None if beat else item.ended,
    )


def write_batches(case: Case, number: int, dump: int = -1) -> Iterator[DumpBatch]:
    """Write one batch a node, as round `number`: each rank's last dump, or the one at `dump`."""
    stacks = {stack.digest: stack for stack in case.stacks}
    logs = {log.digest: log for log in case.group_logs}
    groups = {group.id: group for group in case.groups}
    for node, ranks in by_node(case).items():
        dumps = tuple(item.dumps[dump] for item in ranks if item.dumps)
        named = dict.fromkeys(digest for taken in dumps for digest in digests_of(taken))
        called = dict.fromkeys(digest for taken in dumps for digest in logs_of(taken))
        joined = dict.fromkeys(logs[digest].group for digest in called)
        yield DumpBatch(
            version=PROTOCOL_VERSION,
            id=f"{case.job} {node} {number}",
            node=node,
            job=case.job,
            round=number,
            reason="deadline",
            held_s=0.0,
            ranks=dumps,
            stacks=tuple(stacks[digest] for digest in named),
            groups=tuple(groups[name] for name in joined),
            group_logs=tuple(logs[digest] for digest in called),
        )
