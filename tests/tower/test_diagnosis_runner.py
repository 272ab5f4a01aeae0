"""Diagnoses whose process ends: only the job of such a diagnosis gets no verdict."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import ClassVar

import pytest

from tests.diagnosers import InThread
from tests.jobs.scenes import JOB
from tests.tower.simulator import Simulation, hang
from tests.tower.test_turns import HandClock
from watchtower.diagnoser.messages import Answer
from watchtower.diagnoser.process import DiagnoserDiedError, GaveUpError
from watchtower.jobs.verdicts import Tries
from watchtower.policy import Policy
from watchtower.tower import diagnosis_runner
from watchtower.tower.diagnosis_runner import DiagnosisRunner, NotDiagnosedError
from watchtower.tower.effects import REST
from watchtower.tower.health import check_health
from watchtower.tower.recording import unrecorded
from watchtower.wire.verdict import Cause

NOTHING = Answer(diagnosis=None, evidence=None)


class Scripted:
    """A diagnoser that dies if the request is in `deadly`. Other requests get an empty answer."""

    deadly: frozenset[str] = frozenset()
    long: frozenset[str] = frozenset()
    """Requests whose brief try gives up. Others get an answer from it."""
    tries: ClassVar[list[tuple[str, bool]]] = []
    """Each request, and whether it was a brief try."""
    started = 0

    def __init__(self) -> None:
        Scripted.started += 1

    def ask(self, request: str, *, brief: bool = False) -> Answer:
        if request in self.deadly:
            raise DiagnoserDiedError("it used more than 2 s of CPU time")
        Scripted.tries.append((request, brief))
        if brief and request in self.long:
            raise GaveUpError
        return NOTHING

    def kill(self) -> None:
        pass


def run(story) -> None:
    async def whole() -> None:
        clock = HandClock([0.0])
        runner = DiagnosisRunner(clock, unrecorded, Scripted)
        try:
            await story(runner, clock)
        finally:
            runner.stop()

    asyncio.run(asyncio.wait_for(whole(), 30))


@pytest.fixture(autouse=True)
def script(monkeypatch):
    monkeypatch.setattr(Scripted, "deadly", frozenset({"bad"}))
    monkeypatch.setattr(Scripted, "started", 0)
    monkeypatch.setattr(Scripted, "tries", [])
    monkeypatch.setattr(Scripted, "long", frozenset({"long"}))


def ask(runner: DiagnosisRunner, job: str, tries: Tries | None = None, owner: str = ""):
    return runner.run(job, owner or job, "", tries or Tries(), lambda: lambda: job)


def test_a_diagnosis_that_ends_its_process_does_not_affect_other_jobs():
    async def story(runner, clock) -> None:
        asked = [ask(runner, "bad"), *(ask(runner, f"job {n}") for n in range(9))]
        bad, *good = await asyncio.gather(*asked, return_exceptions=True)
        assert str(bad) == "the diagnosis was ended: it used more than 2 s of CPU time"
        assert good == [NOTHING] * 9
        assert Scripted.started <= 3  # two, and one for the one that died

    run(story)


def test_a_job_waits_longer_after_each_death_from_the_second_on():
    async def story(runner, clock) -> None:
        tries = Tries()

        async def is_tried() -> bool:
            with pytest.raises(NotDiagnosedError) as caught:
                await ask(runner, "bad", tries)
            return "was ended" in str(caught.value)

        assert [await is_tried() for _ in range(4)] == [True, True, False, False]
        assert tries.again_at > clock.now()
        for wait_s in (30, 60, 120, 240, 480, 600, 600):
            clock.at[0] += wait_s - 1
            assert not await is_tried()
            clock.at[0] += 1
            assert await is_tried()

    run(story)


def test_a_result_ends_the_wait_of_a_job(monkeypatch):
    async def story(runner, clock) -> None:
        tries = Tries()
        for _ in range(2):
            with pytest.raises(NotDiagnosedError):
                await ask(runner, "bad", tries)
        clock.at[0] += diagnosis_runner.BACK_OFF_S
        monkeypatch.setattr(Scripted, "deadly", frozenset())
        assert await ask(runner, "bad", tries) == NOTHING
        assert await ask(runner, "bad", tries) == NOTHING
        assert tries == Tries()

    run(story)


def test_a_job_that_needs_more_than_a_brief_try_gets_none_from_then_on():
    async def story(runner, clock) -> None:
        tries = Tries()
        for _ in range(2):
            assert await ask(runner, "long", tries) == NOTHING
        assert await ask(runner, "short") == NOTHING
        assert Scripted.tries == [("long", True), ("long", False), ("long", False), ("short", True)]
        await ask(runner, "long", Tries())
        assert Scripted.tries[-2:] == [("long", True), ("long", False)]
        assert runner.killed == 0

    run(story)


def test_an_error_in_writing_a_request_is_raised_to_the_caller():
    async def story(runner, clock) -> None:
        with pytest.raises(ZeroDivisionError):
            await runner.run("job", "owner", "", Tries(), lambda: lambda: 1 // 0)
        assert await ask(runner, "job") == NOTHING

    run(story)


def test_a_long_diagnosis_is_followed_by_a_rest(tell):
    """Else a large job would be diagnosed all the time, and every message would wait."""

    async def story(sim: Simulation) -> None:
        class Slow(InThread):
            def ask(self, request, *, brief=False):
                time.sleep(0.2)
                return super().ask(request, brief=brief)

        sim.start_diagnoser = Slow
        await sim.restart_tower()
        await sim.step(10)
        await sim.report(6)
        counters = sim.tower.counters
        until = time.monotonic() + 30
        while not counters.diagnoses:
            await sim.dump(behind=2)
            sim.tower.tick()
            await asyncio.sleep(0.001)
            assert time.monotonic() < until
        ended, live = time.monotonic(), sim.live
        live.is_asked_again = True
        assert live.is_diagnosing
        while counters.diagnoses == 1:
            await asyncio.sleep(0.001)
            assert time.monotonic() < until
        assert time.monotonic() - ended >= 0.9 * REST * 0.2

    tell(story)


class Deadly(InThread):
    """A diagnoser that dies at every request while `gate` is not set."""

    gate = threading.Event()

    def ask(self, request, *, brief=False):
        if not self.gate.is_set():
            raise DiagnoserDiedError("it used more than 2 s of CPU time")
        return super().ask(request, brief=brief)


WHY = "the diagnosis was ended: it used more than 2 s of CPU time"


def test_a_job_that_cannot_be_diagnosed_becomes_hung_with_the_reason(tell, monkeypatch):
    monkeypatch.setattr(Deadly, "gate", threading.Event())

    async def story(sim: Simulation) -> None:
        sim.start_diagnoser = Deadly
        await sim.restart_tower()
        await sim.step(10)
        await sim.report(6)
        await sim.dump(behind=2)
        await sim.report(1)
        assert sim.verdict.summary == f"not diagnosed: {WHY}"
        await sim.report(6)
        (limit,) = check_health(sim.tower).limits
        assert limit.startswith(f"job {JOB} is not diagnosed for now")
        await sim.report(Policy().moving_floor_s)
        (incident,) = await sim.incidents()
        assert sim.status == "hung"
        assert incident.verdict.suspects == ()
        assert incident.verdict.summary.startswith("not diagnosed: ")
        # ... and once it can be, the incident says so.
        Deadly.gate.set()
        await sim.report(4 * diagnosis_runner.BACK_OFF_S)
        (incident,) = await sim.incidents()
        assert incident.verdict.cause is Cause.DATALOADER_STALL

    tell(story)


def test_a_job_for_which_no_case_can_be_made_becomes_hung(tell, monkeypatch):
    def fail(inputs):
        raise ValueError("two of one rank")

    monkeypatch.setattr("watchtower.tower.diagnosis_runner.split_case", fail)

    async def story(sim: Simulation) -> None:
        await sim.step(10)
        await sim.report(6)
        await sim.dump(behind=2)
        await sim.report(60)
        assert sim.status == "hung"
        assert sim.verdict.suspects == ()

    tell(story)


def test_a_diagnosis_that_fails_does_not_take_back_an_earlier_one(tell, monkeypatch):
    monkeypatch.setattr(Deadly, "gate", threading.Event())

    async def story(sim: Simulation) -> None:
        sim.start_diagnoser = Deadly
        await sim.restart_tower()
        Deadly.gate.set()
        await hang(sim)
        Deadly.gate.clear()
        await sim.report(12)
        assert sim.tower.fleet.jobs[JOB].tries.again_at > sim.world.now
        assert sim.verdict.cause is Cause.DATALOADER_STALL

    tell(story)


class Slow(InThread):
    """A diagnoser that answers when `gate` is set."""

    gate = threading.Event()

    def ask(self, request, *, brief=False):
        assert self.gate.wait(30)
        return super().ask(request, brief=brief)


def test_diagnoses_far_behind_make_the_tower_not_ready(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(3)
        gate = threading.Event()
        waiting = asyncio.create_task(
            sim.tower.runner.run("other", "", "", Tries(), lambda: lambda: gate.wait(30) / 0)
        )
        await asyncio.sleep(0)
        assert check_health(sim.tower).ready
        sim.world.now += diagnosis_runner.BEHIND_S
        sim.tower.tick()
        health = check_health(sim.tower)
        assert not health.ready
        assert health.detail == "diagnoses are 60 s behind"
        gate.set()
        with pytest.raises(ZeroDivisionError):
            await waiting
        assert check_health(sim.tower).ready

    tell(story)


def test_a_suspicion_is_judged_without_a_diagnosis_that_does_not_arrive(tell, monkeypatch):
    monkeypatch.setattr(Slow, "gate", threading.Event())

    async def story(sim: Simulation) -> None:
        sim.start_diagnoser = Slow
        await sim.restart_tower()
        settle, sim.settle = sim.settle, lambda: asyncio.sleep(0)
        await sim.step(10)
        await sim.report(6)
        await sim.report(60)
        assert sim.status == "hung"
        assert "not diagnosed: no result within 30 s" in sim.verdict.summary
        Slow.gate.set()
        sim.settle = settle
        await sim.report(10)
        assert "not diagnosed" not in sim.verdict.summary

    tell(story)
