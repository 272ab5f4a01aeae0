"""Adds collective records to built ranks: who called what in which group, and what is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tests.diagnosis.builders import Built, a_case
from watchtower.evidence.case import Case
from watchtower.wire.bounds import MAX_GROUP_RECORDS
from watchtower.wire.collectives import (
    CollectiveRecord,
    GroupLog,
    PeerTransfers,
    ProcessGroup,
    RankCollectives,
    format_members,
    make_group_log,
    name_group,
)

Groups = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Calls:
    """The calls of a rank in one group, in order; "all_reduce:float32[8]" has a signature."""

    texts: tuple[str, ...]
    done: int
    queued: bool = False
    """As on NCCL: called, and not known to have begun."""


def calls(text: str, *, open: int = 0, before: int = 0, queued: bool = False) -> Calls:
    """Read "all_reduce barrier"; the last `open` are not over, `before` more came before them."""
    texts = ("all_reduce",) * before + tuple(text.split())
    return Calls(texts, len(texts) - open, queued)


def make_groups(groups: Groups) -> dict[str, ProcessGroup]:
    made: dict[str, ProcessGroup] = {}
    for name, members in groups.items():
        text = format_members(tuple(members))
        order = sum(group.members == text for group in made.values())
        group_id = name_group(text, order)
        made[name] = ProcessGroup(id=group_id, members=text, order=order, name=name)
    return made


def a_log(group: ProcessGroup, made: Calls) -> GroupLog:
    records = [
        CollectiveRecord(
            number=number,
            operation=text.partition(":")[0],
            signature=text.partition(":")[2],
        )
        for number, text in enumerate(made.texts, 1)
    ]
    return make_group_log(
        group=group.id,
        called=len(records),
        entered=-1 if made.queued else len(records),
        completed=made.done,
        records=tuple(records[-MAX_GROUP_RECORDS:]),
    )


def peer(
    rank: int, *, sent: tuple[int, int] = (0, 0), received: tuple[int, int] = (0, 0), opens=True
) -> PeerTransfers:
    """Count (begun, done) sends and receives with a peer."""
    return PeerTransfers(
        peer=rank,
        sends_begun=sent[0],
        sends_done=sent[1],
        receives_begun=received[0],
        receives_done=received[1],
        opened_by_send=opens,
    )


def a_recorded_case(
    built: Sequence[Built],
    groups: Groups,
    made: Mapping[int, Mapping[str, Calls]],
    transfers: Mapping[int, Sequence[PeerTransfers]] | None = None,
    **values: object,
) -> Case:
    """Make a case in which the ranks of `made` gave records; the others gave none.

    Of calls that are queued, a rank has made those of its first group first.
    """
    known = make_groups(groups)
    logs: dict[str, GroupLog] = {}
    recorded = []
    for item in built:
        rank = item.evidence.rank
        if rank not in made:
            recorded.append(item)
            continue
        own = [a_log(known[name], each) for name, each in made[rank].items()]
        logs |= {log.digest: log for log in own}
        opened = (
            log.digest
            for log, each in zip(own, made[rank].values(), strict=True)
            if each.queued and log.completed < log.called
        )
        collectives = RankCollectives(
            logs=tuple(log.digest for log in own),
            peers=tuple((transfers or {}).get(rank, ())),
            oldest_open=next(opened, ""),
        )
        dumps = tuple(replace(dump, collectives=collectives) for dump in item.evidence.dumps)
        recorded.append(replace(item, evidence=replace(item.evidence, dumps=dumps)))
    return a_case(recorded, groups=tuple(known.values()), group_logs=tuple(logs.values()), **values)
