"""Makes the case that agents would have collected: stacks, records, movement, ends of processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tests.synthesis.layout import Layout, make_groups
from tests.synthesis.program import Call, Calls, Outcome, Place
from watchtower.evidence.case import Case, NodeEvidence, Presence, RankEvidence
from watchtower.wire.bounds import MAX_GROUP_RECORDS
from watchtower.wire.collectives import (
    CollectiveRecord,
    GroupLog,
    PeerTransfers,
    ProcessGroup,
    RankCollectives,
    change_group_log,
    format_members,
    make_group_log,
    name_group,
    parse_members,
)
from watchtower.wire.dumps import KernelWait, RankDump, ThreadDump
from watchtower.wire.report import Beat, Ending, Movement, ProcessState
from watchtower.wire.stacks import Frame, Stack, make_stack

PER_NODE = 8
SLEEPING = ProcessState.SLEEPING
C10D = "torch/distributed/distributed_c10d.py"
IN_FUTEX = KernelWait(state=SLEEPING, syscall="futex")
TIMEOUT_S = 600.0
"""Timeout of every collective: torch sets this one on NCCL."""

LOOP = (12,)
"""The loop over steps begins in line 12 of the training program."""


@dataclass(frozen=True)
class Appearance:
    """The evidence of a rank that is not in its program's calls."""

    frames: tuple[Frame, ...] = ()
    state: ProcessState = SLEEPING
    kernel: KernelWait = IN_FUTEX
    cpu_cores: float = 0.0
    active: bool = False
    presence: Presence = Presence.LIVE
    ended: Ending | None = None
    answers: bool = True
    """Its record socket does."""


@dataclass(frozen=True)
class Recording:
    """The records of the library."""

    kept: bool = True
    """There are records at all."""
    queued: bool = False
    """As NCCL's: called, and not known to have begun."""
    counts: frozenset[str] = frozenset({"send", "recv"})
    """Messages of these kinds are blocking calls, which are counted; others are `isend`, `irecv`,
    or NCCL's, of which nothing tells."""


@dataclass
class Maker:
    """Makes cases of one layout."""

    layout: Layout
    recording: Recording = Recording()
    stacks: dict[str, Stack] = field(default_factory=dict)
    logs: dict[str, GroupLog] = field(default_factory=dict)
    made_logs: dict[tuple[object, ...], GroupLog] = field(default_factory=dict)
    """By what they are made of: most ranks of a large job have the same ones."""

    def make(self, outcome: Outcome, appearances: Mapping[int, Appearance]) -> Case:
        """Make the case; `appearances` are of the ranks with a fault of their own."""
        groups = make_groups(self.layout.groups)
        ranks = tuple(
            self._rank(rank, outcome, appearances.get(rank), groups)
            for rank in range(self.layout.size)
        )
        nodes = sorted({item.node for item in ranks if item.node})
        kept = self.recording.kept
        return Case(
            job="imagined",
            generation=1,
            world_size=self.layout.size,
            typical_step_s=1.0,
            stalled_for_s=9.0,
            settle_s=2.0,
            moving_cpu_cores=0.05,
            ranks=ranks,
            nodes=tuple(NodeEvidence(node=node, silent_for_s=0.5) for node in nodes),
            stacks=tuple(self.stacks.values()),
            groups=tuple(groups.values()) if kept else (),
            group_logs=tuple(self.logs.values()) if kept else (),
        )

    def _rank(
        self,
        rank: int,
        outcome: Outcome,
        appearance: Appearance | None,
        groups: Mapping[str, ProcessGroup],
    ) -> RankEvidence:
        appearance = appearance or Appearance()
        place, calls = outcome.places[rank], outcome.programs[rank]
        frames = appearance.frames
        if not frames:
            frames = _waiting_frames(calls[place.at]) if place.at < len(calls) else _stepping()
        stack = make_stack(frames)
        stack = self.stacks.setdefault(stack.digest, stack)
        dumps: tuple[RankDump, ...] = ()
        if appearance.presence is Presence.LIVE:
            dump = RankDump(
                rank=rank,
                pid=1000 + rank,
                start_time=1,
                kernel=replace(appearance.kernel, state=appearance.state),
                step=outcome.history,
                threads=(
                    ThreadDump(
                        name="MainThread", digest=stack.digest, main=True, active=appearance.active
                    ),
                ),
                collectives=self._collectives(rank, outcome, groups)
                if appearance.answers
                else None,
            )
            dumps = (dump, dump)
        return RankEvidence(
            rank=rank,
            presence=appearance.presence,
            node=f"node-{rank // PER_NODE:05}",
            pid=1000 + rank,
            local_rank=rank % PER_NODE,
            beat=Beat(step=outcome.history, age_s=9.0),
            state=appearance.state,
            movement=Movement(cpu_cores=appearance.cpu_cores),
            ended=appearance.ended,
            dumps=dumps,
        )

    def _collectives(
        self, rank: int, outcome: Outcome, groups: Mapping[str, ProcessGroup]
    ) -> RankCollectives | None:
        if not self.recording.kept:
            return None
        calls, place = outcome.programs[rank], outcome.places[rank]
        made = calls[: place.at + place.inside]
        digests = []
        for name in self.layout.names_of(rank):
            log = self._log(groups[name], outcome, rank, made)
            digests.append(log.digest)
        peers = _peers(outcome, rank, made, self.recording.counts)
        return RankCollectives(logs=tuple(digests), peers=peers)

    def _log(self, group: ProcessGroup, outcome: Outcome, rank: int, made: Calls) -> GroupLog:
        own = [call for call in made if call.group == group.name]
        usual = [call for call in outcome.usual[rank] if call.group == group.name]
        before = outcome.history * len(usual)
        called = before + len(own)
        under_way = _under_way(outcome.places[rank], made)
        completed = called - sum(call.group == group.name for call in under_way)
        last = [*usual * 2, *own] if usual else own
        key = (group.id, called, completed, *((call.operation, call.signature) for call in last))
        if key not in self.made_logs:
            self.made_logs[key] = self._make_log(group.id, called, completed, last)
        return self.made_logs[key]

    def _make_log(self, group: str, called: int, completed: int, last: Calls) -> GroupLog:
        records = tuple(
            CollectiveRecord(
                number=called - len(last) + index + 1,
                operation=call.operation,
                signature=call.signature,
            )
            for index, call in enumerate(last)
        )[-MAX_GROUP_RECORDS:]
        log = make_group_log(
            group=group,
            called=called,
            entered=-1 if self.recording.queued else called,
            completed=completed,
            records=records,
            timeout_s=TIMEOUT_S,
        )
        return self.logs.setdefault(log.digest, log)


def _under_way(place: Place, made: Calls) -> Calls:
    """Return the calls that are not over; they are the last, as calls end in order."""
    return made[len(made) - place.under_way :]


def _peers(
    outcome: Outcome, rank: int, made: Calls, counts: frozenset[str]
) -> tuple[PeerTransfers, ...]:
    programs = (outcome.usual[rank], made, _under_way(outcome.places[rank], made))
    usual, now, is_open = (
        Counter((call.operation, call.peer) for call in calls if call.operation in counts)
        for calls in programs
    )
    opened: dict[int, bool] = {}
    for call in outcome.usual[rank]:
        if call.operation in counts:
            opened.setdefault(call.peer, call.operation == "send")
    rows = []
    for peer, by_send in opened.items():
        sends = outcome.history * usual["send", peer] + now["send", peer]
        receives = outcome.history * usual["recv", peer] + now["recv", peer]
        rows.append(
            PeerTransfers(
                peer=peer,
                sends_begun=sends,
                sends_done=sends - is_open["send", peer],
                receives_begun=receives,
                receives_done=receives - is_open["recv", peer],
                opened_by_send=by_send,
            )
        )
    return tuple(rows)


def own(function: str, line: int, file: str = "/job/train.py", *, looped: bool = False) -> Frame:
    """A frame of the user's own code."""
    return Frame(
        function=function, file=file, line=line, has_source=True, loops=LOOP if looped else ()
    )


def _waiting_frames(call: Call) -> tuple[Frame, ...]:
    return (
        Frame(function=call.operation, file=C10D, line=2000, library=True),
        own("train", call.line, looped=call.line < 60),
        own("<module>", 80),
    )


def _stepping() -> tuple[Frame, ...]:
    return (own("train", 50, looped=True), own("<module>", 80))


def drop_dumps(case: Case, ranks: Iterable[int]) -> Case:
    """Take the dumps of these ranks away, as when py-spy and their socket did not answer."""
    gone = set(ranks)
    return replace(
        case,
        ranks=tuple(replace(item, dumps=()) if item.rank in gone else item for item in case.ranks),
    )


def renumber(case: Case, order: Sequence[int]) -> Case:
    """Give rank N the number order[N], everywhere in the case."""
    names: dict[str, str] = {}
    groups = []
    for group in case.groups:
        members = parse_members(group.members, case.world_size)
        text = format_members(tuple(sorted(order[rank] for rank in members)))
        names[group.id] = name_group(text, group.order)
        groups.append(replace(group, id=names[group.id], members=text))
    logs = {log.digest: change_group_log(log, group=names[log.group]) for log in case.group_logs}
    ranks = [_renumber_rank(item, order, logs) for item in case.ranks]
    return replace(
        case,
        ranks=tuple(sorted(ranks, key=lambda item: item.rank)),
        groups=tuple(groups),
        group_logs=tuple(logs.values()),
    )


def _renumber_rank(
    item: RankEvidence, order: Sequence[int], logs: Mapping[str, GroupLog]
) -> RankEvidence:
    dumps = tuple(
        replace(
            dump,
            rank=order[dump.rank],
            collectives=dump.collectives
            and replace(
                dump.collectives,
                logs=tuple(logs[digest].digest for digest in dump.collectives.logs),
                peers=tuple(replace(row, peer=order[row.peer]) for row in dump.collectives.peers),
            ),
        )
        for dump in item.dumps
    )
    return replace(item, rank=order[item.rank], dumps=dumps)
