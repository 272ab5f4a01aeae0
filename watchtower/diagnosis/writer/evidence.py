"""The sentence of each kind of reason: what a verdict shows as evidence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeVar

from watchtower.diagnosis.accusation import Reason, ReasonKind
from watchtower.diagnosis.bystanders import Bystander, Worker
from watchtower.diagnosis.deaths import Death
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position, Shape
from watchtower.diagnosis.separation import Separation
from watchtower.diagnosis.subjects import (
    AllEntered,
    CalledBeside,
    Children,
    Deaths,
    FaultyGpu,
    Held,
    Lingering,
    LostNode,
    OddGpu,
    Path,
    Ranks,
    ReasonSubject,
    Steps,
    StuckDriver,
    WaitShares,
    expect,
)
from watchtower.diagnosis.waits.graph import End
from watchtower.diagnosis.waits.messages import MissingSend
from watchtower.diagnosis.waits.mismatches import Split
from watchtower.diagnosis.waits.points import PointKind, WaitPoint, describe_group, name_point
from watchtower.diagnosis.writer.endings import (
    write_aftermath_in_order,
    write_ending,
    write_last_words,
)
from watchtower.diagnosis.writer.hardware import (
    name_error,
    write_ecc_errors,
    write_gpu_error,
    write_link_fault,
    write_odd_gpu,
    write_separation,
    write_slowed_gpu,
    write_stuck_driver,
)
from watchtower.diagnosis.writer.proofs import write_gone_on, write_proof
from watchtower.diagnosis.writer.words import (
    MAX_WAITS,
    describe_children,
    describe_thread,
    describe_worker,
    name_wait,
    name_waits,
    write_cycle,
    write_held,
    write_loop,
    write_owner,
    write_pace,
    write_phase,
    write_timer,
    write_unanswered,
)
from watchtower.evidence.gpus import EccErrors, GpuUse
from watchtower.evidence.links import LinkFault
from watchtower.evidence.stacktree import describe_frames
from watchtower.wire.dumps import ThreadDump
from watchtower.wire.observations import Observation
from watchtower.wire.verdict import Evidence
from watchtower.writing.ranksets import format_ranks, name_ranks
from watchtower.writing.text import clean, count_ranks, format_duration, join_words

MAX_ERRORS = 4
"""Later errors of a GPU that are named."""

MAX_HOPS = 4
"""Waits shown of one path; of a longer one, the first and the last ones."""


def write_evidence(picture: Picture, reason: Reason) -> Evidence:
    """Make the evidence of a reason."""
    text, ranks = SENTENCES[reason.kind](picture, reason.about), format_ranks(reason.ranks)
    if reason.kind in OF_ONE_RANK:
        text = f"rank {reason.ranks[0]}: {text}"
    return Evidence(source=reason.kind.family, text=text, ranks=ranks, weight=reason.weight)


OF_ONE_RANK = frozenset(
    {
        ReasonKind.STACK,
        ReasonKind.KERNEL,
        ReasonKind.STEP,
        ReasonKind.THREAD,
        ReasonKind.LOCK,
        ReasonKind.CHILD,
        ReasonKind.WORKER,
        ReasonKind.MOVEMENT,
        ReasonKind.SOCKET,
        ReasonKind.UNANSWERED,
        ReasonKind.GIL,
        ReasonKind.LINGERS,
        ReasonKind.AHEAD,
        ReasonKind.GPU_ERROR,
        ReasonKind.GPU_LOAD,
        ReasonKind.GPU_DRIVER,
        ReasonKind.GPU_CLOCK,
        ReasonKind.GPU_MEMORY,
        ReasonKind.CPU_LIMIT,
    }
)
"""Their sentences begin with the rank."""


def _write_stack(_: Picture, position: Position) -> str:
    stays = {
        Shape.SAME: "unchanged in two dumps",
        Shape.NEAR: "same user frames in two dumps",
        Shape.CHANGED: "changed since the dump before",
        Shape.UNKNOWN: "only one dump",
    }[position.shape]
    frames = position.stack.frames if position.stack else ()
    return f"{clean(describe_frames(frames), 400)} ({stays})"


def _write_same_call(_: Picture, ranks: Ranks) -> str:
    live = ranks.items
    places = _sort_by_place(live)
    stays = ", unchanged in two dumps" if all(item.unchanged for item in live) else ""
    if len(places) == 1:
        return f"all {count_ranks(len(live))} wait in {next(iter(places))}{stays}"
    each = [f"{name_ranks(i.rank for i in items)} in {place}" for place, items in places.items()]
    return f"the ranks wait: {join_words(each)}{stays}"


def _sort_by_place(live: Sequence[Position]) -> dict[str, list[Position]]:
    """Sort by call and line, where most are first; all after the last place shown are one."""
    by_place: dict[str, list[Position]] = defaultdict(list)
    for item in live:
        at = f" at {clean(item.reading.what_at)}" if item.reading else ""
        by_place[f"{name_wait([item])}{at}"].append(item)
    places = sorted(by_place.items(), key=lambda each: (-len(each[1]), each[1][0].rank))
    shown, rest = places[:MAX_WAITS], [item for _, items in places[MAX_WAITS:] for item in items]
    return dict(shown) | ({"other calls": rest} if rest else {})


def _write_wait_counts(_: Picture, found: WaitShares) -> str:
    samples, waits = found.slow.evidence.samples, found.slow.evidence.waits
    return (
        f"found waiting for other ranks: rank {found.slow.rank} in {waits / samples:.0%} of "
        f"{samples} samples, the others in {_write_shares(found.others)}"
    )


def _write_even_counts(_: Picture, counted: Ranks) -> str:
    evidence = [item.evidence for item in counted.items]
    return (
        f"no rank waits much less than the others: {count_ranks(len(evidence))} waited for others "
        f"in {_write_shares([each.waits / each.samples for each in evidence])} of their samples"
    )


def _write_shares(shares: Sequence[float]) -> str:
    least, most = f"{min(shares):.0%}", f"{max(shares):.0%}"
    return least if least == most else f"{least} to {most}"


def _write_kernel(_: Picture, position: Position) -> str:
    return f"state {position.state.value}, {position.wait.text}{write_timer(position)}"


def _write_step(_: Picture, found: Steps) -> str:
    position, low, high = found.position, found.lowest, found.highest
    steps = str(low) if low == high else f"{low} to {high}"
    return (
        f"last step {position.step}, {format_duration(position.age_s)} ago{write_phase(position)}; "
        f"the waiting ranks are at step {steps}"
    )


def _write_peers(_: Picture, ranks: Ranks) -> str:
    waiting = ranks.items
    presumed = all(item.presumed for item in waiting)
    how = " (inferred: most ranks are there)" if presumed else ""
    verb = "waits" if len(waiting) == 1 else "wait"
    return f"{count_ranks(len(waiting))} {verb} in {name_waits(waiting)}{how}"


def _write_gave_up(_: Picture, ranks: Ranks) -> str:
    left = ranks.items
    return f"{count_ranks(len(left))} waited in {name_wait(left)} during this stall, then gave up"


def _write_other_call(_: Picture, split: Split) -> str:
    few, many = name_ranks(i.rank for i in split.few), name_ranks(i.rank for i in split.many)
    at = f"{split.at}: " if split.at else ""
    calls = clean(split.many_call, 120), clean(split.few_call, 120)
    return f"{at}{many} called {calls[0]}; {few} called {calls[1]}"


def _write_path(_: Picture, found: Path) -> str:
    """Return "rank 0 waits in ... for rank 2; rank 2 waits in ... for rank 3; ..."."""
    path, end = found.hops, found.end
    shown = [*path[:1], *path[-MAX_HOPS + 1 :]] if len(path) > MAX_HOPS else list(path)
    parts = []
    for index, (rank, point) in enumerate(shown):
        whom = shown[index + 1][0] if index + 1 < len(shown) else end.ranks[0]
        skipped = " (and for ranks between)" if len(path) > MAX_HOPS and index == 0 else ""
        parts.append(f"rank {rank} waits in {name_point(point)} for rank {whom}{skipped}")
    return "; ".join([*parts, _write_absence(shown[-1][1], end.ranks[0])])


def _write_absence(point: WaitPoint, rank: int) -> str:
    if rank not in point.missing:
        return f"it is not known whether rank {rank} has come to that call"
    if point.kind is PointKind.RECEIVE:
        return f"rank {rank} has not sent it"
    verb = "entered" if point.kind is PointKind.COLLECTIVE else "received"
    return f"rank {rank} has not {verb} it"


def _write_called_beside(_: Picture, found: CalledBeside) -> str:
    point = found.point
    assert point.group is not None
    threads = ", ".join(f"`{clean(name, 60)}`" for name, _ in sorted(found.comm_threads.roots))
    return (
        f"the collectives of {describe_group(point.group)} run in {threads}: "
        f"{name_ranks(point.waiting)} made call number {point.number}; "
        f"the last call of rank {found.rank} is number {found.called}"
    )


def _write_message(_: Picture, missing: MissingSend) -> str:
    sender, receiver = f"rank {missing.sender}", f"rank {missing.receiver}"
    return (
        f"{receiver} waits in recv for message {missing.number} from {sender}; "
        f"{sender} has begun {missing.number - 1} sends to {receiver}"
    )


def _write_all_entered(_: Picture, found: AllEntered) -> str:
    point, certain, left = found.point, found.certain, found.left
    did = "entered" if certain else "called"
    stays = f"only {name_ranks(left)} left it" if left else "no member has left it"
    begun = "" if certain else "; whether the call has begun is not recorded"
    return f"all members have {did} {name_point(point)}{begun}; {stays}"


def _write_lock(_: Picture, position: Position) -> str:
    dump = position.last_dump
    others = len(dump.threads) - 1 if dump else 0
    rest = f"also unchanged: {others} other Python threads" if others else "no other Python thread"
    return f"waits for a lock in both dumps; {rest}"


def _write_movement(_: Picture, position: Position) -> str:
    movement = position.evidence.movement
    stored = movement.write_bytes_per_s + movement.read_bytes_per_s
    traffic = f"{stored / 1e6:.1f} MB/s of storage traffic" if movement.io_readable else ""
    used = f"{movement.cpu_cores:.2f} cores used"
    sent = f"{movement.socket_bytes_per_s / 1e6:.1f} MB/s over TCP" if position.transfers else ""
    return ", ".join(filter(None, (used, traffic, sent)))


def _write_socket(_: Picture, position: Position) -> str:
    dump, stack = position.last_dump, position.stack
    threads = dump.threads if dump else ()
    inside = [thread for thread in threads if stack and thread.digest == stack.digest]
    named = inside and not any(thread.main for thread in inside)
    thread = f"its thread `{clean(inside[0].name, 60)}`" if named else "its main thread"
    return f"{thread} is in a network call in both dumps"


def _write_gil(picture: Picture, owner: ThreadDump) -> str:
    return f"{write_owner(picture, owner)}, in two dumps"


def _write_end(_: Picture, death: Death) -> str:
    return f"rank {death.rank} {write_ending(death)}"


def _write_lingers(_: Picture, found: Lingering) -> str:
    raised = write_last_words(found)
    words = f"; it raised {clean(raised)}" if raised else ""
    return f"its main thread has left the program and is exiting{words}"


def _write_aftermath(_: Picture, deaths: Deaths) -> str:
    return write_aftermath_in_order(deaths.others, deaths.first[0])


def _write_held(_: Picture, held: Held) -> str:
    return f"rank {held.position.rank} {write_held(held.cause, held.first)}"


def _write_not_seen(picture: Picture, missing: Ranks) -> str:
    case = picture.case
    seen = count_ranks(len(case.ranks) - len(missing.items))
    return f"{seen} of {case.world_size} were seen in {format_duration(case.stalled_for_s)}"


def _write_node(picture: Picture, lost: LostNode) -> str:
    ago = format_duration(picture.case.stalled_for_s)
    when = (
        f"the job stopped {ago} ago" if lost.with_the_job else f"the job made steps until {ago} ago"
    )
    return (
        f"node {clean(lost.node, 64)} ({count_ranks(len(lost.ranks))}) has not reported for "
        f"{format_duration(lost.silent_for_s)}; {when}"
    )


def _write_gpu_error(_: Picture, found: FaultyGpu) -> str:
    others = found.errors[1:]
    codes = join_words(list(dict.fromkeys(name_error(each) for each in others[:MAX_ERRORS])))
    then = f"; then {codes}" if others else ""
    return f"{write_gpu_error(found)}{then}"


def _write_odd(_: Picture, split: Split) -> str:
    return f"{name_ranks(item.rank for item in split.few)}: {write_proof(split.proof)}"


def _write_loop(_: Picture, split: Split) -> str:
    return f"{name_ranks(item.rank for item in split.few)}: {write_loop(split.order)}"


T = TypeVar("T")
Sentence = Callable[[Picture, ReasonSubject], str]


def _about(kind: type[T], write: Callable[[Picture, T], str]) -> Sentence:
    """Return how a reason about something of this type reads."""
    return lambda picture, subject: write(picture, expect(subject, kind))


SENTENCES: dict[ReasonKind, Sentence] = {
    ReasonKind.STACK: _about(Position, _write_stack),
    ReasonKind.SAME_CALL: _about(Ranks, _write_same_call),
    ReasonKind.WAIT_COUNTS: _about(WaitShares, _write_wait_counts),
    ReasonKind.EVEN_COUNTS: _about(Ranks, _write_even_counts),
    ReasonKind.KERNEL: _about(Position, _write_kernel),
    ReasonKind.STEP: _about(Steps, _write_step),
    ReasonKind.PACE: lambda picture, _: write_pace(picture),
    ReasonKind.PEERS: _about(Ranks, _write_peers),
    ReasonKind.GAVE_UP: _about(Ranks, _write_gave_up),
    ReasonKind.OTHER_LINE: _about(Split, _write_other_call),
    ReasonKind.PATH: _about(Path, _write_path),
    ReasonKind.CALLED_BESIDE: _about(CalledBeside, _write_called_beside),
    ReasonKind.OTHER_CALL: _about(Split, _write_other_call),
    ReasonKind.MESSAGE: _about(MissingSend, _write_message),
    ReasonKind.CYCLE: _about(End, lambda _, cycle: f"a cycle: {join_words(write_cycle(cycle))}"),
    ReasonKind.ALL_ENTERED: _about(AllEntered, _write_all_entered),
    ReasonKind.THREAD: _about(Bystander, lambda _, bystander: describe_thread(bystander)),
    ReasonKind.LOCK: _about(Position, _write_lock),
    ReasonKind.CHILD: _about(Children, lambda _, children: describe_children(children.found)),
    ReasonKind.WORKER: _about(Worker, lambda _, worker: f"worker {describe_worker(worker)}"),
    ReasonKind.MOVEMENT: _about(Position, _write_movement),
    ReasonKind.SOCKET: _about(Position, _write_socket),
    ReasonKind.UNANSWERED: _about(Position, lambda _, position: write_unanswered(position)),
    ReasonKind.GIL: _about(ThreadDump, _write_gil),
    ReasonKind.ENDING: _about(Death, _write_end),
    ReasonKind.LINGERS: _about(Lingering, _write_lingers),
    ReasonKind.AFTERMATH: _about(Deaths, _write_aftermath),
    ReasonKind.HELD: _about(Held, _write_held),
    ReasonKind.NOT_SEEN: _about(Ranks, _write_not_seen),
    ReasonKind.NODE: _about(LostNode, _write_node),
    ReasonKind.LINK: _about(LinkFault, lambda _, fault: write_link_fault(fault)),
    ReasonKind.SET_UP: lambda *_: "no rank has finished set-up yet",
    ReasonKind.GPU_ERROR: _about(FaultyGpu, _write_gpu_error),
    ReasonKind.SEPARATE: _about(Separation, lambda _, found: write_separation(found)),
    ReasonKind.CPU_LIMIT: _about(Observation, lambda _, limit: clean(limit.text, 96)),
    ReasonKind.GPU_CLOCK: _about(GpuUse, lambda _, use: write_slowed_gpu(use)),
    ReasonKind.GPU_MEMORY: _about(EccErrors, lambda _, errors: write_ecc_errors(errors)),
    ReasonKind.GPU_DRIVER: _about(StuckDriver, lambda _, stuck: write_stuck_driver(stuck)),
    ReasonKind.GPU_LOAD: _about(OddGpu, lambda _, odd: write_odd_gpu(odd)),
    ReasonKind.ODD: _about(Split, _write_odd),
    ReasonKind.AHEAD: _about(MissingSend, lambda _, missing: write_gone_on(missing.proofs)),
    ReasonKind.LOOP: _about(Split, _write_loop),
}
