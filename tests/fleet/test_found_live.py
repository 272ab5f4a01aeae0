"""What ranks have written of a stall decides where all stacks are equal, and old lines do not."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from tests.diagnosis.builders import a_case, a_dead_rank, a_rank
from watchtower.diagnosis.diagnosed import Diagnosis
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.evidence.case import Case
from watchtower.fleet.found_live import add_written
from watchtower.jobs.incidents import is_reported_at_the_end
from watchtower.wire.dumps import KernelWait, RankDump, WrittenLines
from watchtower.wire.report import ProcessState

HELD = "hold /home/ann/job/main.py:12 < <module> /home/ann/job/main.py:13"
BARRIER = "[Rank 0]: Ranks 2 failed to pass monitoredBarrier in 3000 ms"
WATCHDOG = (
    "[PG ID 0 PG GUID 0(default_pg) Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=60000) ran for "
    "60010 milliseconds before timing out."
)


def a_job(lines: dict[int, str], age_s: float = 3.0, **values: bool) -> Case:
    """Four ranks at one place, and what some of them have written."""
    case = a_case([a_rank(rank, HELD, syscall="clock_nanosleep") for rank in range(4)])

    def write(rank: int, text: str) -> tuple[WrittenLines, ...]:
        return (WrittenLines(file=f"/logs/{rank}.err", text=text, age_s=age_s, **values),)

    ranks = tuple(
        item.with_dumps(
            tuple(replace(d, written=write(item.rank, lines[item.rank])) for d in item.dumps)
        )
        if item.rank in lines
        else item
        for item in case.ranks
    )
    return replace(case, ranks=ranks)


def named(diagnosis: Diagnosis) -> list[int]:
    return [each.rank for each in diagnosis.suspects]


def quoted(diagnosis: Diagnosis) -> list[str]:
    return [each.text for each in diagnosis.evidence if each.source == "log"]


def test_a_monitored_barrier_names_the_rank_with_its_line() -> None:
    case = a_job({0: BARRIER})
    assert named(diagnose(case)) == []
    found = diagnose(add_written(case))
    assert named(found) == [2]
    assert quoted(found) == [f"rank 0 wrote, at least 3 s ago: {BARRIER}"]


@pytest.mark.parametrize("age_s", [9.5, 3600.0])
def test_what_was_written_before_the_last_step_accuses_nobody(age_s: float) -> None:
    case = a_job({0: BARRIER}, age_s)
    assert add_written(case) == case
    assert quoted(diagnose(case)) == []


def test_the_rank_behind_is_named_by_the_numbers_of_the_watchdogs() -> None:
    lines = {rank: WATCHDOG.format(rank=rank, number=6 if rank == 2 else 7) for rank in range(4)}
    found = diagnose(add_written(a_job(lines)))
    assert named(found) == [2]
    equal = {rank: WATCHDOG.format(rank=rank, number=7) for rank in range(4)}
    assert named(diagnose(add_written(a_job(equal)))) == []


def test_a_line_of_several_ranks_is_of_the_rank_that_it_names() -> None:
    case = a_job({1: f"[rank0]:[E1128 15:59:17] {BARRIER}"}, own=False)
    found = diagnose(add_written(case))
    assert named(found) == [2]
    assert quoted(found)[0].startswith("the output of several ranks has, at least 3 s ago: ")


def test_lines_that_no_reader_knows_change_nothing() -> None:
    case = a_job({0: "step 17: loss 3.2", 1: "\x00" * 40, 3: "Ranks 2 failed"})
    assert add_written(case) == case


def test_a_case_is_stored_with_what_lines_showed() -> None:
    case = add_written(a_job({0: BARRIER}))
    stored = msgspec.json.decode(msgspec.json.encode(case), type=Case)
    assert add_written(stored).group_logs == case.group_logs
    assert diagnose(stored) == diagnose(case)


def an_ended_job(lines: dict[int, str], signal: int = 6) -> Case:
    """Four ranks that have ended within a second, and what some of them have written."""
    case = a_case(
        [a_dead_rank(rank, signal=signal, age_s=2.0, step=None) for rank in range(4)],
        stalled_for_s=0.0,
    )

    def write(rank: int) -> tuple[RankDump, ...]:
        written = WrittenLines(file=f"/logs/{rank}.err", text=lines[rank], age_s=40.0)
        bare = RankDump(rank=rank, pid=4000 + rank, start_time=1, kernel=KernelWait())
        return (replace(bare, written=(written,)),)

    ranks = (
        each.with_dumps(write(each.rank)) if each.rank in lines else each for each in case.ranks
    )
    zombies = (replace(each, state=ProcessState.ZOMBIE) for each in ranks)
    return replace(case, ranks=tuple(zombies))


def test_a_job_that_gave_up_waiting_names_the_rank_that_was_awaited() -> None:
    lines = {rank: WATCHDOG.format(rank=rank, number=6 if rank == 2 else 7) for rank in range(4)}
    found = diagnose(add_written(an_ended_job(lines)))
    assert (named(found), found.stalled_for_s) == ([2], 60.01)
    assert is_reported_at_the_end(found)
    assert named(diagnose(an_ended_job(lines))) == []


def test_the_rank_whose_standard_error_has_nothing_is_named() -> None:
    lines = {rank: WATCHDOG.format(rank=rank, number=7) for rank in range(4)}
    found = diagnose(add_written(an_ended_job({**lines, 2: ""})))
    assert (named(found), found.confidence <= 0.8) == ([2], True)
    unread = {rank: text for rank, text in lines.items() if rank != 2}
    assert named(diagnose(add_written(an_ended_job(unread)))) == []


def test_the_exception_of_an_ended_rank_is_in_its_output() -> None:
    text = "Traceback (most recent call last):\nKeyError: 'shard 17'"
    case = an_ended_job({2: text}, signal=15)
    ranks = (*case.ranks[:2], a_dead_rank(2, code=1, step=None).evidence, case.ranks[3])
    ranks = tuple(r.with_dumps(case.ranks[r.rank].dumps) for r in ranks)
    found = diagnose(add_written(replace(case, ranks=ranks)))
    assert named(found) == [2]
    assert "KeyError: 'shard 17'" in found.suspects[0].why


def test_what_nccl_answers_names_the_rank_that_has_launched_fewer() -> None:
    text = (
        "#0-0 (27a079b828ff1a75) MISMATCH\n3 ranks have launched up to operation 41\n"
        "1 ranks have launched up to operation 40\n"
        "Rank 2 -- GPU 2 managed by process 4711 on node 10.0.0.2"
    )
    assert named(diagnose(add_written(a_job({0: text}, own=False)))) == [2]
    ahead = text.replace("operation 40", "operation 42")
    assert named(diagnose(add_written(a_job({0: ahead}, own=False)))) == []
