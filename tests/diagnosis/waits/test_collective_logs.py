"""Collective logs: their bounds, and the job's own timeout."""

from dataclasses import replace

from tests.diagnosis.builders import IN_TORCH_ALL_REDUCE, a_rank, ranks_in
from tests.diagnosis.recording import Groups, a_recorded_case, calls
from watchtower.diagnosis.waits import collective_logs as module
from watchtower.diagnosis.waits.collective_logs import (
    CollectiveLogs,
    find_own_timeout,
    read_collective_logs,
)
from watchtower.diagnosis.waits.graph import MAX_OPEN, build_wait_graph
from watchtower.evidence.case import Case
from watchtower.evidence.collective_log import CallLog
from watchtower.wire.collectives import make_group_log

INSIDE, OVER = calls("all_reduce all_reduce", open=1), calls("all_reduce")
WORLD = {"w": range(4)}


def read(case: Case) -> CollectiveLogs:
    logs = read_collective_logs(case)
    assert logs is not None
    return logs


def test_a_group_with_members_beyond_the_job_is_left_out():
    huge = {f"lie {number}": range(262_144) for number in range(3)}
    case = a_recorded_case(
        ranks_in(4),
        {**WORLD, **huge},
        {rank: {"w": INSIDE} for rank in range(3)} | {3: {"w": OVER} | dict.fromkeys(huge, INSIDE)},
    )
    logs = read(case)
    assert [group.name for group in logs.groups.values()] == ["w"]


def test_beyond_the_budget_the_groups_that_most_ranks_use_stay(monkeypatch):
    monkeypatch.setattr(module, "LEAST_MEMBERS", 40)
    monkeypatch.setattr(module, "MEMBERS_PER_RANK", 1)
    lies: Groups = {f"lie {number}": range(4) for number in range(30)}
    made = {rank: {"w": INSIDE} for rank in range(3)} | {
        3: {"w": OVER, **dict.fromkeys(lies, OVER)}
    }
    logs = read(a_recorded_case(ranks_in(4), {**lies, **WORLD}, made))
    assert "w" in {group.name for group in logs.groups.values()}
    assert len(logs.groups) == 10


def test_of_many_logs_of_one_group_the_newest_counts():
    case = a_recorded_case(ranks_in(4), WORLD, {rank: {"w": INSIDE} for rank in range(4)})
    older = a_recorded_case(ranks_in(4), WORLD, {rank: {"w": OVER} for rank in range(4)})
    rank = case.ranks[0]
    both = [*older.ranks[0].dumps[-1].collectives.logs, *rank.dumps[-1].collectives.logs]
    assert len(both) == 2
    collectives = replace(rank.dumps[-1].collectives, logs=tuple(both))
    dump = replace(rank.dumps[-1], collectives=collectives)
    lying = replace(
        case,
        ranks=(replace(rank, dumps=(dump,)), *case.ranks[1:]),
        group_logs=(*case.group_logs, *older.group_logs),
    )
    logs = read(lying)
    assert [log.called for log in logs.logs_of(0)] == [2]
    assert all(len(ranks) == 4 for by_log in logs.in_group.values() for ranks in by_log.values())


def test_made_up_numbers_make_few_points_and_the_true_one_is_among_them():
    made = {rank: {"w": calls("all_reduce", before=50 + rank, open=1)} for rank in range(40)}
    made |= {rank: {"w": calls("all_reduce", before=20, open=1)} for rank in range(40, 60)}
    case = a_recorded_case(
        [a_rank(rank, IN_TORCH_ALL_REDUCE) for rank in range(60)], {"w": range(60)}, made
    )
    points = build_wait_graph(read(case), (), ()).points
    assert len(points) == MAX_OPEN
    assert 21 in {point.number for point in points}


def a_log(called: int, completed: int, timeout_s: float) -> CallLog:
    log = make_group_log(
        group="g",
        called=called,
        entered=called,
        completed=completed,
        records=(),
        timeout_s=timeout_s,
    )
    return CallLog(log)


def logs_of(*logs: CallLog) -> CollectiveLogs:
    return CollectiveLogs(by_digest={str(number): log for number, log in enumerate(logs)})


def test_the_shortest_timeout_of_the_open_calls_counts():
    logs = logs_of(a_log(5, 4, 1800.0), a_log(7, 6, 600.0), a_log(3, 3, 60.0))
    assert find_own_timeout(logs) == 600.0


def test_without_an_open_call_or_a_recorded_timeout_it_is_not_known():
    assert find_own_timeout(None) is None
    assert find_own_timeout(logs_of(a_log(3, 3, 60.0), a_log(5, 4, 0.0))) is None
    assert find_own_timeout(logs_of(a_log(5, -1, 60.0))) is None
