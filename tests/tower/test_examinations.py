"""Dumps and a diagnosis on demand, while a job is healthy."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from tests.diagnosis.builders import FETCHING, a_native
from tests.jobs.scenes import JOB
from tests.tower.simulator import Simulation
from watchtower.commands.examining import describe_stacks
from watchtower.service.calls import timeout
from watchtower.tower import examination
from watchtower.tower.examination import (
    ExaminationRefusedError,
    RankNotReportedError,
    list_examined_stacks,
)
from watchtower.wire.verdict import Cause, Status


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "POLL_S", 0.001)


async def orders(sim: Simulation) -> dict[str, list]:
    """The orders for the agents in the replies to their next reports."""
    found = {}
    for node in sorted({r.node for r in sim.world.ranks.values()}):
        report = sim.world.make_report(node, node, ())
        found[node] = list(sim.tower.take_report(report).orders)
    return found


async def begin(sim: Simulation) -> asyncio.Task:
    task = asyncio.create_task(sim.tower.examinations.examine(JOB))
    for _ in range(3):
        await asyncio.sleep(0)
    return task


def test_a_healthy_job_is_dumped_and_diagnosed(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        task = await begin(sim)
        ordered = await orders(sim)
        assert {node: [order.job for order in each] for node, each in ordered.items()} == {
            "n0": [JOB],
            "n1": [JOB],
        }
        assert not any(order.sample for each in ordered.values() for order in each)
        await sim.dump(behind=2)
        found = await task
        assert (found.verdict.status, found.verdict.incident) == (Status.HEALTHY, None)
        assert found.verdict.cause is Cause.DATALOADER_STALL
        assert [suspect.rank for suspect in found.verdict.suspects] == [2]
        assert "the job is healthy" in found.verdict.missing_evidence[0]
        # Nothing follows for the detection.
        await sim.step(2)
        assert sim.status == "healthy"
        assert await sim.incidents() == []

    tell(story)


def test_a_rank_that_no_agent_reports_is_not_examined(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        with pytest.raises(RankNotReportedError, match="rank 999 is not reported"):
            await sim.tower.examinations.examine(JOB, 999)

    tell(story)


def test_all_who_ask_meanwhile_get_one_examination(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        tasks = [await begin(sim) for _ in range(5)]
        tasks[0].cancel()  # its client went away
        assert sum(map(len, (await orders(sim)).values())) == 2
        await sim.dump(behind=2)
        results = await asyncio.gather(*tasks[1:])
        assert all(result is results[0] for result in results)

    tell(story)


def test_ranks_without_dumps_do_not_block_for_ever(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        task = await begin(sim)
        await sim.dump(behind=2, nodes=("n1",))
        await asyncio.sleep(0.02)
        assert not task.done()
        await sim.report(examination.WAIT_S + 1)
        found = await task
        assert any("0-1" in gap for gap in found.verdict.missing_evidence)
        stacks = list_examined_stacks(found.evidence, None, all_threads=False)
        assert [item.ranks for item in stacks.items] == ["2", "3"]
        assert stacks.missing_evidence == ["ranks 0-1: no dump arrived"]

    tell(story)


def test_an_agent_that_ignores_an_order_gets_another_one(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        task = await begin(sim)
        assert all((await orders(sim)).values())  # the agents have just dumped the job
        assert not any((await orders(sim)).values())
        sim.world.now += examination.AGAIN_S
        async with timeout(30):
            while not all((await orders(sim)).values()):
                await asyncio.sleep(0.001)
        await sim.dump(behind=2)
        assert [suspect.rank for suspect in (await task).verdict.suspects] == [2]

    tell(story)


def test_ranks_at_one_line_are_listed_apart_where_native_code_differs(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        sim.natives[1] = a_native("device_wait", library="libcuda.so.1", running=True)
        task = await begin(sim)
        await sim.dump(behind=2)
        answer = list_examined_stacks((await task).evidence, None, all_threads=True)
        assert [(item.ranks, item.native) for item in answer.items] == [
            ("0,3", ""),
            ("1", "polls for its device in libcuda.so.1"),
            ("2", ""),
        ]
        printed = list(describe_stacks(msgspec.to_builtins(answer), outermost=False))
        assert printed.count("    [polls for its device in libcuda.so.1]") == 1
        tree = list(describe_stacks(msgspec.to_builtins(answer), outermost=True))
        assert (
            sum(line.strip() == "[polls for its device in libcuda.so.1]  ◀ 1" for line in tree) == 1
        )

    tell(story)


def test_stacks_are_merged_with_the_most_ranks_first(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        task = await begin(sim)
        await sim.dump(behind=2)
        evidence = (await task).evidence
        both = list_examined_stacks(evidence, None, all_threads=False).items
        assert [(item.ranks, item.thread) for item in both] == [
            ("0-1,3", "MainThread"),
            ("2", "MainThread"),
        ]
        assert both[1].frames[0].function == FETCHING.split()[0]
        (one,) = list_examined_stacks(evidence, 2, all_threads=True).items
        assert one.ranks == "2"
        none = list_examined_stacks(evidence, 77, all_threads=False)
        assert (none.items, none.missing_evidence) == ([], [])

    tell(story)


def test_an_unknown_job_is_not_examined(tell):
    async def story(sim: Simulation) -> None:
        assert await sim.tower.examinations.examine("bert") is None

    tell(story)


def test_too_many_examinations_are_refused(tell, monkeypatch):
    monkeypatch.setattr(examination, "MAX_EXAMINATIONS", 0)

    async def story(sim: Simulation) -> None:
        await sim.step(10)
        with pytest.raises(ExaminationRefusedError, match="too many"):
            await sim.tower.examinations.examine(JOB)

    tell(story)


def test_a_job_that_restarts_meanwhile_is_refused(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        task = await begin(sim)
        sim.world.launch(pids_from=900)
        await sim.report(examination.WAIT_S + 2)
        with pytest.raises(ExaminationRefusedError, match="attempt"):
            await task

    tell(story)


def test_a_tower_that_stops_ends_its_examinations(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        task = await begin(sim)
        await sim.tower.examinations.close()
        with pytest.raises(asyncio.CancelledError):
            await task

    tell(story)
