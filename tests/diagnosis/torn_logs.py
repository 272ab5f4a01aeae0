"""Makes holes in the collective logs of a case, as torch's recorder would: through the agent."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Literal, NamedTuple

from watchtower.evidence.case import Case
from watchtower.readers.collective_calls import Membership, trim
from watchtower.readers.torch_records import parse_records
from watchtower.wire.collectives import GroupLog, ProcessGroup, change_group_log
from watchtower.wire.dumps import RankDump

LAST_CALLS = 24
"""Calls of a group that the ring still has."""


class Hole(NamedTuple):
    """What is wrong with one record of one rank."""

    rank: int
    group: str
    number: int
    kind: Literal["removed", "left open"]


def tear(case: Case, holes: Collection[Hole]) -> Case:
    """Return the case as if the recorders of its ranks had these holes, in every dump."""
    groups = {group.id: group for group in case.groups}
    logs = {log.digest: log for log in case.group_logs}
    torn: dict[str, GroupLog] = {}
    by_rank: dict[int, dict[tuple[str, int], str]] = {}
    for hole in holes:
        by_rank.setdefault(hole.rank, {})[hole.group, hole.number] = hole.kind

    def tear_dump(dump: RankDump, wrong: Mapping[tuple[str, int], str]) -> RankDump:
        if dump.collectives is None:
            return dump
        new = {
            digest: _record_again(logs[digest], groups[logs[digest].group], wrong)
            for digest in dump.collectives.logs
            if digest in logs
        }
        torn.update({log.digest: log for log in new.values()})
        digests = tuple(new[each].digest if each in new else each for each in dump.collectives.logs)
        oldest = new.get(dump.collectives.oldest_open)
        told = replace(dump.collectives, logs=digests, oldest_open=oldest.digest if oldest else "")
        return replace(dump, collectives=told)

    ranks = tuple(
        replace(
            item,
            dumps=tuple(tear_dump(dump, by_rank.get(item.rank, {})) for dump in item.dumps),
        )
        for item in case.ranks
    )
    return replace(case, ranks=ranks, group_logs=tuple(torn.values()))


def find_recorded(case: Case) -> list[Hole]:
    """Return a removed record for each call that a rank's ring has."""
    logs = {log.digest: log for log in case.group_logs}
    return sorted(
        {
            Hole(item.rank, log.group, number, "removed")
            for item in case.ranks
            for dump in item.dumps
            if dump.collectives
            for log in (logs[digest] for digest in dump.collectives.logs if digest in logs)
            for number in range(max(1, log.called - LAST_CALLS + 1), log.called + 1)
        }
    )


def _record_again(
    log: GroupLog, group: ProcessGroup, wrong: Mapping[tuple[str, int], str]
) -> GroupLog:
    """Return the log that the agent makes of these calls."""
    recorder = "gloo" if log.entered >= log.called else "nccl"
    operations = {record.number: record.operation for record in log.records}
    first = max(1, log.called - LAST_CALLS + 1)
    entries = []
    for number in range(first, log.called + 1):
        fault = wrong.get((log.group, number))
        if fault == "removed":
            continue
        over = number <= log.completed and fault is None
        started = over or number <= log.entered
        entries.append(
            {
                "process_group": ["0", "default_pg"],
                "collective_seq_id": number,
                "record_id": number - 1,
                "profiling_name": f"{recorder}:{operations.get(number, 'all_reduce')}",
                "retired": over,
                "state": "started" if started and recorder != "gloo" else "scheduled",
                "timeout_ms": log.timeout_s * 1000,
            }
        )
    membership = Membership(name="0", title=group.name, members=group.members, order=group.order)
    raw = json.dumps({"entries": entries, "pg_config": {"": {}}}).encode()
    ((_, made),) = trim(recorder, parse_records(raw), (membership,)).logs
    known = {record.number: record for record in log.records}
    records = tuple(known.get(record.number, record) for record in made.records)
    return change_group_log(made, group=log.group, records=records)
