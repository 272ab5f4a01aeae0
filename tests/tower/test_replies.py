"""Every report that the tower accepts gets a reply, for any data of one rank or one job."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import sys
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.diagnosers import in_thread
from tests.jobs.scenes import JOB, World
from tests.properties import examples
from tests.tower.simulator import WorldClock
from watchtower.fleet import report_interval
from watchtower.fleet.report_interval import BURST, LONG_INTERVAL_S, ReportPaces
from watchtower.jobs.detector import Detector
from watchtower.policy import Policy
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.tower import Tower
from watchtower.wire.bounds import MAX_AGE_S, MAX_INTEGER, MAX_RANK
from watchtower.wire.orders import ReportReply
from watchtower.wire.report import Beat, Ending, EndingKind, Movement, RankVitals, Report

ENCODE = msgspec.json.encode
DECODE = msgspec.json.Decoder(ReportReply).decode
DECODE_REPORT = msgspec.json.Decoder(Report).decode
LONGEST = 9.2e9
"""Seconds between 0 and the largest time that a heartbeat file can hold."""


@pytest.fixture
def world():
    return World(size=1, per_node=1)


@pytest.fixture
def tower(store, world):
    return a_tower(store, world)


def a_tower(store: SqliteStore, world: World) -> Tower:
    return Tower(Policy(), store, store.recall(), WorldClock(world=world), in_thread)


def a_rank(job: str, step: int, interval_s: float, **more) -> RankVitals:
    beat = Beat(step=step, age_s=0.1, advanced=1 if step else 0, interval_s=interval_s)
    vitals = RankVitals(job=job, rank=0, pid=abs(hash(job)) % 10**6, start_time=7, beat=beat)
    return dataclasses.replace(vitals, **more)


def report_all(
    tower: Tower, world: World, reports: Iterable[tuple[Report, float]]
) -> list[ReportReply]:
    """Process reports as from the network, with a tick and some seconds after each."""
    replies = []

    async def take() -> None:
        for report, seconds in reports:
            reply = tower.take_report(DECODE_REPORT(ENCODE(report)))
            replies.append(DECODE(ENCODE(reply)))
            tower.tick()
            world.now += seconds
        for task in list(tower.effects.tasks):
            task.cancel()

    asyncio.run(take())
    return replies


def a_report(*ranks: RankVitals) -> Report:
    return Report(version=1, node="n0", agent_id="a", interval_s=1.0, ranks=ranks)


def report_steps(tower: Tower, world: World, intervals: dict[str, float]) -> ReportReply:
    """Send ten reports, a second apart. `intervals`: the seconds of a step by job."""
    reports = [
        a_report(*(a_rank(job, step, s if step else 0.0) for job, s in intervals.items()))
        for step in range(10)
    ]
    return report_all(tower, world, ((report, 1.0) for report in reports))[-1]


def test_a_forged_clock_leaves_the_other_jobs_of_its_node_their_deadlines(tower, world):
    reply = report_steps(tower, world, {"forger": LONGEST, JOB: 1.0})
    deadlines = {deadline.job: deadline.after_s for deadline in reply.deadlines}
    assert deadlines[JOB] == pytest.approx(5.0)
    assert "forger" in deadlines


def test_a_deadline_counts_from_the_end_of_a_phase(tower, world):
    """An agent counts from the last heartbeat. It must not dump whenever an evaluation ends."""
    stepped = [(a_report(a_rank(JOB, step, 1.0 if step else 0.0)), 1.0) for step in range(10)]
    beat = Beat(step=9, age_s=0.1)
    evaluates = dataclasses.replace(beat, age_s=300.1, phase="evaluation", phase_age_s=299.0)
    left, goes_on = (dataclasses.replace(beat, age_s=age_s) for age_s in (301.1, 302.1))
    ranks = [a_rank(JOB, 9, 1.0, beat=each) for each in (evaluates, left, goes_on)]
    world.now += 300.0
    *_, after_left, later = report_all(
        tower, world, [*stepped, *((a_report(rank), 1.0) for rank in ranks)]
    )
    assert [each.after_s for each in after_left.deadlines] == [pytest.approx(306.1)]
    assert [each.after_s for each in later.deadlines] == [pytest.approx(306.1)]
    (next_step,) = report_all(tower, world, [(a_report(a_rank(JOB, 10, 1.0)), 1.0)])
    assert [each.after_s for each in next_step.deadlines] == [pytest.approx(5.0)]


def test_a_step_took_no_longer_than_what_passed_since_the_beat_before(tower, world):
    report_steps(tower, world, {"forger": LONGEST})
    pace = tower.fleet.jobs["forger"].attempt.pace("")
    assert 0 < pace.typical_s < 5.0


def test_a_step_that_really_took_long_is_believed(tower, world):
    reports = []
    for second in range(200):
        age_s, is_new = second % 40, second % 40 == 0
        beat = Beat(
            step=second // 40,
            age_s=age_s,
            advanced=int(is_new),
            interval_s=40.0 * is_new if second else 0.0,
        )
        reports.append((a_report(a_rank(JOB, 1, 0.0, beat=beat)), 1.0))
    report_all(tower, world, reports)
    assert tower.fleet.jobs[JOB].attempt.pace("").typical_s == 40.0


def test_agents_of_thousands_of_nodes_are_asked_to_report_less_often(tower, world, monkeypatch):
    monkeypatch.setattr(report_interval, "MANY_NODES", 2)
    reports = [
        (Report(version=1, node=f"n{node}", agent_id="a", interval_s=1.0, ranks=()), 0.1)
        for node in range(5)
    ]
    asked = [reply.report_interval_s for reply in report_all(tower, world, reports)]
    assert asked == [0.0, 0.0, 2.0, 2.0, 2.0]


NODE_AND_AGENT = ("n0", "a")


@pytest.mark.parametrize("asked_s", [0.0, LONG_INTERVAL_S])
def test_ranks_that_end_one_after_the_other_are_all_processed(asked_s):
    paces = ReportPaces(10)
    interval_s = asked_s or 1.0
    assert all(paces.may_report(NODE_AND_AGENT, asked_s, interval_s * n) for n in range(30))
    began = interval_s * 30
    assert all(paces.may_report(NODE_AND_AGENT, asked_s, began + 0.2 * n) for n in range(8))
    assert paces.may_report(NODE_AND_AGENT, asked_s, began + 1.6, is_last=True)


def test_a_flood_of_reports_leaves_room_for_the_last_one_of_its_agent_only():
    paces = ReportPaces(10)
    taken = [paces.may_report(NODE_AND_AGENT, 2.0, n / 1000) for n in range(1000)]
    assert taken == [True] * BURST + [False] * (1000 - BURST)
    last = [paces.may_report(NODE_AND_AGENT, 2.0, 1.0, is_last=True) for _ in range(10)]
    assert last == [True] + [False] * 9
    assert paces.may_report(("n0", "b"), 2.0, 1.0)
    later = [paces.may_report(NODE_AND_AGENT, 2.0, 1.0 + n) for n in range(100)]
    assert sum(later) == pytest.approx(50, abs=2)


def test_a_shorter_interval_holds_at_once():
    paces = ReportPaces(10)
    assert sum(paces.may_report(NODE_AND_AGENT, 2.0, 0.0) for _ in range(100)) == BURST
    later = [paces.may_report(NODE_AND_AGENT, 0.0, 0.2 * n) for n in range(1, 10)]
    assert all(later)


def test_the_known_agents_are_bounded():
    paces = ReportPaces(10)
    assert all(paces.may_report((f"n{n}", "a"), 2.0, 0.0) for n in range(100))
    assert len(paces._early) == 10


class BrokenForOne(Detector):
    """A detector that raises for one job, as with a bug."""

    def deadline_s(self, attempt, *arguments):
        if attempt.job == "broken":
            raise ZeroDivisionError("forged")
        return super().deadline_s(attempt, *arguments)


def test_a_job_whose_reply_cannot_be_made_is_left_out_and_logged_once(tower, world, caplog):
    tower.fleet.detector = BrokenForOne(tower.policy)
    with caplog.at_level(logging.ERROR):
        reply = report_steps(tower, world, {"broken": 1.0, JOB: 1.0})
    assert {deadline.job for deadline in reply.deadlines} == {JOB}
    assert len([record for record in caplog.records if "broken" in record.getMessage()]) == 2, (
        "once for its reply, once for its check"
    )


def test_an_error_with_one_jobs_ranks_does_not_affect_other_jobs(tower, world, caplog, monkeypatch):
    take = tower.fleet._take_vitals

    def take_but_one(label, claim):
        if claim.vitals.job == "broken":
            raise ZeroDivisionError("forged")
        take(label, claim)

    monkeypatch.setattr(tower.fleet, "_take_vitals", take_but_one)
    with caplog.at_level(logging.ERROR):
        reply = report_steps(tower, world, {"broken": 1.0, JOB: 1.0})
    assert {deadline.job for deadline in reply.deadlines} == {JOB}
    assert len([record for record in caplog.records if "broken" in record.getMessage()]) == 1


AGES = st.one_of(
    st.sampled_from([0.0, 0.1, 1.0, sys.float_info.min, LONGEST, MAX_AGE_S]),
    st.floats(0, MAX_AGE_S),
)
COUNTS = st.sampled_from([0, 1, 2, 1000, MAX_INTEGER - 1, MAX_INTEGER])
NAMES = st.sampled_from(["llama", "x/verdict", "\x00", "\u202e", "j" * 256, "𝔸" * 128])
RATES = st.sampled_from([0.0, 1.0, 1e15])
BEATS = st.builds(
    Beat,
    step=st.one_of(st.just(-1), COUNTS),
    age_s=AGES,
    phase=st.one_of(st.just(""), NAMES),
    phase_age_s=AGES,
    advanced=COUNTS,
    interval_s=AGES,
)
RANKS = st.builds(
    RankVitals,
    job=NAMES,
    rank=st.sampled_from([0, 1, MAX_RANK]),
    pid=st.integers(1, 3),
    start_time=st.sampled_from([0, 1, MAX_INTEGER]),
    world_size=st.sampled_from([None, 1, 2, MAX_RANK + 1]),
    found_age_s=AGES,
    beat=st.one_of(st.none(), BEATS),
    movement=st.builds(Movement, cpu_cores=RATES, socket_bytes_per_s=RATES),
    ended=st.one_of(
        st.none(), st.none(), st.builds(Ending, kind=st.sampled_from(EndingKind), age_s=AGES)
    ),
)
REPORTS = st.builds(
    Report,
    version=st.just(1),
    node=st.sampled_from(["n0", "n1"]),
    agent_id=st.just("a"),
    interval_s=st.sampled_from([1e-9, 1.0, 3600.0]),
    ranks=st.lists(RANKS, max_size=6).map(tuple),
)


@given(reports=st.lists(st.tuples(REPORTS, st.sampled_from([0.0, 1.0, 100.0])), max_size=8))
@examples(200, suppress_health_check=list(HealthCheck))
def test_any_report_that_the_wire_accepts_gets_a_reply_that_the_wire_accepts(store, reports):
    world = World(size=1, per_node=1)
    tower = a_tower(store, world)
    often = [each for each in reports for _ in range(5)]  # a pace is learned of it
    report_all(tower, world, often)
    assert not any(keeper.failing for keeper in tower.fleet.jobs.values())
    assert tower.counters.failed_ticks == 0
