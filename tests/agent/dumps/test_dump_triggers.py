"""When to dump: deadlines, coalescing, orders. By value, nothing waits."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from agent.dumps.triggers import (
    DUMP_EXPIRES_S,
    MAX_JITTER_S,
    MAX_REPEAT_DUMP_S,
    REPEAT_DUMP_S,
    ROUND_GAP_JITTERS,
    ROUND_GAP_S,
    SATISFIED_BY_S,
    DeadlineWatch,
    DumpLedger,
    OrderInbox,
    round_gap_s,
)
from agent.dumps.turns import DUMPS_AT_ONCE, DumpSlots
from agent.ranks.found_rank import JobKey, RankBeat
from watchtower.wire.orders import MAX_ORDERS, Deadline, Order

J, OTHER = JobKey("j"), JobKey("other")


def no_dumps() -> DumpSlots:
    return DumpSlots([])


def all_slots() -> DumpSlots:
    return DumpSlots([""] * DUMPS_AT_ONCE)


def a_beat(
    rank: int = 0, at: float = 100.0, phase: str = "", job: str = "j", owner: str = ""
) -> RankBeat:
    return RankBeat(key=(10 + rank, 1), job=JobKey(job, owner), rank=rank, phase=phase, beat_at=at)


@pytest.fixture
def watch() -> DeadlineWatch:
    watch = DeadlineWatch()
    watch.replace([Deadline(job="j", rank=rank, after_s=5.0) for rank in range(2)])
    return watch


def test_nothing_is_due_before_the_deadline(watch: DeadlineWatch) -> None:
    assert watch.fire([a_beat()], 104.9, no_dumps()) == {}
    assert watch.next_due([a_beat(), a_beat(1, at=99.0)]) == 104.0


def test_a_rank_without_a_beat_for_that_long_is_due_at_once(watch: DeadlineWatch) -> None:
    assert watch.fire([a_beat()], 105.0, no_dumps()) == {J: a_beat()}


def test_a_stall_fires_once_and_again_after_growing_pauses(watch: DeadlineWatch) -> None:
    fired, now = [], 105.0
    while now < 105.0 + 8 * MAX_REPEAT_DUMP_S:
        if watch.fire([a_beat()], now, no_dumps()):
            fired.append(now - 105.0)
        now += 1.0
    gaps = [later - earlier for earlier, later in pairwise(fired)]
    assert gaps[:3] == [REPEAT_DUMP_S, 2 * REPEAT_DUMP_S, 4 * REPEAT_DUMP_S]
    assert max(gaps) == MAX_REPEAT_DUMP_S


def test_no_more_jobs_are_dumped_at_once_than_there_is_room_for() -> None:
    watch = DeadlineWatch()
    jobs = [f"j{number}" for number in range(30)]
    watch.replace([Deadline(job=job, rank=rank, after_s=5.0) for job in jobs for rank in (0, 1)])
    beats = [a_beat(rank, job=job) for rank in (0, 1) for job in jobs]
    beats = [replace(beat, key=(number, 1)) for number, beat in enumerate(beats)]
    assert watch.fire(beats, 105.0, all_slots()) == {}
    fired = [list(watch.fire(beats, 105.0, no_dumps())) for _ in range(9)]
    assert [len(each) for each in fired] == [4] * 7 + [2, 0]
    assert sorted(job.name for each in fired for job in each) == sorted(jobs)


def test_agents_of_a_large_job_dump_at_times_of_their_own() -> None:
    deadline = Deadline(job="j", rank=0, after_s=5.0, jitter_s=2.0)
    due = []
    for share in (0.0, 0.5, 1.0):
        watch = DeadlineWatch(share)
        watch.replace([deadline])
        due.append(watch.next_due([a_beat()]))
    assert due == [105.0, 106.0, 107.0]


def test_no_tower_delays_a_dump_for_long() -> None:
    watch = DeadlineWatch(1.0)
    watch.replace([Deadline(job="j", rank=0, after_s=5.0, jitter_s=1e6)])
    assert watch.next_due([a_beat()]) == 105.0 + MAX_JITTER_S


def test_an_order_of_a_large_job_is_carried_out_at_a_time_of_its_own() -> None:
    book = OrderInbox(lambda: 0.5)
    order = replace(an_order("1", expires_s=1.0), jitter_s=4.0)
    book.receive([order, an_order("2")], now=100.0)
    assert book.next_due(no_dumps()) == 100.0
    assert book.take(101.9, no_dumps()) == ([an_order("2")], [])
    assert book.next_due(no_dumps()) == 102.0
    assert book.take(102.9, no_dumps()) == ([order], [])
    assert book.next_due(no_dumps()) is None


def test_the_second_rounds_of_a_large_job_begin_when_all_first_rounds_are_sent() -> None:
    order = replace(an_order("1"), jitter_s=2.0)
    assert round_gap_s(order) == ROUND_GAP_JITTERS * 2.0
    assert round_gap_s(replace(order, jitter_s=0.3)) == ROUND_GAP_S
    assert round_gap_s(replace(order, jitter_s=1e6)) == ROUND_GAP_JITTERS * MAX_JITTER_S
    assert round_gap_s(None) == ROUND_GAP_S


def test_a_beat_arms_the_rank_again(watch: DeadlineWatch) -> None:
    watch.fire([a_beat()], 105.0, no_dumps())
    assert watch.due_at(a_beat(at=106.0)) == 111.0
    assert watch.fire([a_beat(at=106.0)], 111.0, no_dumps())


def test_a_deadline_holds_only_in_its_phase(watch: DeadlineWatch) -> None:
    assert watch.due_at(a_beat(phase="checkpoint")) is None
    watch.replace([Deadline(job="j", rank=0, after_s=5.0, phase="checkpoint")])
    assert watch.due_at(a_beat(phase="checkpoint")) == 105.0
    assert watch.due_at(a_beat()) is None


def test_a_rank_without_a_deadline_is_never_due(watch: DeadlineWatch) -> None:
    assert watch.due_at(a_beat(7)) is None
    assert watch.due_at(a_beat(job="other")) is None
    assert watch.next_due([a_beat(7)]) is None


def test_a_restarted_rank_is_armed(watch: DeadlineWatch) -> None:
    watch.fire([a_beat()], 105.0, no_dumps())
    watch.keep_only(set())
    assert watch.due_at(a_beat()) == 105.0


def test_a_dump_in_progress_or_just_ended_satisfies_who_asks() -> None:
    ledger = DumpLedger()
    assert not ledger.satisfies(J, 10.0)
    ledger.begin(J, 50.0)
    assert ledger.satisfies(J, 99.0)
    assert not ledger.satisfies(OTHER, 99.0)
    ledger.end(J, 100.0)
    assert ledger.satisfies(J, 100.0 + SATISFIED_BY_S - 0.1)
    assert not ledger.satisfies(J, 100.0 + SATISFIED_BY_S)


def test_a_job_is_dumped_only_so_often_in_a_minute() -> None:
    ledger = DumpLedger(per_minute=2)
    for at in (0.0, 20.0):
        assert not ledger.is_exhausted(J, at)
        ledger.begin(J, at)
        assert ledger.is_running(J, at)
        ledger.end(J, at + 1)
        assert not ledger.is_running(J, at + 1)
    assert ledger.is_exhausted(J, 59.0)
    assert not ledger.is_exhausted(J, 61.0)


def test_a_dump_that_never_ends_satisfies_nobody_for_ever_and_takes_no_place() -> None:
    ledger = DumpLedger()
    ledger.begin(J, 0.0)
    assert ledger.running(DUMP_EXPIRES_S - 0.1) == [J]
    assert ledger.running(DUMP_EXPIRES_S) == []
    assert not ledger.satisfies(J, DUMP_EXPIRES_S)
    ledger.begin(J, 100.0)
    assert ledger.satisfies(J, 100.0 + DUMP_EXPIRES_S - 0.1)


def an_order(order_id: str = "o1", expires_s: float = 10.0) -> Order:
    return Order(id=order_id, job="j", expires_s=expires_s)


def test_an_order_is_taken_once() -> None:
    book = OrderInbox()
    book.receive([an_order(), an_order()], now=0.0)
    assert book.take(1.0, no_dumps()) == ([an_order()], [])
    book.receive([an_order()], now=2.0)
    assert book.take(3.0, no_dumps()) == ([], [])


def test_an_order_that_waited_too_long_expires() -> None:
    book = OrderInbox()
    book.receive([an_order("a", 5.0), an_order("b", 50.0)], now=0.0)
    assert book.take(1.0, all_slots()) == ([], [])
    assert book.take(6.0, no_dumps()) == ([an_order("b", 50.0)], [an_order("a", 5.0)])


def test_two_owners_jobs_of_one_name_have_deadlines_and_dumps_of_their_own() -> None:
    watch = DeadlineWatch()
    watch.replace([Deadline(job="j", owner="uid:1", rank=0, after_s=5.0)])
    mine, theirs = a_beat(owner="uid:1"), replace(a_beat(owner="uid:2"), key=(99, 1))
    assert watch.due_at(theirs) is None
    assert watch.fire([mine, theirs], 105.0, no_dumps()) == {JobKey("j", "uid:1"): mine}
    ledger = DumpLedger(per_minute=1)
    ledger.begin(JobKey("j", "uid:2"), 1.0)
    assert not ledger.satisfies(JobKey("j", "uid:1"), 2.0)
    assert not ledger.is_exhausted(JobKey("j", "uid:1"), 2.0)


def test_sixty_jobs_of_one_owner_leave_slots_for_every_other_owner() -> None:
    watch = DeadlineWatch()
    theirs = [a_beat(job=f"bad {number}", owner="uid:1") for number in range(60)]
    mine = [a_beat(job="good", owner="uid:2"), a_beat(job="fine", owner="uid:3")]
    beats = [replace(beat, key=(number, 1)) for number, beat in enumerate([*theirs, *mine])]
    deadlines = [(each.job.name, each.job.owner) for each in beats]
    watch.replace(Deadline(job=job, owner=by, rank=0, after_s=5.0) for job, by in deadlines)
    first = watch.fire(beats, 105.0, no_dumps())
    owners = [job.owner for job in first]
    assert {"uid:2", "uid:3"} <= set(owners)
    assert DumpSlots(owners).has_room("uid:4")
    running = DumpSlots(["uid:1"] * (DUMPS_AT_ONCE // 2))
    assert not running.has_room("uid:1")
    assert watch.fire(beats, 105.0, running) == {}


def test_an_owner_without_a_dump_is_before_those_with_some() -> None:
    slots = DumpSlots(["uid:1", "uid:2", "uid:1"])
    wanted = [("uid:1", "a"), ("uid:1", "b"), ("uid:2", "c"), ("uid:3", "d")]
    assert slots.choose(wanted) == ["d", "c", "a"]


def test_orders_of_one_owner_s_jobs_leave_room_and_slots_for_those_of_others() -> None:
    book = OrderInbox()
    flood = [
        Order(id=f"o{number}", job=f"bad {number}", owner="uid:1", expires_s=9.0)
        for number in range(2 * MAX_ORDERS)
    ]
    mine = Order(id="mine", job="good", owner="uid:2", expires_s=9.0)
    refused = book.receive([*flood, mine], now=0.0)
    assert mine not in refused
    taken, _ = book.take(1.0, no_dumps())
    assert mine in taken
    assert len(taken) == DUMPS_AT_ONCE // 2 + 1
