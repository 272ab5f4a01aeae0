"""Floods: jobs that change all the time, beside a victim that must be stored in time."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import replace

import pytest

from tests.diagnosis.builders import as_sent
from tests.jobs.scenes import JOB
from tests.tower.simulator import Simulation, hang
from tests.tower.test_owners import owned
from watchtower.jobs.attempt import PastAttempt
from watchtower.jobs.keeper import BURST, REFILL_S
from watchtower.jobs.pace import Pause
from watchtower.jobs.ranks import DumpBody
from watchtower.store.values import AttemptRow
from watchtower.tower import waiting_writes
from watchtower.tower.waiting_writes import MAX_ROWS, PendingRows
from watchtower.wire.dumps import DumpBatch
from watchtower.wire.report import Beat, Ending, EndingKind, RankVitals, Report

USER, OTHER = "uid:1000", "uid:2000"
PAST = PastAttempt(number=1)


def crash_loops(sim: Simulation, attempt: int, jobs: int = 200) -> None:
    """Report a node where every job of another user has new processes in every attempt."""
    ranks = tuple(
        RankVitals(
            job=f"bad{n}",
            rank=0,
            pid=attempt,
            start_time=1000 * attempt + n,
            owner=OTHER,
            launched=True,
            beat=Beat(step=1, age_s=0.1),
        )
        for n in range(jobs)
    )
    sim.tower.take_report(Report(version=1, node="n9", agent_id="n9", interval_s=1.0, ranks=ranks))


def count_deferred(sim: Simulation, node: str) -> int:
    unwatched = sim.tower.fleet.nodes[node].unwatched
    return sum(each.count for each in unwatched if each.reason == "many_attempts")


def test_a_job_begins_few_attempts_a_minute_and_its_last_processes_are_recorded(tell):
    async def story(sim: Simulation) -> None:
        start, attempt, deferred = sim.world.now, 0, 0
        while sim.world.now < start + 60:
            sim.world.now += 0.5
            attempt += 1
            crash_loops(sim, attempt, jobs=1)
            sim.tower.tick()
            deferred += count_deferred(sim, "n9")
        number = sim.tower.fleet.jobs["bad0"].attempt.number
        assert BURST <= number <= 1 + BURST + 60 / REFILL_S
        assert deferred > 100
        for _ in range(int(REFILL_S) + 1):  # ... and then it lives
            sim.world.now += 1.0
            crash_loops(sim, attempt, jobs=1)
            sim.tower.tick()
        assert sim.tower.fleet.jobs["bad0"].attempt.ranks[0].key.pid == attempt

    tell(story)


def test_a_job_that_restarts_too_often_is_not_reported_as_ended(tell):
    """Its ranks run for 5 s and restart a second later. In the end they run on."""

    async def story(sim: Simulation) -> None:
        await sim.step(20)
        deferred = 0
        for attempt in range(1, 26):
            for rank in sim.world.ranks.values():
                rank.ended = Ending(kind=EndingKind.EXIT, age_s=0.0, code=1)
                rank.ended_at = sim.world.now
            await sim.step(1)
            sim.world.launch(pids_from=1000 * attempt)
            for rank in sim.world.ranks.values():
                rank.owner, rank.step = USER, 0
            for _ in range(5):
                await sim.step(1)
                deferred += count_deferred(sim, "n0")
        assert deferred > 0
        await sim.step(20)
        assert await sim.incidents() == []
        assert sim.status == "healthy"
        assert sim.attempt.ranks[0].key.pid == 25_000

    tell(story, owned())


@pytest.mark.long
def test_constant_changes_are_one_write_per_tick(tell):
    async def story(sim: Simulation) -> None:
        commits = []
        save_rows = sim.store.save_rows
        sim.store.save_rows = lambda rows: commits.append(len(rows)) or save_rows(rows)
        queued = []
        add = sim.store._writes.add
        sim.store._writes.add = lambda work: queued.append(work) or add(work)
        for attempt in range(1, 21):
            sim.world.now += 0.1
            crash_loops(sim, attempt)
            for number in range(200):
                pause = Pause(phase=f"{attempt}", frame_class="user", length_s=9.0)
                sim.tower.store_writer.save_pause(f"bad{number}", pause, OTHER)
        assert queued == []
        sim.tower.tick()
        assert commits == [MAX_ROWS]
        assert len(queued) == 1

    tell(story)


@pytest.mark.long
def test_the_victim_of_a_flood_has_its_dumps_its_incident_and_its_attempt_stored(tell, tmp_path):
    """The store is slow. Each write of the victim waits for at most one commit of other rows."""

    async def story(sim: Simulation) -> None:
        for attempt in range(1, 11):
            await sim.step(1)
            crash_loops(sim, attempt)
        await sim.report(6)
        gate = threading.Event()
        sim.store._thread.submit(gate.wait)
        for attempt in range(11, 40):
            sim.world.now += 0.05
            crash_loops(sim, attempt)
            sim.tower.tick()
        waiting = sum(map(len, sim.store._writes._groups))
        gate.set()
        assert waiting <= 2
        began = time.process_time()
        await sim.dump(behind=2)
        assert time.process_time() - began < 2
        await sim.report(12)
        assert sim.status == "hung"
        (incident,) = await sim.incidents()
        assert incident.verdict.suspects[0].rank == 2
        began = time.process_time()
        await sim.close()
        assert time.process_time() - began < 2
        with closing(sqlite3.connect(tmp_path / "watchtower.db")) as db:
            rows = dict(db.execute("SELECT job, number FROM attempts"))
        assert rows[JOB] == 1
        assert len(rows) == 201  # ... and of the others each one row

    tell(story, owned())


def test_owners_take_turns_when_their_jobs_are_stored():
    rows = PendingRows()
    for number in range(10_000):
        rows.put(f"bad{number}", OTHER, 0.0, lambda: AttemptRow("bad", PastAttempt(number=1), 0.0))
    assert rows.put("llama", USER, 9.0, lambda: AttemptRow("llama", PastAttempt(number=1), 0.0))
    assert "llama" in [row.job for row in rows.take()]


def test_a_decoded_batch_is_gone_while_the_disk_is_waited_for(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(3)
        gate = threading.Event()
        sim.store._thread.submit(gate.wait)
        sending = asyncio.create_task(sim.tower.take_dumps(as_sent(sim.batch("n0", 1, 2))))
        await asyncio.sleep(0.05)
        decoded = [each for each in gc.get_objects() if isinstance(each, DumpBatch)]
        gate.set()
        await sending
        assert decoded == []

    tell(story)


def test_a_case_is_the_store_s_once_its_incident_is_open(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        await sim.report(2)
        assert sim.live.incident.evidence is None
        (incident,) = await sim.incidents()
        stored = await asyncio.wrap_future(sim.store.incident(incident.id))
        assert stored.evidence is not None
        await sim.step(30)
        assert sim.status == "healthy"
        assert sim.live.diagnoses.droppable_bytes == 0

    tell(story)


def test_incidents_that_wait_for_a_store_leave_room_for_another_owner_s(tell, monkeypatch):
    monkeypatch.setattr(waiting_writes, "MAX_UNSAVED", 10)
    monkeypatch.setattr(waiting_writes, "MAX_EVIDENCE_BYTES", 10_000)

    async def story(sim: Simulation) -> None:
        await hang(sim)
        await sim.report(2)
        (one,) = await sim.incidents()
        waiting = waiting_writes.Unsaved()
        for number in range(20):
            bad = replace(one, id=f"bad{number}", sharer=OTHER, evidence=bytes(3000))
            assert waiting.put(bad) is (number < 5)
        assert waiting.put(replace(one, evidence=bytes(2000)))
        assert waiting.find(one.id).evidence is not None
        assert sum(len(each.evidence or b"") for each in waiting) <= 10_000
        waiting.remove("bad0")
        assert waiting.put(replace(one, id="bad9", sharer=OTHER))

    tell(story)


@pytest.mark.long
def test_a_job_that_waits_for_its_diagnosis_holds_no_dumps_that_were_dropped(tell):
    """Two other jobs are diagnosed for ever, while the owner of this job has too many bytes."""

    async def story(sim: Simulation) -> None:
        await sim.step(10)
        async with (
            sim.tower.runner._brief._turns.take("x"),
            sim.tower.runner._brief._turns.take("y"),
        ):
            sim.world.now += 6
            for node in ("n0", "n1"):
                ranks = [r for r in sim.world.ranks.values() if r.node == node]
                vitals = tuple(r.vitals(sim.world.size, sim.world.now) for r in ranks)
                report = Report(version=1, node=node, agent_id=node, interval_s=1.0, ranks=vitals)
                sim.tower.take_report(report)
            sim.tower.tick()
            await sim.dump(behind=2)
            sim.tower.tick()
            await asyncio.sleep(0)
            assert sim.live.is_diagnosing
            before = count_bodies()
            sim.tower.fleet.jobs[JOB].drop(1 << 30)
            assert count_bodies() == before - 4

    tell(story)


def count_bodies() -> int:
    gc.collect()
    return sum(isinstance(each, DumpBody) for each in gc.get_objects())
