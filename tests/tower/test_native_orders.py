"""Native functions are ordered for suspects of an incident, and when an operator asks."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec
import pytest

from tests.jobs.scenes import JOB
from tests.tower.simulator import Simulation, hang
from tests.tower.test_examinations import begin, orders
from watchtower.commands.examining import CALLERS_UNKNOWN, describe_stacks
from watchtower.evidence.case import Case
from watchtower.jobs.incident_reads import AGAIN_S
from watchtower.service.calls import timeout
from watchtower.tower import examination
from watchtower.tower.examination import (
    ExaminationRefusedError,
    RankNotReportedError,
    list_examined_stacks,
)
from watchtower.views.stacks import OLD_AGENT
from watchtower.wire.dumps import NativeFrame, NativeFunctions
from watchtower.wire.orders import MAX_DUMPS_PER_MINUTE, Order

SUSPECT = 2
READ = NativeFunctions(
    calls=(
        NativeFrame(function="pthread_cond_wait", file="libc.so.6"),
        NativeFrame(function="ncclGroupEnd", file="libnccl.so.2"),
    )
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "POLL_S", 0.001)


async def ask(sim: Simulation, rank: int) -> asyncio.Task:
    task = asyncio.create_task(sim.tower.examinations.examine(JOB, rank, native=True))
    for _ in range(3):
        await asyncio.sleep(0)
    return task


def natives(found: dict[str, list[Order]]) -> list[tuple[str, tuple[int, ...]]]:
    return [(node, order.ranks) for node, given in found.items() for order in given if order.native]


def waits_for_device(sim: Simulation) -> None:
    """Have the diagnosis say that its suspect waits for its device."""
    diagnosis = sim.live.watch.diagnosis
    assert diagnosis is not None
    sim.live.watch.diagnosis = replace(diagnosis, unread_natively=(SUSPECT,))


def test_the_suspect_of_an_incident_is_ordered_from_its_node_alone(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim, SUSPECT)
        assert natives(await orders(sim)) == []
        waits_for_device(sim)
        sim.tower.tick()
        assert natives(await orders(sim)) == [("n1", (SUSPECT,))]
        sim.tower.tick()
        assert natives(await orders(sim)) == []

    tell(story)


def test_no_rank_is_ordered_if_the_setting_is_0(tell):
    async def story(sim: Simulation) -> None:
        sim.world.policy = replace(sim.world.policy, native_ranks=0)
        await sim.restart_tower()
        await hang(sim, SUSPECT)
        waits_for_device(sim)
        sim.tower.tick()
        assert natives(await orders(sim)) == []

    tell(story)


def test_an_order_for_functions_replaces_no_order_for_dumps(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        tasks = [await begin(sim), await ask(sim, SUSPECT)]
        found = await orders(sim)
        assert [order.native for order in found["n0"]] == [False]
        assert [order.native for order in found["n1"]] == [False, True]
        for task in tasks:
            task.cancel()

    tell(story)


def test_orders_for_ranks_of_one_node_are_united(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim, SUSPECT)
        waits_for_device(sim)
        sim.tower.tick()
        tasks = [await ask(sim, rank) for rank in (3, SUSPECT, 3)]
        reads = sim.live.native_reads
        assert reads.tries == {SUSPECT: 0}
        assert natives(await orders(sim)) == [("n1", (SUSPECT, 3))]
        assert reads.tries == {SUSPECT: 1}
        assert natives(await orders(sim)) == []
        for task in tasks:
            task.cancel()

    tell(story)


def test_an_operator_gets_the_functions_of_one_rank(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        task = await ask(sim, SUSPECT)
        assert natives(await orders(sim)) == [("n1", (SUSPECT,))]
        sim.functions[SUSPECT] = READ
        await sim.dump(behind=SUSPECT, nodes=("n1",))
        answer = list_examined_stacks(
            (await task).evidence, SUSPECT, all_threads=False, native=True
        )
        (item,) = answer.items
        assert item.functions == READ
        assert answer.missing_evidence == []
        for outermost in (False, True):
            lines = list(describe_stacks(msgspec.to_builtins(answer), outermost=outermost))
            text = "\n".join(lines)
            assert "ncclGroupEnd (libnccl.so.2)" in text
            assert CALLERS_UNKNOWN in text
        plain = list_examined_stacks((await task).evidence, SUSPECT, all_threads=False)
        assert plain.items[0].functions is None

    tell(story)


def test_a_dump_that_was_under_way_is_no_answer(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        task = await ask(sim, SUSPECT)
        await sim.dump(behind=SUSPECT)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not task.done()
        sim.functions[SUSPECT] = READ
        await sim.dump(behind=SUSPECT, rounds=1, nodes=("n1",))
        answer = list_examined_stacks(
            (await task).evidence, SUSPECT, all_threads=False, native=True
        )
        assert answer.items[0].functions == READ

    tell(story)


def test_functions_of_a_rank_that_has_gone_on_are_shown_with_their_dump(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        task = await ask(sim, SUSPECT)
        sim.functions[SUSPECT] = READ
        await sim.dump(behind=SUSPECT, rounds=1, nodes=("n1",))
        evidence = (await task).evidence
        case = msgspec.json.decode(evidence, type=Case)
        (suspect,) = (each for each in case.ranks if each.rank == SUSPECT)
        (dump,) = suspect.dumps
        suspect = replace(suspect, dumps=(dump, replace(dump, functions=None)))
        evidence = msgspec.json.encode(replace(case, ranks=(suspect,)))
        for native, shown in ((True, READ), (False, None)):
            answer = list_examined_stacks(evidence, SUSPECT, all_threads=False, native=native)
            assert answer.items[0].functions == shown
            assert answer.missing_evidence == []

    tell(story)


@pytest.mark.parametrize("native", [False, True])
def test_a_rank_that_no_agent_reports_is_not_examined(tell, native):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        with pytest.raises(RankNotReportedError, match="rank 999 is not reported"):
            await sim.tower.examinations.examine(JOB, 999, native=native)

    tell(story)


@pytest.mark.parametrize(
    ("read", "why"), [(None, OLD_AGENT), (NativeFunctions(failure="it is frozen"), "it is frozen")]
)
def test_why_there_are_none(tell, read, why):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        task = await ask(sim, SUSPECT)
        if read is not None:
            sim.functions[SUSPECT] = read
        await sim.dump(behind=SUSPECT)
        if read is None:
            sim.world.now += examination.WAIT_S
        answer = list_examined_stacks(
            (await task).evidence, SUSPECT, all_threads=False, native=True
        )
        assert answer.missing_evidence == [f"rank {SUSPECT}: no native functions: {why}"]
        assert len(answer.items) == 1

    tell(story)


def test_an_agent_that_dumps_the_job_is_asked_again(tell):
    assert AGAIN_S > 2 * examination.AGAIN_S

    async def story(sim: Simulation) -> None:
        await sim.step(10)
        task = await ask(sim, SUSPECT)
        assert natives(await orders(sim))
        assert not natives(await orders(sim))
        sim.world.now += examination.AGAIN_S
        async with timeout(30):
            while not natives(await orders(sim)):
                await asyncio.sleep(0.001)
        sim.functions[SUSPECT] = READ
        await sim.dump(behind=SUSPECT)
        assert (await task).evidence is not None

    tell(story)


def test_an_order_that_the_agent_would_ignore_is_refused_with_the_time_to_wait(tell):
    async def wait(sim: Simulation, seconds: float) -> None:
        sim.world.now += seconds
        assert natives(await orders(sim)) == []  # every rank is reported again

    async def story(sim: Simulation) -> None:
        await sim.step(10)
        sim.functions[SUSPECT] = READ
        for number in range(MAX_DUMPS_PER_MINUTE):
            await wait(sim, 5.0 if number else 0.0)
            task = await ask(sim, SUSPECT)
            assert natives(await orders(sim)) == [("n1", (SUSPECT,))]
            await sim.dump(behind=SUSPECT, rounds=1, nodes=("n1",))
            await task
        for waited_s, left_s in ((0.0, 35), (34.5, 1)):
            await wait(sim, waited_s)
            with pytest.raises(ExaminationRefusedError, match=f"try again in {left_s} s"):
                await sim.tower.examinations.examine(JOB, SUSPECT, native=True)
        await wait(sim, 0.5)
        task = await ask(sim, SUSPECT)
        assert natives(await orders(sim)) == [("n1", (SUSPECT,))]
        task.cancel()

    tell(story)


def test_orders_for_another_node_are_not_refused(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        for _ in range(MAX_DUMPS_PER_MINUTE):
            sim.tower.effects.orders.order_natives(sim.tower.keepers[JOB], [SUSPECT], sim.world.now)
            await orders(sim)
        with pytest.raises(ExaminationRefusedError):
            await sim.tower.examinations.examine(JOB, SUSPECT, native=True)
        task = await ask(sim, 0)
        assert natives(await orders(sim)) == [("n0", (0,))]
        task.cancel()

    tell(story)
