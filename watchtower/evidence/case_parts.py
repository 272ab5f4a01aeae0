"""The parts of a case, in the form in which the diagnosing process receives it.

The tower does not decode dumps: it stores the bodies as it received them, and records which body
contains the dumps of which rank. Only the diagnosing process decodes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypedDict

from watchtower.evidence.case import Case, Presence, RankEvidence
from watchtower.evidence.contents import DumpContents, digests_of, logs_of
from watchtower.wire.collectives import GroupLog, ProcessGroup
from watchtower.wire.dumps import DumpBatch, RankDump
from watchtower.wire.report import Beat
from watchtower.wire.stacks import Stack


class DumpPlace(NamedTuple):
    """The place of one dump: a process of a rank, and the body that contains its dump."""

    rank: int
    pid: int
    start_time: int
    body: int
    """Index of the body, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseParts:
    """A case without its dumps, and the places of these dumps."""

    case: Case
    dumps: tuple[DumpPlace, ...]
    """The dumps of each rank are in ascending order of time."""


def join_case(parts: CaseParts, batches: Sequence[DumpBatch], earlier: Case | None = None) -> Case:
    """Return the case with its dumps. `batches` are the decoded bodies.

    `earlier` is the case of the same stall from before the tower was restarted.
    """
    case, contents = parts.case, DumpContents()
    dumps = _find_dumps(parts.dumps, batches)
    for number, batch in enumerate(batches):
        contents.add(batch, dumps.by_body.get(number, ()))
    ranks = tuple(
        item.with_dumps(tuple(dumps.by_rank[item.rank])) if item.rank in dumps.by_rank else item
        for item in case.ranks
    )
    case = replace(case, ranks=ranks, **_contents_of(ranks, contents))
    return case if earlier is None else _carry_over(case, earlier)


class _Found(NamedTuple):
    by_rank: dict[int, list[RankDump]]
    by_body: dict[int, list[RankDump]]


def _find_dumps(places: Sequence[DumpPlace], batches: Sequence[DumpBatch]) -> _Found:
    held = [
        {(dump.rank, dump.pid, dump.start_time): dump for dump in batch.ranks} for batch in batches
    ]
    found = _Found({}, {})
    for place in places:
        dump = held[place.body].get((place.rank, place.pid, place.start_time))
        if dump is not None:
            found.by_rank.setdefault(place.rank, []).append(dump)
            found.by_body.setdefault(place.body, []).append(dump)
    return found


def _carry_over(case: Case, earlier: Case) -> Case:
    """Add ranks that are no longer reported, as they were in an earlier case of the same stall.

    If tower and agent were restarted after a rank died, no later report contains that rank.
    """
    elapsed_s = max(0.0, case.stalled_for_s - earlier.stalled_for_s)
    known = {r.rank: r for r in earlier.ranks if r.presence is not Presence.MISSING}
    ranks = tuple(
        _age_evidence(known[r.rank], elapsed_s)
        if r.presence is Presence.MISSING and r.rank in known
        else r
        for r in case.ranks
    )
    both = DumpContents(
        stacks={each.digest: each for each in (*earlier.stacks, *case.stacks)},
        groups={each.id: each for each in (*earlier.groups, *case.groups)},
        group_logs={each.digest: each for each in (*earlier.group_logs, *case.group_logs)},
    )
    return replace(case, ranks=ranks, **_contents_of(ranks, both))


def _age_evidence(known: RankEvidence, elapsed_s: float) -> RankEvidence:
    ended = known.ended
    return replace(
        known,
        presence=Presence.ENDED if ended else Presence.SILENT,
        beat=age_beat(known.beat, elapsed_s),
        ended=replace(ended, age_s=ended.age_s + elapsed_s) if ended else None,
    )


def age_beat(beat: Beat | None, elapsed_s: float) -> Beat | None:
    """Return the beat with its ages increased by `elapsed_s` seconds; None if there is no beat."""
    if beat is None:
        return None
    elapsed_s = max(0.0, elapsed_s)
    # `dataclasses.replace` takes twice as long, and a job has thousands of ranks.
    return Beat(
        step=beat.step,
        age_s=beat.age_s + elapsed_s,
        phase=beat.phase,
        phase_age_s=beat.phase_age_s + elapsed_s if beat.phase else 0.0,
        advanced=beat.advanced,
        interval_s=beat.interval_s,
        loss_is_bad=beat.loss_is_bad,
        exception_type=beat.exception_type,
        exception_text=beat.exception_text,
    )


class _Contents(TypedDict):
    stacks: tuple[Stack, ...]
    groups: tuple[ProcessGroup, ...]
    group_logs: tuple[GroupLog, ...]


def _contents_of(ranks: tuple[RankEvidence, ...], contents: DumpContents) -> _Contents:
    """Return the stacks, groups and logs that the dumps of these ranks refer to.

    They are sorted by digest or id, so that the same dumps always give the same case.
    """
    dumps = [dump for rank in ranks for dump in rank.dumps]
    named = {digest for dump in dumps for digest in digests_of(dump)}
    logs = {digest for dump in dumps for digest in logs_of(dump)} & contents.group_logs.keys()
    groups = {contents.group_logs[digest].group for digest in logs} & contents.groups.keys()
    return _Contents(
        stacks=tuple(contents.stacks[d] for d in sorted(named & contents.stacks.keys())),
        groups=tuple(contents.groups[name] for name in sorted(groups)),
        group_logs=tuple(contents.group_logs[digest] for digest in sorted(logs)),
    )
