"""Jobs that no rank is left of: what ended them is an incident, unless an order or the end did."""

from __future__ import annotations

import signal

import pytest

from tests.tower.simulator import Simulation
from watchtower.alerts.labels import has_alert
from watchtower.incidents.incident import IncidentKind
from watchtower.wire.report import LINE_END, Ending, EndingKind
from watchtower.wire.verdict import Cause, Domain

CLOSED = LINE_END.join(
    (
        "NCCL error in: ../ProcessGroupNCCL.cpp:1970, remote process exited, NCCL version 2.21.5",
        "ncclRemoteError: A call failed possibly due to a network error",
        "Last error:",
        "socketProgress: Connection closed by remote peer node-17<41822>",
    )
)


def fail(sim: Simulation, *ranks: int, text: str = CLOSED, age_s: float = 0.0) -> None:
    """End ranks by an error of NCCL, `age_s` ago."""
    for rank in ranks:
        each = sim.world.ranks[rank]
        each.ended_at = sim.world.now - age_s
        each.ended = Ending(
            kind=EndingKind.EXIT,
            age_s=age_s,
            code=1,
            exception_type="torch.distributed.DistBackendError",
            exception_text=text,
        )


def exit_all(sim: Simulation, code: int) -> None:
    for rank in sim.world.ranks:
        sim.world.end(rank, EndingKind.EXIT, code)


async def only_incident(sim: Simulation):
    (incident,) = await sim.incidents()
    assert incident.identity.kind is IncidentKind.ENDED
    return incident


def suspects_of(incident) -> list[int]:
    return [suspect.rank for suspect in incident.verdict.suspects]


def test_one_error_of_every_rank_is_an_incident_that_blames_no_rank(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        fail(sim, 0, 1, 2, 3)
        await sim.report(5)
        incident = await only_incident(sim)
        assert (sim.status, suspects_of(incident)) == ("ended", [])
        assert (incident.verdict.cause, incident.verdict.domain) == (
            Cause.EXCEPTION,
            Domain.NETWORK,
        )
        assert "Connection closed by remote peer node-17" in incident.verdict.summary
        assert has_alert(incident)

    tell(story)


def test_a_job_that_ends_while_its_diagnosis_waits_for_its_turn_has_an_incident(tell, monkeypatch):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        runner, waits = sim.tower.runner, [True]
        run = runner.run

        async def wait(*arguments, **options):
            if waits:
                waits.clear()
                fail(sim, 0, 1, 3)
                while sim.status != "ended":
                    sim.world.now += 1
                    for node in {rank.node for rank in sim.world.ranks.values()}:
                        sim.tower.take_report(sim.world.make_report(node, node, ()))
                    sim.tower.tick()
            return await run(*arguments, **options)

        monkeypatch.setattr(runner, "run", wait)
        fail(sim, 2)
        await sim.report(8)
        assert not waits
        assert suspects_of(await only_incident(sim)) == [2]

    tell(story)


def test_the_rank_that_raised_it_seconds_before_the_others_is_named(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        fail(sim, 0, 1, 3)
        fail(sim, 2, age_s=1.5)
        await sim.report(5)
        assert suspects_of(await only_incident(sim)) == [2]

    tell(story)


def test_an_error_is_dated_by_its_exception_and_not_by_the_end_of_the_process(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        fail(sim, 0, 1, 3, age_s=1.5)
        fail(sim, 2)
        before = {"raised_before_s": 3.0}
        sim.world.ranks[2].ended = Ending(**{**_fields(sim.world.ranks[2].ended), **before})
        await sim.report(5)
        assert suspects_of(await only_incident(sim)) == [2]

    tell(story)


def _fields(ended: Ending) -> dict:
    return {name: getattr(ended, name) for name in Ending.__dataclass_fields__}


@pytest.mark.parametrize("code", [1, 3])
def test_an_exit_code_without_a_text_is_an_incident(tell, code):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        exit_all(sim, code)
        await sim.report(5)
        incident = await only_incident(sim)
        assert (incident.verdict.cause, suspects_of(incident)) == (Cause.PROCESS_DIED, [])

    tell(story)


@pytest.mark.parametrize("has_page", [True, False])
def test_a_job_that_dies_before_its_second_report_is_an_incident(tell, has_page):
    async def story(sim: Simulation) -> None:
        for rank in sim.world.ranks.values():
            rank.has_page = has_page
        fail(sim, 0, 1, 2, 3)
        await sim.report(5)
        assert (await only_incident(sim)).verdict.cause is Cause.EXCEPTION

    tell(story)


def test_a_job_that_is_started_again_and_dies_before_its_first_report_is_an_incident(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        exit_all(sim, 0)
        await sim.report(5)
        assert await sim.incidents() == []
        sim.world.launch(pids_from=500)
        sim.world.now += 0.5
        fail(sim, 0, 1, 2, 3)
        await sim.report(5)
        assert (await only_incident(sim)).generation == 2

    tell(story)


def test_an_attempt_that_ended_is_not_a_later_one_if_it_was_found_before(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        late = {rank: each for rank, each in sim.world.ranks.items() if rank > 1}
        sim.world.launch(pids_from=500)
        await sim.step(2)
        exit_all(sim, 0)
        for each in late.values():
            each.ended, each.ended_at = Ending(kind=EndingKind.EXIT, age_s=0.0, code=1), 1001.0
            each.pid += 1000  # never reported before
        sim.world.ranks |= late
        await sim.report(5)
        assert sim.attempt.number == 2
        assert await sim.incidents() == []

    tell(story)


@pytest.mark.parametrize("after_s", [1, 6])
def test_a_job_that_its_launcher_starts_again_is_healthy(tell, after_s):
    """Only what lasts longer than the settle time is reported: the launcher handles it."""

    async def story(sim: Simulation) -> None:
        await sim.step(10)
        fail(sim, 0, 1, 2, 3)
        await sim.report(after_s)
        sim.world.launch(pids_from=500)
        await sim.step(8)
        assert (sim.status, sim.verdict.incident) == ("healthy", None)
        assert len(await sim.incidents()) == (after_s > 2)

    tell(story)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGUSR1])
def test_an_order_from_outside_is_not_an_incident(tell, number):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        for rank in sim.world.ranks:
            sim.world.end(rank, EndingKind.SIGNAL, int(number))
        await sim.report(5)
        assert (sim.status, await sim.incidents()) == ("ended", [])

    tell(story)


@pytest.mark.parametrize("code", [0, None])
def test_a_job_that_may_have_finished_is_not_an_incident(tell, code):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        kind = EndingKind.EXIT if code == 0 else EndingKind.UNKNOWN
        for rank in sim.world.ranks:
            sim.world.end(rank, kind, code)
        await sim.report(5)
        assert (sim.status, await sim.incidents()) == ("ended", [])

    tell(story)
