"""The identity of an incident: frozen at its opening, because its alert has it as labels."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.jobs.scenes import JOB
from tests.tower.simulator import Simulation, hang
from watchtower.incidents.incident import Identity, IncidentKind
from watchtower.jobs.verdicts import identify
from watchtower.wire.report import EndingKind, JobLabels
from watchtower.wire.verdict import Cause, Domain, Status, Verdict

Tell = Callable[..., None]


def name_user(sim: Simulation, user: str) -> None:
    """Let the scheduler's labels of the job name a user."""
    sim.tower.fleet.jobs[JOB].labels = JobLabels(job=JOB, user=user)


async def identity(sim: Simulation) -> Identity:
    (incident,) = await sim.incidents()
    return incident.identity


def test_identity_stays_while_the_verdict_and_the_tower_change(tell: Tell):
    async def story(sim: Simulation) -> None:
        await sim.step(1)
        name_user(sim, "alice")
        await hang(sim, rank=2)
        first = await identity(sim)
        assert (first.kind, first.user) == (IncidentKind.HUNG, "alice")
        assert first.domain is sim.verdict.domain

        name_user(sim, "mallory")
        await sim.dump(behind=1)
        await sim.report(5)
        assert [suspect.rank for suspect in sim.verdict.suspects] == [1]
        assert await identity(sim) == first

        for again in (sim.restart_tower, sim.kill_tower):
            await again()
            await sim.report(20)
            assert await identity(sim) == first
        await sim.step(3)
        assert await identity(sim) == first

    tell(story)


def test_a_death_that_ends_the_job_is_of_the_kind_ended(tell: Tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        for rank in range(4):
            sim.world.end(rank, EndingKind.SIGNAL, int(signal.SIGSEGV))
        await sim.report(10)
        assert (await identity(sim)).kind is IncidentKind.ENDED
        await sim.restart_tower()
        assert (await identity(sim)).kind is IncidentKind.ENDED

    tell(story)


@pytest.mark.parametrize(
    ("status", "cause", "kind"),
    [
        (Status.HUNG, Cause.NEVER_STARTED, IncidentKind.NEVER_STARTED),
        (Status.HUNG, Cause.DATALOADER_STALL, IncidentKind.HUNG),
        (Status.ENDED, Cause.NEVER_STARTED, IncidentKind.ENDED),
    ],
)
def test_the_kind_is_of_the_first_verdict(status: Status, cause: Cause, kind: IncidentKind):
    verdict = Verdict(job=JOB, generation=1, status=status, cause=cause, summary="")
    found = identify(status, verdict, "alice")
    assert found == Identity(kind=kind, domain=Domain.UNKNOWN, user="alice")
