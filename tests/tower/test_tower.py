"""The tower in complete timelines: effects, races, a store that fails."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import Counter
from dataclasses import replace

import pytest

from tests.jobs.scenes import JOB
from tests.tower.simulator import Simulation, hang
from watchtower.jobs.dump_timing import DiagnosisTiming
from watchtower.jobs.ranks import DumpBody
from watchtower.service.daemon import JsonLines
from watchtower.store.values import read_case
from watchtower.tower.store_writer import StoreFailedError
from watchtower.views.node import NodeCounts, list_nodes
from watchtower.wire.report import AgentGaps, EndingKind, ProcessState, Report, Unwatched
from watchtower.wire.verdict import Cause


def test_a_hang_is_suspected_diagnosed_and_then_an_incident(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        await sim.report(6)
        assert sim.status == "suspect"
        assert sim.verdict.diagnosed_at is None
        await sim.dump(behind=2)
        await sim.report(1)
        assert sim.verdict.cause is Cause.DATALOADER_STALL
        assert [s.rank for s in sim.verdict.suspects] == [2]
        assert sim.verdict.waiting == "0-1,3"
        assert await sim.incidents() == []
        await sim.report(11)
        (incident,) = await sim.incidents()
        assert incident.verdict.incident == incident.id
        stored = await asyncio.wrap_future(sim.store.incident(incident.id))
        assert read_case(stored).ranks[2].dumps

    tell(story)


def test_the_log_of_an_incident_names_its_id_the_cause_and_the_rank(tell, caplog):
    async def story(sim: Simulation) -> None:
        with caplog.at_level(logging.INFO, "watchtower.tower"):
            await hang(sim)
            await sim.report(5)
            await sim.step(12)
        (incident,) = await sim.incidents()
        lines = [each for each in caplog.messages if incident.id in each]
        verdict = r"dataloader_stall \(\d\d %\), rank 2 on n1"
        assert len(lines) == 2
        assert re.fullmatch(rf"job llama: incident {incident.id} opened: {verdict}", lines[0])
        assert re.fullmatch(rf"job llama: incident {incident.id} closed: {verdict}", lines[1])
        records = [each for each in caplog.records if incident.id in each.getMessage()]
        found = [json.loads(JsonLines().format(each)) for each in records]
        assert [each.pop("event") for each in found] == ["opened", "closed"]
        for line, text in zip(found, lines, strict=True):
            assert (line["message"], line["job"], line["incident"]) == (text, "llama", incident.id)
            named = line["cause"], line["ranks"], line["nodes"]
            assert named == ("dataloader_stall", "2", ["n1"])

    tell(story)


def test_the_nodes_of_a_job_in_an_incident_show_it_until_it_ends(tell):
    async def story(sim: Simulation) -> None:
        def shown() -> set[frozenset[str]]:
            nodes = list_nodes(sim.tower.moment(), NodeCounts(Counter(), Counter()))
            return {each.hung_jobs for each in nodes}

        await sim.step(10)
        assert shown() == {frozenset()}
        await hang(sim)
        await sim.report(5)
        assert await sim.incidents()
        assert shown() == {frozenset({JOB})}
        await sim.step(12)
        assert shown() == {frozenset()}

    tell(story)


def test_dumps_of_a_suspect_job_are_checked_when_no_rank_is_missing(tell):
    """A check of 16,384 ranks takes as long as a hundred batches of dumps."""

    async def story(sim: Simulation) -> None:
        await sim.step(10)
        await sim.report(6)
        assert sim.status == "suspect"
        await sim.dump(behind=2, rounds=1, nodes=("n0",))
        assert sim.tower._judging is None
        await sim.dump(behind=2, rounds=1, nodes=("n1",))
        assert sim.tower._judging is not None

    tell(story)


def test_dumps_of_a_node_that_reports_late_are_evidence_when_it_does(tell):
    async def story(sim: Simulation) -> None:
        sim.world.silent.add("n1")
        await sim.step(10)
        await sim.report(6)
        await sim.dump(behind=2)
        assert 2 not in sim.tower.fleet.jobs[JOB].attempt.ranks
        sim.world.silent.clear()
        await sim.report(2)
        assert sim.tower.fleet.jobs[JOB].attempt.ranks[2].dumps

    tell(story)


def test_a_job_cancelled_while_it_is_suspect_opens_no_incident(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10, step_s=30)
        await sim.report(152)
        await sim.dump(behind=2)
        await sim.report(15)
        assert sim.status == "suspect"
        for rank in range(4):
            sim.world.end(rank, EndingKind.SIGNAL, 15)
        await sim.report(6)
        assert sim.status == "ended"
        assert await sim.incidents() == []

    tell(story)


def test_one_replaced_rank_leaves_no_rank_unwatched(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        sim.world.end(3, EndingKind.SIGNAL, 9)
        await sim.report(1)
        fresh = replace(sim.world.ranks[3], pid=903, ended=None, beat_at=sim.world.now)
        sim.world.ranks[3] = fresh
        await sim.step(10)
        assert sim.live.attempt.number == 2
        await sim.report(8)
        assert sim.status == "suspect"

    tell(story)


def test_dumps_of_a_second_round_are_diagnosed_at_once(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        await sim.report(6)
        await sim.dump(behind=2)
        await sim.report(1)
        for number in (1, 2):
            diagnosed = sim.tower.counters.diagnoses
            sim.world.now += 0.5
            await sim.dump(behind=2, rounds=1)  # as many as there were: only their time is new
            await sim.report()
            assert sim.tower.counters.diagnoses == diagnosed + 1, number

    tell(story)


def test_a_diagnosis_that_fails_is_reported_and_requested_again(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        await sim.report(6)
        await sim.dump(behind=2)
        record = sim.tower.fleet.jobs[JOB].attempt.ranks[2]
        whole = record.dumps
        record.dumps = [(at, DumpBody(b"{")) for at, _ in whole]
        await sim.report(1)
        assert sim.verdict.summary == (
            "not diagnosed: it failed: see the traceback in the tower's log"
        )
        assert sim.status == "suspect"
        record.dumps = whole
        await sim.report(6)
        assert sim.verdict.cause is Cause.DATALOADER_STALL

    tell(story)


def test_dumps_that_cannot_be_stored_are_refused_but_used(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        await sim.report(6)
        batch = sim.batch("n1", 1, behind=2)
        sim.store._thread.submit(lambda: sim.store._db.execute("DROP TABLE dumps")).result()
        with pytest.raises(StoreFailedError, match="no such table"):
            await sim.take(batch)
        assert sim.tower.fleet.jobs[JOB].attempt.ranks[2].dumps

    tell(story)


def test_orders_reach_every_node_that_has_not_dumped(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        await sim.report(4)
        assert sim.tower.effects.orders.collect(("n0", "n0"), sim.world.now)
        assert sim.tower.effects.orders.collect(("n0", "n0"), sim.world.now) == ()
        (order,) = sim.tower.effects.orders.collect(("n1", "n1"), sim.world.now)
        assert order.job == JOB

    tell(story)


def test_a_job_that_is_not_reported_is_dropped_after_hours(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        for hours in range(8):
            sim.world.now += 3600 * (hours > 0) + 20
            sim.tower.tick()
        assert sim.tower.fleet.jobs == {}
        assert sim.tower.fleet.nodes == {}

    tell(story)


def test_a_verdict_names_a_node_whose_agent_lacks_the_rights_to_see_ranks(tell):
    blind = "sees ranks of user 7 only"

    async def story(sim: Simulation) -> None:
        for node, limits in (("blind", AgentGaps(process=blind)), ("empty", AgentGaps())):
            nothing = Report(version=1, node=node, agent_id=node, interval_s=1.0, limits=limits)
            sim.tower.take_report(nothing)
        sim.world.size = 6  # two ranks more than anybody reports
        await hang(sim)
        assert sim.verdict.missing_evidence == (f"blind: {blind}",)

    tell(story)


@pytest.mark.parametrize(
    ("size", "missing"),
    [(6, ("wrong: 2 processes are not watched: wrong rank variables",)), (4, ())],
)
def test_a_verdict_on_missing_ranks_names_what_agents_do_not_watch_of_the_job(tell, size, missing):
    def skipped(job: str, owner: str = "", text: str = "") -> Unwatched:
        return Unwatched(
            reason="wrong_rank", owner=owner, job=job, count=2, pids=(7, 8), text=text or job
        )

    async def story(sim: Simulation) -> None:
        of_job = skipped(JOB, text="2 processes are not watched: wrong rank variables")
        for node, interval_s, entries in (
            ("wrong", 60.0, (of_job, skipped("another"), skipped("", "uid:7", "of another user"))),
            ("busy", 60.0, (skipped("another"),)),
            ("silent", 1.0, (of_job,)),
        ):
            sim.tower.take_report(
                Report(
                    version=1, node=node, agent_id=node, interval_s=interval_s, unwatched=entries
                )
            )
        sim.world.size = size
        await hang(sim)
        assert sim.verdict.missing_evidence == missing

    tell(story)


def test_a_running_job_is_not_diagnosed_while_half_of_its_ranks_reported_a_step(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        sim.world.ranks[2].state = ProcessState.STOPPED
        await sim.report(6)
        await sim.dump(behind=2)
        await sim.report(16)
        assert sim.verdict.cause is Cause.PROCESS_STOPPED
        sim.world.ranks[2].state = ProcessState.SLEEPING
        sim.world.silent.add("n0")  # its report of the step is still under way
        sim.live.watch._timing = DiagnosisTiming(0.0)  # and a diagnosis is due
        await sim.step(1)
        sim.world.silent.clear()
        await sim.step(3)
        (incident,) = await sim.incidents()
        assert incident.status.value == "recovered"
        assert incident.verdict.cause is Cause.PROCESS_STOPPED

    tell(story)
