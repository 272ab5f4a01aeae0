"""Adds to a case what its ranks have written: the lines that agents have sent of their output.

The same readers and the same rules as for files that people have. What an agent has seen itself
counts more: lines add a collective log where the case has none, and the exception of a rank that
has ended where none is known.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace

from watchtower.evidence.case import Case, RankEvidence, logs_of
from watchtower.evidence.written import recent_lines
from watchtower.fleet.found_case import make_case
from watchtower.fleet.found_files import sort_findings
from watchtower.readers import logs
from watchtower.readers.findings import FileFound, Finding, Known, Owner
from watchtower.wire.collectives import GroupLog, RankCollectives
from watchtower.wire.dumps import WrittenLines


def add_written(case: Case) -> Case:
    """Return the case with what its ranks have written since they stopped."""
    files = [
        _read(item.rank, each)
        for item in case.ranks
        for each in recent_lines(item, case.stalled_for_s)
    ]
    found = replace(sort_findings(files), world_size=case.world_size)
    if not found.ranks:
        return case
    made = make_case(case.job, found)
    by_rank = {item.rank: item for item in made.ranks}
    known = {group.id for group in case.groups}
    added = {group.id: group for group in made.groups if group.id not in known}
    logs_of_added = {log.digest: log for log in made.group_logs if log.group in added}
    ranks = tuple(
        _join(item, by_rank[item.rank], logs_of_added) if item.rank in by_rank else item
        for item in case.ranks
    )
    used = {log for item in ranks for dump in item.dumps[-1:] for log in logs_of(dump)}
    new = [log for digest, log in logs_of_added.items() if digest in used]
    groups = [added[name] for name in sorted({log.group for log in new})]
    return replace(
        case,
        ranks=ranks,
        groups=(*case.groups, *groups),
        group_logs=(*case.group_logs, *new),
    )


def _read(rank: int, written: WrittenLines) -> FileFound:
    """Return what readers find in lines that a rank wrote."""
    found = logs.read("", io.BytesIO(f"{written.text}\n".encode("utf-8", "replace")))
    owner = Owner(rank, Known.FILE_NAME) if written.own else Owner()

    def name(finding: Finding) -> Finding:
        is_known = finding.owner.rank >= 0
        return finding if is_known or not written.own else replace(finding, owner=owner)

    return replace(found, name=written.file, owner=owner, findings=tuple(map(name, found.findings)))


def _join(item: RankEvidence, made: RankEvidence, added: Mapping[str, GroupLog]) -> RankEvidence:
    """Return the evidence of a rank with its logs by its output, if it has a dump and no others."""
    last = item.dumps[-1] if item.dumps else None
    digests = tuple(d for dump in made.dumps[-1:] for d in logs_of(dump) if d in added)
    if last is None or not digests or logs_of(last):
        return item
    own = last.collectives or RankCollectives()
    joined = replace(last, collectives=replace(own, logs=digests))
    return replace(item, dumps=(*item.dumps[:-1], joined))
