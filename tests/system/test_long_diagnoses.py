"""Owners whose diagnoses use all their CPU time delay each other, and no other owner."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace

import msgspec
import pytest

from tests.batches import EMPTY_BATCH
from tests.diagnosis.builders import FETCHING, a_stack
from tests.system.test_diagnoser import a_request
from watchtower.diagnoser.messages import Request
from watchtower.diagnoser.process import DiagnoserProcess, GaveUpError
from watchtower.jobs.verdicts import Tries
from watchtower.tower.clock import Clock
from watchtower.tower.diagnosis_runner import DiagnosisRunner, NotDiagnosedError
from watchtower.tower.effects import REST
from watchtower.tower.recording import unrecorded

STACKS, BODIES, RANKS = 2000, 60, 100
"""Decoding takes 1.7 s of CPU time, and 2 s are allowed."""


def a_heavy_request() -> Request:
    stacks = tuple(replace(a_stack(FETCHING), digest=f"{n:016x}") for n in range(STACKS))
    batch = replace(
        EMPTY_BATCH,
        node="n0",
        job="llama",
        stacks=stacks,
    )
    return replace(a_request(RANKS), bodies=(msgspec.json.encode(batch),) * BODIES)


async def keep_busy(runner: DiagnosisRunner, owner: str, request: Request) -> None:
    """Have a job diagnosed again and again, as soon as the tower does so."""
    tries = Tries()
    while True:
        began = time.monotonic()
        with contextlib.suppress(NotDiagnosedError):
            await runner.run(owner, owner, "", tries, lambda: lambda: request)
        await asyncio.sleep(REST * (time.monotonic() - began))


async def measure_victim(owners: int, times: int) -> list[float]:
    """Return the seconds of the diagnoses of one more owner."""
    runner, small, heavy = (
        DiagnosisRunner(Clock(), unrecorded, DiagnoserProcess),
        a_request(8),
        a_heavy_request(),
    )
    tasks: list[asyncio.Task[None]] = []
    try:
        await runner.run("warm", "warm", "", Tries(), lambda: lambda: small)
        tasks += [
            asyncio.create_task(keep_busy(runner, f"o{number}", heavy)) for number in range(owners)
        ]
        await asyncio.sleep(0.05)
        took_s = []
        for _ in range(times):
            began = time.monotonic()
            await runner.run("victim", "victim", "", Tries(), lambda: lambda: small)
            took_s.append(time.monotonic() - began)
            await asyncio.sleep(0.3)
        return took_s
    finally:
        for task in tasks:
            task.cancel()
        runner.stop()


@pytest.mark.parametrize("owners", [2, 8])
def test_owners_whose_diagnoses_take_all_their_time_delay_no_other_owner(owners):
    assert max(asyncio.run(measure_victim(owners, 5))) < 1.5


def test_a_brief_try_gives_up_and_the_process_answers_the_next_request():
    diagnoser = DiagnoserProcess()
    try:
        limits = replace(a_request().limits, brief_s=0.05)
        with pytest.raises(GaveUpError):
            diagnoser.ask(replace(a_request(20_000), limits=limits), brief=True)
        assert diagnoser.ask(a_request(), brief=True).diagnosis is not None
    finally:
        diagnoser.kill()


def test_a_brief_try_of_many_bytes_does_not_begin():
    diagnoser = DiagnoserProcess()
    try:
        began = time.monotonic()
        with pytest.raises(GaveUpError):
            diagnoser.ask(a_heavy_request(), brief=True)
        assert time.monotonic() - began < 1.0
        assert diagnoser.ask(a_heavy_request()).diagnosis is not None
    finally:
        diagnoser.kill()
