"""Series are ordered after a verdict, stored with the incident, and deleted with it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec

from tests.jobs.scenes import JOB, World
from tests.tower.simulator import Simulation, hang
from watchtower.jobs.effects import SeriesWanted
from watchtower.jobs.tracing import AGAIN_S, MAX_TRIES
from watchtower.store.rows import MAX_MESSAGES
from watchtower.store.values import SeriesRow
from watchtower.tower.stored_incidents import find_series, get_incident
from watchtower.views.incident import IncidentSeries
from watchtower.views.job import view_steps
from watchtower.wire.series import (
    Lane,
    RankOutput,
    Series,
    SeriesBatch,
    SeriesOrder,
    encode_points,
)

SUSPECT = 2


def a_series(sim: Simulation, rank: int, steps: list[int | None]) -> Series:
    pid = sim.world.ranks[rank].pid
    lane = Lane(name="step", unit="", scale=1.0, values=encode_points(steps))
    return Series(rank=rank, pid=pid, start_time=10 * pid, lanes=(lane,))


def an_answer(sim: Simulation, node: str, order: SeriesOrder) -> SeriesBatch:
    """Return what an agent sends for an order."""
    outputs = [
        RankOutput(
            rank=rank,
            pid=sim.world.ranks[rank].pid,
            start_time=10 * sim.world.ranks[rank].pid,
            stream="stderr",
            lines=("loading <script>",),
            age_s=3.0,
        )
        for rank in order.suspects
    ]
    return SeriesBatch(
        version=1,
        id=f"{order.id}-{node}",
        node=node,
        job=order.job,
        owner=order.owner,
        launch=order.launch,
        incident=order.incident,
        held_s=1.0,
        series=tuple(a_series(sim, rank, [8, 9, 9]) for rank in order.ranks),
        outputs=tuple(outputs),
    )


async def send(sim: Simulation, batch: SeriesBatch) -> None:
    receipt = await sim.tower.take_series(batch, msgspec.json.encode(batch))
    assert receipt.id == batch.id


class Orders:
    """The orders in the replies of a tower, by node."""

    def __init__(self, sim: Simulation) -> None:
        self.given: list[tuple[str, SeriesOrder]] = []
        self._sim = sim
        take = sim.tower.take_report

        def watch(report):
            reply = take(report)
            self.given += [(report.node, order) for order in reply.series]
            return reply

        sim.tower.take_report = watch

    def take(self) -> dict[str, SeriesOrder]:
        given, self.given = dict(self.given), []
        return given

    async def answer(self) -> None:
        for node, order in self.take().items():
            await send(self._sim, an_answer(self._sim, node, order))


async def found(sim: Simulation) -> IncidentSeries:
    (incident,) = await sim.incidents()
    series = await find_series(sim.tower, incident.id)
    assert series is not None
    return series


def test_the_suspect_and_healthy_peers_are_ordered_and_shown(tell):
    async def story(sim):
        orders = Orders(sim)
        await hang(sim, SUSPECT)
        await sim.report(2)
        (incident,) = await sim.incidents()
        given = orders.take()
        assert {node: order.ranks for node, order in given.items()} == {
            "n0": (0,),
            "n1": (SUSPECT,),
            "n2": (4,),
            "n3": (6,),
        }
        assert {order.incident for order in given.values()} == {incident.id}
        assert [order.suspects for order in given.values()] == [(), (SUSPECT,), (), ()]
        for node, order in given.items():
            await send(sim, an_answer(sim, node, order))
        await sim.report(5 * AGAIN_S)
        assert orders.take() == {}
        shown = await found(sim)
        assert [(one.rank, one.is_suspect) for one in shown.items] == [
            (SUSPECT, True),
            (0, False),
            (4, False),
            (6, False),
        ]
        assert shown.items[0].lanes[0].values == [8.0, 9.0, 9.0]
        (output,) = shown.outputs
        assert (output.rank, output.lines) == (SUSPECT, ["loading <script>"])
        detail = await get_incident(sim.tower, incident.id)
        assert detail.outputs == [output]

    tell(story, World(size=8))


def test_the_launches_of_a_job_on_one_node_have_orders_of_their_own(tell):
    async def story(sim):
        for rank, each in sim.world.ranks.items():
            each.launch = f"l{rank // 2}"
        orders = Orders(sim)
        await hang(sim, SUSPECT)
        await sim.report(2)
        given = [order for _, order in orders.given]
        assert [(order.launch, order.ranks) for order in given] == [("l1", (2, 3)), ("l0", (0, 1))]
        assert len({order.id for order in given}) == 2
        for order in given:
            await send(sim, an_answer(sim, "n0", order))
        shown = await found(sim)
        assert [one.rank for one in shown.items] == [2, 0, 1, 3]
        await sim.report(5 * AGAIN_S)
        assert len(orders.given) == 2

    tell(story, World(size=4, per_node=4))


def test_orders_without_an_answer_are_given_a_few_times(tell):
    async def story(sim):
        orders = Orders(sim)
        await hang(sim, SUSPECT)
        await sim.report(2)
        ids = {order.id for _, order in orders.given}
        await sim.report(10 * AGAIN_S)
        ids |= {order.id for _, order in orders.given}
        assert len(ids) == MAX_TRIES

    tell(story)


def test_series_of_another_process_node_or_incident_are_not_stored(tell):
    async def story(sim):
        orders = Orders(sim)
        await hang(sim, SUSPECT)
        await sim.report(2)
        good = an_answer(sim, "n1", orders.take()["n1"])
        other_process = replace(good.series[0], pid=4711)
        for forged in (
            replace(good, node="n0"),
            replace(good, incident="01KAPY3V7QH8M2T4W6Z9B1C5D7"),
            replace(good, job="gpt"),
            replace(good, series=(*good.series, other_process)),
            replace(good, series=(), outputs=()),
        ):
            await send(sim, forged)
        assert (await found(sim)).items == []
        await send(sim, good)
        assert [one.rank for one in (await found(sim)).items] == [SUSPECT, 3]

    tell(story)


def test_series_outlive_the_tower_and_are_not_ordered_again(tell):
    async def story(sim):
        await_orders = Orders(sim)
        await hang(sim, SUSPECT)
        await sim.report(2)
        await await_orders.answer()
        before = await found(sim)
        await sim.restart_tower()
        orders = Orders(sim)
        await sim.report(4 * AGAIN_S)
        assert orders.take() == {}
        assert await found(sim) == before

    tell(story)


def test_one_incident_has_the_series_of_a_few_launches(tell):
    async def story(sim):
        for number in range(2 * MAX_MESSAGES):
            row = SeriesRow(
                incident="i1", node=f"n{number:02}", sharer="", taken_at=1.0, body=b"{}"
            )
            await asyncio.wrap_future(sim.store.save_series(row))
        await asyncio.wrap_future(sim.store.save_series(replace(row, node="n00", body=b"[]")))
        rows = await asyncio.wrap_future(sim.store.series("i1"))
        assert len(rows) == MAX_MESSAGES
        assert rows[0].body == b"[]"

    tell(story)


def test_orders_of_a_silent_agent_expire(tell):
    async def story(sim):
        await hang(sim, SUSPECT)
        orders = sim.tower.effects.orders
        orders.collect_series(("n1", "n1"))
        lost, wanted = ("lost", "agent"), SeriesWanted(incident="i", suspects=(), ranks={})
        orders._series[lost] = {}
        orders.order_series(sim.tower.fleet.jobs[JOB], wanted, sim.world.now)
        assert lost not in orders._series

    tell(story)


def test_the_steps_of_a_job_are_kept_over_its_attempts(tell):
    async def story(sim):
        await sim.step(60)
        sim.world.launch(pids_from=500)
        await sim.step(30)
        steps = view_steps(sim.tower.moment(), JOB)
        assert steps.generation == 2
        assert len(steps.recent.steps) >= 17
        assert max(step or 0 for step in steps.recent.steps) > 50
        assert (steps.recent.steps[-1] or 0) < 31
        assert set(steps.recent.statuses) == {"healthy"}
        assert sim.tower.fleet.account.total > 0

    tell(story)
