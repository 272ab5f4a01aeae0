"""Adds to a case what its ranks have written: the lines that agents have sent of their output.

The same readers and the same rules as for files that people have. What an agent has seen itself
counts more: lines add a collective log where the case has none, and the exception of a rank that
has ended where none is known.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace

from watchtower.evidence.case import Case, Presence, RankEvidence, logs_of
from watchtower.evidence.exits import DeathKind, classify_ending
from watchtower.evidence.written import recent_lines
from watchtower.fleet.found_case import make_case
from watchtower.fleet.found_ends import GIVING_UP
from watchtower.fleet.found_files import sort_findings
from watchtower.readers import logs
from watchtower.readers.findings import FileFound, Finding, Known, Owner
from watchtower.wire.collectives import GroupLog, RankCollectives
from watchtower.wire.dumps import MAX_WRITTEN, WrittenLines

GAVE_UP = GIVING_UP | {DeathKind.EXIT_ONE}
"""How a rank ends that waited, or that was ended because others had."""


def add_written(case: Case) -> Case:
    """Return the case with what its ranks have written since they stopped."""
    files = [
        _read(item.rank, each)
        for item in case.ranks
        for each in recent_lines(item, case.stalled_for_s)
    ]
    if not any(file.findings for file in files):
        return case
    size = case.world_size
    found = replace(sort_findings(files), world_size=size, proven_size=size)
    made = make_case(case.job, found)
    has_given_up = found.has_timed_out or bool(found.missing_in_barrier)
    is_over = has_given_up and all(item.presence is Presence.ENDED for item in case.ranks)
    known = {group.id for group in case.groups}
    logs_of_added = {log.digest: log for log in made.group_logs if log.group not in known}
    by_rank = {item.rank: item for item in made.ranks}
    ranks = tuple(
        _join(item, by_rank[item.rank], logs_of_added, is_over=is_over)
        if item.rank in by_rank
        else item
        for item in case.ranks
    )
    used = {log for item in ranks for dump in item.dumps[-1:] for log in logs_of(dump)}
    added = [log for digest, log in logs_of_added.items() if digest in used]
    groups = {log.group for log in added}
    return replace(
        case,
        ranks=ranks,
        stalled_for_s=max(case.stalled_for_s, made.stalled_for_s if is_over else 0.0),
        groups=(*case.groups, *(each for each in made.groups if each.id in groups)),
        group_logs=(*case.group_logs, *added),
    )


def _read(rank: int, written: WrittenLines) -> FileFound:
    """Return what readers find in lines that a rank wrote."""
    found = logs.read("", io.BytesIO(f"{written.text}\n".encode("utf-8", "replace")))
    owner = Owner(rank, Known.FILE_NAME) if written.own else Owner()

    def name(finding: Finding) -> Finding:
        is_known = finding.owner.rank >= 0
        return finding if is_known or not written.own else replace(finding, owner=owner)

    return replace(found, name=written.file, owner=owner, findings=tuple(map(name, found.findings)))


def _join(
    item: RankEvidence, made: RankEvidence, added: Mapping[str, GroupLog], *, is_over: bool
) -> RankEvidence:
    """Return the evidence of a rank with what its output shows and the agent did not see.

    `is_over`: all ranks have ended, because they waited until they gave up. Then where each one was
    counts, and not how it ended.
    """
    item = _explain_end(item, made)
    if is_over and (made.presence is Presence.WROTE or classify_ending(item.ended) in GAVE_UP):
        written = tuple(line for each in item.dumps for line in each.written)[-MAX_WRITTEN:]
        dumps = (replace(dump, pid=item.pid or 0, written=written) for dump in made.dumps)
        return replace(
            made,
            node=item.node,
            pid=item.pid,
            local_rank=item.local_rank,
            role=item.role,
            beat=item.beat,
            dumps=tuple(dumps),
        )
    last = item.dumps[-1] if item.dumps else None
    digests = tuple(d for dump in made.dumps[-1:] for d in logs_of(dump) if d in added)
    if last is None or not digests or logs_of(last):
        return item
    own = last.collectives or RankCollectives()
    joined = replace(last, collectives=replace(own, logs=digests))
    return replace(item, dumps=(*item.dumps[:-1], joined))


def _explain_end(item: RankEvidence, made: RankEvidence) -> RankEvidence:
    """Return the evidence of an ended rank with its exception, if only its output has it."""
    if item.ended is None or item.ended.exception_type or made.ended is None:
        return item
    ended = replace(
        item.ended,
        exception_type=made.ended.exception_type,
        exception_text=made.ended.exception_text,
    )
    return replace(item, ended=ended)
