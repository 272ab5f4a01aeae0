"""Diagnoses that do not come back: they cost their own job, and nobody else's."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from tests.core.detection.scenes import JOB
from tests.tower.simulator import Simulation, hang
from watchtower.core.diagnosis import diagnosis
from watchtower.tower import thinking
from watchtower.tower.clock import Clock
from watchtower.tower.health import check_health
from watchtower.tower.thinking import MAX_LEFT_BEHIND, DiagnosisHangsError, Thinker
from watchtower.wire.verdict import Cause


@pytest.fixture
def gate(monkeypatch):
    """What a diagnosis that hangs waits for."""
    monkeypatch.setattr(thinking, "THINK_S", 0.2)
    gate = threading.Event()
    yield gate
    gate.set()


def test_one_that_hangs_holds_up_the_others_once(gate):
    async def story() -> None:
        thinker = Thinker(Clock())
        bad = asyncio.create_task(thinker.think("bad", gate.wait))
        good = [asyncio.create_task(thinker.think(f"job {n}", lambda n=n: n)) for n in range(9)]
        with pytest.raises(DiagnosisHangsError, match=r"no diagnosis within 0\.2 s"):
            await bad
        assert await asyncio.gather(*good) == list(range(9))
        began = time.monotonic()
        for _ in range(9):
            with pytest.raises(DiagnosisHangsError, match="earlier diagnoses hang: bad"):
                await thinker.think("bad", gate.wait)
        assert time.monotonic() - began < 0.2
        gate.set()
        while thinker.hanging():
            await asyncio.sleep(0.001)
        assert await thinker.think("bad", lambda: 7) == 7
        thinker.stop(patience_s=1)

    asyncio.run(asyncio.wait_for(story(), 30))


def test_no_more_threads_are_left_behind_than_the_bound(gate):
    async def story() -> None:
        thinker = Thinker(Clock())
        for number in range(MAX_LEFT_BEHIND + 3):
            with pytest.raises(DiagnosisHangsError):
                await thinker.think(f"job {number}", gate.wait)
        assert len(thinker.hanging()) == MAX_LEFT_BEHIND
        thinker.stop(patience_s=1)

    asyncio.run(asyncio.wait_for(story(), 30))


def test_an_error_of_the_diagnosis_is_its_own(gate):
    async def story() -> None:
        thinker = Thinker(Clock())
        with pytest.raises(TimeoutError, match="its own"):
            await thinker.think("job", lambda: (_ for _ in ()).throw(TimeoutError("its own")))
        assert thinker.hanging() == []
        thinker.stop(patience_s=1)

    asyncio.run(asyncio.wait_for(story(), 30))


def test_a_job_whose_diagnosis_hangs_is_hung_all_the_same_and_readyz_says_so(
    tell, gate, monkeypatch
):
    monkeypatch.setattr("watchtower.tower.diagnosing.diagnose", lambda case: gate.wait())

    async def story(sim: Simulation) -> None:
        await sim.step(10)
        await sim.report(6)
        await sim.dump(behind=2)
        await sim.report(1)
        assert sim.verdict.missing_evidence == ("the diagnosis failed (DiagnosisHangsError)",)
        assert f"the diagnosis of job {JOB} does not come back" in check_health(sim.tower).limits
        await sim.report(60)
        assert sim.status == "hung"

    tell(story)


def test_a_job_of_which_no_case_can_be_made_is_hung_all_the_same(tell, monkeypatch):
    def fail(sketch, earlier):
        raise ValueError("two of one rank")

    monkeypatch.setattr("watchtower.tower.diagnosing.make_case", fail)

    async def story(sim: Simulation) -> None:
        await sim.step(10)
        await sim.report(6)
        await sim.dump(behind=2)
        await sim.report(1)
        assert sim.verdict.missing_evidence == ("the diagnosis failed (ValueError)",)
        await sim.report(60)
        assert sim.status == "hung"
        assert sim.verdict.suspects == ()

    tell(story)


def test_a_diagnosis_that_hangs_does_not_take_back_an_earlier_one(tell, gate, monkeypatch):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        monkeypatch.setattr(diagnosis, "RULES", (("endless", lambda *_: gate.wait()),))
        await sim.report(12)
        assert sim.tower.thinker.hanging() == [JOB]
        assert sim.verdict.cause is Cause.DATALOADER_STALL

    tell(story)


def test_diagnoses_far_behind_make_the_tower_not_ready(tell, monkeypatch):
    async def story(sim: Simulation) -> None:
        gate = threading.Event()
        await sim.step(3)
        waiting = asyncio.create_task(sim.tower.thinker.think("other", gate.wait))
        await asyncio.sleep(0)
        assert check_health(sim.tower).ready
        sim.world.now += thinking.BEHIND_S
        sim.tower.tick()
        health = check_health(sim.tower)
        assert not health.ready
        assert health.detail == "diagnoses are 60 s behind"
        gate.set()
        await waiting
        assert check_health(sim.tower).ready

    tell(story)
