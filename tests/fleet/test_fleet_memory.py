"""Memory: the bytes of one owner or one node are bounded, and other jobs keep their dumps.

Each attack sends messages that the wire accepts, beside a job of another owner. Its memory is
counted twice: by the fleet's account, and by the interpreter (not in `make test`).
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.batches import EMPTY_BATCH
from tests.diagnosis.builders import a_stack, as_sent
from tests.properties import is_thorough
from watchtower.fleet import fleet as bounds
from watchtower.fleet.fleet import Fleet
from watchtower.jobs.attempt import RIVAL_MEMORY_S, PastAttempt
from watchtower.jobs.keeper import REFILL_S
from watchtower.jobs.pace import Pause, Pauses
from watchtower.jobs.ranks import RANK_BYTES
from watchtower.jobs.samples import Samples
from watchtower.policy import Policy
from watchtower.wire.bounds import MAX_DUMPS_BYTES, MAX_NAME, MAX_RANKS_PER_NODE, MAX_TEXT
from watchtower.wire.collectives import RankCollectives
from watchtower.wire.dumps import DumpBatch, KernelWait, RankDump, SentBatch, ThreadDump
from watchtower.wire.report import AgentGaps, Beat, Ending, EndingKind, RankVitals, Report

USER, OTHER = "uid:1000", "uid:2000"
LIMIT = 4 << 20
"""Limit of the account during the attacks, in bytes."""


def wide(length: int) -> str:
    """Return a new text of characters that take four bytes each."""
    return "".join(["\U0001f600"] * length)


def vitals(job: str, rank: int, pid: int, owner: str = OTHER, **more) -> RankVitals:
    more.setdefault("beat", Beat(step=5, age_s=0.1))
    return RankVitals(job=job, rank=rank, pid=pid, start_time=pid, owner=owner, **more)


def long_vitals(job: str, rank: int, pid: int, **more) -> RankVitals:
    beat = Beat(
        step=5,
        age_s=0.1,
        phase=wide(MAX_NAME),
        exception_type=wide(MAX_NAME),
        exception_text=wide(MAX_TEXT),
    )
    return vitals(job, rank, pid, wchan=wide(MAX_NAME), beat=beat, **more)


def report(node: str, *ranks: RankVitals, gaps: AgentGaps | None = None) -> Report:
    return Report(
        version=1,
        node=node,
        agent_id=node,
        interval_s=1.0,
        ranks=ranks,
        limits=gaps or AgentGaps(),
    )


def batch(job: str, name: str, pids: dict[int, int], node: str, owner: str = OTHER) -> DumpBatch:
    stack = a_stack("f train.py:1")
    thread = ThreadDump(name="MainThread", digest=stack.digest, main=True)
    dumps = tuple(
        RankDump(rank=rank, pid=pid, start_time=pid, kernel=KernelWait(), threads=(thread,))
        for rank, pid in pids.items()
    )
    return replace(
        EMPTY_BATCH,
        id=name,
        node=node,
        job=job,
        owner=owner,
        ranks=dumps,
        stacks=(stack,),
    )


def with_body(sent: DumpBatch, size: int) -> SentBatch:
    """Return a batch whose message has this size. The fleet does not decode it."""
    return SentBatch(sent, bytes(size))


@pytest.fixture
def fleet() -> Fleet:
    """Return a fleet with the victim: a job of four ranks whose dumps have arrived."""
    fleet = Fleet(Policy())
    victim = {rank: 10 + rank for rank in range(4)}
    fleet.take_report(report("n0", *(vitals("llama", r, p, USER) for r, p in victim.items())), 0.0)
    for number in (1, 2):
        sent = as_sent(batch("llama", f"v{number}", victim, "n0", USER))
        fleet.take_dumps(with_body(sent.batch, 200_000), 0.5)
    return fleet


def check_victim(fleet: Fleet) -> None:
    ranks = fleet.jobs["llama"].attempt.ranks
    assert [len(ranks[rank].dumps) for rank in range(4)] == [2] * 4


@contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """Count the bytes by which the interpreter's memory grows.

    Only in the thorough profile, because it makes everything several times slower.
    """
    if not is_thorough():
        yield lambda: 0
        return
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    try:
        yield lambda: tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


@pytest.mark.thorough
def test_the_largest_batches_of_one_owner_take_no_more_than_the_bound(fleet):
    """Before the bound, this number of batches took 4.5 GB."""
    pids = dict.fromkeys(range(53), 1)
    fleet.take_report(report("n1", *(vitals("bad", rank, 1) for rank in pids)), 0.0)
    with traced() as grown:
        for rank in pids:
            one = batch("bad", f"b{rank}", {rank: 1}, "n1")
            fleet.take_dumps(with_body(one, MAX_DUMPS_BYTES), 1.0)
            assert fleet.account.total <= bounds.MAX_STORED_BYTES
        assert grown() <= 1.01 * bounds.MAX_STORED_BYTES
    check_victim(fleet)
    kept = [r.dumps for r in fleet.jobs["bad"].attempt.ranks.values() if r.dumps]
    assert len(kept) >= 10  # ... and what fits is kept


def rivals(fleet: Fleet) -> int:
    """One node claims ranks of 4 jobs of its own, 1000 times each."""
    jobs = [f"bad{n}" for n in range(4)]
    fleet.take_report(report("n1", *(vitals(job, 0, 7) for job in jobs)), 0.0)
    for number, job in enumerate(jobs):
        claims = [long_vitals(job, 0, 1000 + n) for n in range(MAX_RANKS_PER_NODE - 1)]
        fleet.take_report(report(f"m{number}", *claims), 1.0)
    return len(jobs)


def unclaimed(fleet: Fleet) -> int:
    """Dumps of ranks that no agent reports, in many batches with long names."""
    fleet.take_report(report("n1", vitals("bad", 0, 7), vitals("bad2", 0, 8)), 0.0)
    for number in range(60):
        pids = {1000 * number % 260_000 + n: 1 for n in range(MAX_RANKS_PER_NODE)}
        one = batch(("bad", "bad2")[number % 2], f"{number}{wide(200)}", pids, "n1")
        fleet.take_dumps(as_sent(one), 1.0)
    return 2


def other_processes(fleet: Fleet) -> int:
    """Jobs whose ranks restart as often as the limit on attempts allows."""
    jobs = 50
    for number in range(12):
        ranks = (vitals(f"bad{n % jobs}", n // jobs, 1000 * number + n + 1) for n in range(1000))
        fleet.take_report(report("n1", *ranks), REFILL_S * number)
    return 1000


def long_texts(fleet: Fleet) -> int:
    """Ranks with the longest texts there may be, live and ended, again and again."""
    for number in range(6):
        ended = Ending(
            kind=EndingKind.EXIT,
            age_s=0.0,
            exception_type=wide(MAX_NAME),
            exception_text=wide(MAX_TEXT),
        )
        job = f"{number % 3}{wide(MAX_NAME - 1)}"
        for node in range(2):
            ranks = [long_vitals(job, 300 * node + n, 10_000 + n) for n in range(300)]
            if number >= 3:
                ranks = [replace(rank, ended=ended) for rank in ranks]
            fleet.take_report(report(f"n{node}", *ranks), float(number))
    return 1800


def phases(fleet: Fleet) -> int:
    """Step times in as many phases as a job may have."""
    jobs = 60 if is_thorough() else 15
    for number in range(jobs):
        for phase in range(40):
            beat = Beat(
                step=9,
                age_s=0.01,
                advanced=1,
                interval_s=0.5,
                phase=f"{phase}{wide(200)}",
                phase_age_s=100.0,
            )
            for _ in range(2):
                fleet.take_report(
                    report("n1", vitals(f"bad{number}", 0, 7, beat=replace(beat))),
                    10.0 * number + phase,
                )
            for _ in range(20):
                fleet.jobs[f"bad{number}"].attempt.end_tick(10.0 * number + phase)
    return jobs


def sentences(fleet: Fleet) -> int:
    """Agents of many nodes with long sentences about themselves."""
    for number in range(1000):
        words = [wide(MAX_TEXT) for _ in range(5)]
        gaps = AgentGaps(
            python_stacks=words[0],
            process=words[1],
            spool=words[2],
            collectors=words[3],
            owners=words[4],
        )
        fleet.take_report(report(f"m{number}", gaps=gaps), 1.0)
    return 1000


LONG = (pytest.param(each, marks=pytest.mark.long) for each in (rivals, unclaimed, other_processes))


@pytest.mark.thorough
@pytest.mark.parametrize("attack", [*LONG, long_texts, phases, sentences])
def test_what_grows_with_messages_is_counted_and_bounded(fleet, monkeypatch, attack):
    limit = LIMIT if is_thorough() else LIMIT // 4
    monkeypatch.setattr(bounds, "MAX_STORED_BYTES", limit)
    with traced() as grown:
        records = attack(fleet)
        assert fleet.account.total <= limit
        assert grown() <= 1.1 * limit + 2 * RANK_BYTES * records
    check_victim(fleet)
    assert fleet.account.total >= 400_000  # the victim's is there, too


def test_many_owners_that_one_node_invents_cost_no_other_node_s_job_its_dumps(fleet, monkeypatch):
    monkeypatch.setattr(bounds, "MAX_STORED_BYTES", 2_000_000)
    for number in range(100):
        job, owner = f"bad{number}", f"uid:{3000 + number}"
        fleet.take_report(report("n1", vitals(job, 0, 7, owner)), 1.0)
        one = batch(job, f"b{number}", {0: 7}, "n1", owner)
        fleet.take_dumps(with_body(one, 100_000), 1.0)
    check_victim(fleet)
    assert fleet.account.total <= 2_000_000


def test_jobs_that_one_node_founded_share_by_owner(fleet, monkeypatch):
    """Attacker and victim share a node, and the attacker has more bytes there."""
    monkeypatch.setattr(bounds, "MAX_STORED_BYTES", 2_000_000)
    for number in range(30):
        fleet.take_report(report("n0", vitals(f"bad{number}", 0, 7)), 1.0)
        one = batch(f"bad{number}", f"b{number}", {0: 7}, "n0")
        fleet.take_dumps(with_body(one, 100_000), 1.0)
    check_victim(fleet)


def test_the_largest_body_is_dropped_first(fleet, monkeypatch):
    monkeypatch.setattr(bounds, "MAX_STORED_BYTES", 3_000_000)
    fleet.take_report(report("n1", *(vitals("bad", rank, 1) for rank in range(3))), 0.0)
    for rank, size in enumerate((300_000, 2_000_000, 400_000)):
        fleet.take_dumps(with_body(batch("bad", f"b{rank}", {rank: 1}, "n1"), size), 1.0)
    ranks = fleet.jobs["bad"].attempt.ranks
    assert [bool(ranks[rank].dumps) for rank in range(3)] == [True, False, True]


def test_rivals_that_are_not_reported_any_more_expire(fleet):
    attempt = fleet.jobs["llama"].attempt
    fleet.take_report(report("n1", *(vitals("llama", 0, 100 + n, USER) for n in range(50))), 1.0)
    fleet.take_report(report("n1", vitals("another", 0, 7)), 2.0)  # ... and no more of this job
    assert len(attempt.rivals) == 50
    fleet.drop_old(1.0 + RIVAL_MEMORY_S)
    assert len(attempt.rivals) == 50
    fleet.drop_old(1.1 + RIVAL_MEMORY_S)
    assert attempt.rivals == {}
    assert fleet.account.total == 400_000 + attempt.arrivals.size


def test_a_node_s_record_lists_the_ranks_on_it_and_no_other_claims(fleet):
    claims = [vitals("llama", rank, 100 + rank, USER) for rank in range(4)]
    fleet.take_report(report("n1", *claims, vitals("bad", 0, 7)), 1.0)
    assert fleet.nodes["n1"].ranks == {("bad", 0)}


def test_a_dropped_job_takes_no_memory(fleet):
    before = fleet.account.total
    fleet.take_report(report("n1", vitals("bad", 0, 7)), 1.0)
    fleet.take_dumps(with_body(batch("bad", "b", {0: 7}, "n1"), 1000), 1.0)
    assert fleet.account.total > before
    fleet.forget("bad")
    assert fleet.account.total == before


def test_stack_samples_of_a_rank_are_small_for_any_collective_logs():
    samples = Samples()
    samples.begin({0}, 30.0, 0.0)
    logs = tuple(f"{n:016x}" for n in range(4096))
    (dump,) = batch("bad", "b", {0: 7}, "n1").ranks
    with traced() as grown:
        for at in range(3):
            records = RankCollectives(logs=tuple(f"{log}{at}" for log in logs))
            samples.take([replace(dump, collectives=records)], [a_stack("f train.py:1")], float(at))
            del records
        assert grown() < 10_000
    assert samples.latest[0].changed_at == 2.0


def test_learned_pauses_count_and_the_shortest_are_dropped_first(fleet, monkeypatch):
    monkeypatch.setattr(bounds, "MAX_STORED_BYTES", 1_000_000)
    pauses = [Pauses() for _ in range(8)]
    past = PastAttempt(number=1, owner=OTHER)
    fleet.recall({f"old{number}": past for number in range(8)}, {})
    with traced() as grown:
        for number in range(800):
            kept = pauses[number % 8]
            kept.learn(Pause(phase=f"{number}{wide(250)}", frame_class="user", length_s=number))
            fleet.count_kept("pauses of", f"old{number % 8}", kept)
        assert fleet.account.total <= 1_000_000
        assert grown() <= 600_000
    check_victim(fleet)
    left = [pause.length_s for kept in pauses for pause in kept.all()]
    assert 300 < len(left) < 450
    assert max(left) == 799
