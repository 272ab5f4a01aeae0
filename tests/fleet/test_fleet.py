"""The fleet maps processes to ranks and attempts."""

from dataclasses import replace

import pytest

from tests.batches import EMPTY_BATCH
from tests.diagnosis.builders import as_sent
from tests.jobs.scenes import JOB, World
from watchtower.fleet.fleet import Fleet, FleetFullError
from watchtower.policy import Policy
from watchtower.wire.bounds import MAX_RANKS_PER_NODE
from watchtower.wire.dumps import DumpBatch, KernelWait, RankDump
from watchtower.wire.report import Beat, Ending, EndingKind, ProcessId, RankVitals, Report


def a_report(node="n0", *ranks: RankVitals) -> Report:
    return Report(version=1, node=node, agent_id="a", interval_s=1.0, ranks=ranks)


def a_rank(rank=0, pid=10, **changes) -> RankVitals:
    vitals = RankVitals(job=JOB, rank=rank, pid=pid, start_time=pid, world_size=2)
    return replace(vitals, **changes)


def test_the_first_report_begins_attempt_one():
    world = World()
    world.report()
    assert world.attempt.number == 1
    assert sorted(world.attempt.ranks) == [0, 1, 2, 3]
    assert world.attempt.world_size == 4


def test_a_late_report_does_not_make_a_death_later():
    fleet = Fleet(Policy())
    living = [a_rank(rank, 10 + rank) for rank in (0, 1)]
    fleet.take_report(a_report("n0", *living), 100.0)
    dead = replace(living[0], ended=Ending(kind=EndingKind.EXIT, code=3, age_s=0.1))
    fleet.take_report(a_report("n0", dead, living[1]), 103.0)  # on its way for two seconds
    dead = replace(dead, ended=Ending(kind=EndingKind.EXIT, code=3, age_s=2.1))
    fleet.take_report(a_report("n0", dead, living[1]), 103.1)
    dead = replace(dead, ended=Ending(kind=EndingKind.EXIT, code=3, age_s=3.1))
    fleet.take_report(a_report("n0", dead, living[1]), 104.9)
    assert fleet.jobs[JOB].attempt.ranks[0].ended_at == pytest.approx(101.0)


def test_ranks_that_come_back_as_new_processes_begin_an_attempt():
    world = World()
    world.step(3)
    for rank in range(4):
        world.end(rank, EndingKind.SIGNAL, 15)
    world.report(2)
    world.launch(pids_from=500)
    world.report()
    assert world.attempt.number == 2
    assert {r.key.pid for r in world.attempt.ranks.values()} == {500, 501, 502, 503}
    assert world.attempt.step() == -1


def test_late_reports_of_an_old_attempt_do_not_change_the_new_one():
    world = World()
    world.step(3)
    old = world.ranks
    for rank in range(4):
        world.end(rank)
    world.report(1)
    world.launch(pids_from=500)
    world.report()
    world.ranks |= {100 + r: replace(rank) for r, rank in old.items()}
    world.report(3)
    assert world.attempt.number == 2
    assert all(r.is_live for r in world.attempt.ranks.values())


def test_one_restarted_node_begins_the_attempt_and_the_others_follow():
    world = World()
    world.step(3)
    for rank in (0, 1):
        world.ranks[rank] = replace(world.ranks[rank], pid=900 + rank, step=-1)
    world.report()
    assert world.attempt.number == 2
    assert sorted(world.attempt.ranks) == [0, 1]
    for rank in (2, 3):
        world.ranks[rank] = replace(world.ranks[rank], pid=900 + rank, step=-1)
    world.report()
    assert world.attempt.number == 2
    assert sorted(world.attempt.ranks) == [0, 1, 2, 3]


def test_a_second_process_with_a_taken_rank_is_a_rival_not_a_restart():
    fleet = Fleet(Policy())
    fleet.take_report(a_report("n0", a_rank(0, 10)), 1.0)
    fleet.take_report(a_report("n1", a_rank(0, 77)), 1.5)
    attempt = fleet.jobs[JOB].attempt
    assert attempt.number == 1
    assert attempt.ranks[0].key.pid == 10
    assert [key.pid for key in attempt.rivals] == [77]


GONE = ProcessId(pid=10, start_time=10)


def test_a_rank_no_longer_reported_ends_when_its_agent_sees_that_its_process_is_gone():
    fleet = Fleet(Policy())
    fleet.take_report(a_report("n0", a_rank(0, 10), a_rank(1, 11)), 1.0)
    assert fleet.nodes["n0"].missing == ()
    for now in (3.0, 100.0):
        fleet.take_report(a_report("n0", a_rank(1, 11)), now)
        assert fleet.jobs[JOB].attempt.ranks[0].is_live
        assert fleet.nodes["n0"].missing == (GONE,)
    fleet.take_report(replace(a_report("n0", a_rank(1, 11)), gone=(GONE,)), 101.0)
    record = fleet.jobs[JOB].attempt.ranks[0]
    assert record.vitals.ended is not None
    assert (record.vitals.ended.kind, record.ended_at) == (EndingKind.UNKNOWN, 101.0)
    assert fleet.nodes["n0"].missing == ()


def test_no_agent_ends_by_an_answer_a_process_that_another_one_has_just_reported():
    fleet = Fleet(Policy())
    fleet.take_report(a_report("n0", a_rank(0, 10)), 1.0)
    other = replace(a_report("n0"), agent_id="intruder", gone=(GONE,))
    fleet.take_report(other, 2.0)
    assert fleet.jobs[JOB].attempt.ranks[0].is_live


def test_if_too_many_ranks_are_missing_the_agent_is_asked_about_each_in_turn():
    fleet = Fleet(Policy())
    count = MAX_RANKS_PER_NODE
    fleet.take_report(a_report("n0", *(a_rank(r, 10 + r) for r in range(count))), 1.0)
    fleet.take_report(a_report("n0", *(a_rank(r, 10 + r) for r in range(count, count + 9))), 2.0)
    asked = set[ProcessId]()
    for now in (3.0, 4.0):
        fleet.take_report(a_report("n0"), now)
        assert len(fleet.nodes["n0"].missing) == count
        asked |= {*fleet.nodes["n0"].missing}
    assert len(asked) == count + 9


@pytest.mark.parametrize(("before", "after"), [(False, True), (True, False)])
def test_an_agent_that_sees_another_pid_namespace_is_not_asked(before, after):
    fleet = Fleet(Policy())
    fleet.take_report(replace(a_report("n0", a_rank(0, 10)), contained=before), 1.0)
    fleet.take_report(replace(a_report("n0"), contained=after), 2.0)
    assert fleet.nodes["n0"].missing == ()
    fleet.take_report(replace(a_report("n0"), contained=before), 3.0)
    assert fleet.nodes["n0"].missing == (GONE,)


def test_a_rank_that_is_reported_again_was_only_out_of_reach():
    fleet = Fleet(Policy(vanish_s=5))
    fleet.take_report(a_report("n0", a_rank(0, 10), a_rank(1, 11)), 1.0)
    for now in (3.0, 9.0):
        fleet.take_report(a_report("n0", a_rank(1, 11)), now)
    fleet.take_report(a_report("n0", a_rank(0, 10), a_rank(1, 11)), 10.0)
    assert fleet.jobs[JOB].attempt.number == 1
    assert fleet.jobs[JOB].attempt.ranks[0].is_live


def test_one_replaced_rank_takes_the_others_that_step_into_the_new_attempt():
    world = World()
    world.step(5)
    world.end(3, EndingKind.SIGNAL, 9)
    world.report(1)
    world.ranks[3] = replace(world.ranks[3], pid=903, ended=None, step=-1, beat_at=world.now)
    world.report()
    assert (world.attempt.number, sorted(world.attempt.ranks)) == (2, [3])
    world.step(1)
    assert (world.attempt.number, sorted(world.attempt.ranks)) == (2, [0, 1, 2, 3])
    assert all(record.is_live for record in world.attempt.ranks.values())


def test_a_process_with_the_environment_of_a_dead_rank_is_not_a_restart():
    world = World()
    world.step(5)
    world.end(3, EndingKind.SIGNAL, 9)
    tool = replace(world.ranks[2], rank=3, pid=999, has_page=False)
    world.ranks[99] = tool
    world.report(3)
    assert world.attempt.number == 1
    assert not world.attempt.ranks[3].is_live
    assert [key.pid for key in world.attempt.rivals] == [999]


def test_for_a_new_tower_the_process_with_a_heartbeat_page_is_the_rank():
    fleet = Fleet(Policy())
    page = Beat(step=5, age_s=1.0)
    tool, rank = a_rank(0, 90), a_rank(0, 10, beat=page)
    fleet.take_report(a_report("n0", tool, rank), 1.0)
    assert fleet.jobs[JOB].attempt.ranks[0].key.pid == 10


def test_a_rank_with_a_page_replaces_a_process_left_over_from_an_earlier_run():
    fleet = Fleet(Policy())
    orphan = a_rank(1, 10)
    fleet.take_report(a_report("n0", orphan), 1.0)
    first, second = a_rank(0, 20), a_rank(1, 21)
    fleet.take_report(a_report("n0", orphan, first, second), 2.0)
    attempt = fleet.jobs[JOB].attempt
    assert (attempt.ranks[1].key.pid, [key.pid for key in attempt.rivals]) == (10, [21])
    for now in (3.0, 4.0):
        page = Beat(step=0, age_s=0.1)
        ranks = replace(first, beat=page), replace(second, beat=page)
        fleet.take_report(a_report("n0", orphan, *ranks), now)
        assert {rank: record.key.pid for rank, record in attempt.ranks.items()} == {0: 20, 1: 21}
        assert [key.pid for key in attempt.rivals] == [10]
    assert (fleet.jobs[JOB].attempt is attempt, fleet.rank_count) == (True, 2)


def test_ranks_that_appear_after_one_has_crashed_already_are_of_its_attempt():
    world = World()
    world.launch(pids_from=100, absent=frozenset({1, 2, 3}))
    world.report()
    world.end(0, EndingKind.EXIT, 1)
    world.report(1)
    crashed = world.ranks[0]
    world.launch(pids_from=100)
    world.ranks[0] = crashed
    world.report(1)
    assert world.attempt.number == 1
    assert sorted(world.attempt.ranks) == [0, 1, 2, 3]


def test_a_rank_of_another_world_size_is_of_the_next_attempt_though_it_comes_before_the_others():
    fleet = Fleet(Policy())
    ranks = [a_rank(rank, 10 + rank) for rank in (0, 1)]
    fleet.take_report(a_report("n0", *ranks), 100.0)
    killed = Ending(kind=EndingKind.SIGNAL, code=9, age_s=0.1)
    fleet.take_report(a_report("n0", *(replace(each, ended=killed) for each in ranks)), 103.0)
    third = a_rank(2, 22, world_size=3)
    fleet.take_report(a_report("n0", third), 110.0)
    others = [a_rank(rank, 20 + rank, world_size=3) for rank in (0, 1)]
    fleet.take_report(a_report("n0", third, *others), 110.5)
    attempt = fleet.jobs[JOB].attempt
    assert (attempt.number, sorted(attempt.ranks)) == (2, [0, 1, 2])
    assert attempt.before is not None
    assert attempt.before.world_size == 2


def test_a_batch_that_arrives_twice_is_one_dump():
    fleet = Fleet(Policy())
    fleet.take_report(a_report("n0", a_rank(0, 10)), 1.0)
    dump = RankDump(rank=0, pid=10, start_time=10, kernel=KernelWait())
    batch = replace(
        EMPTY_BATCH,
        node="n0",
        job=JOB,
        ranks=(dump,),
    )
    assert fleet.take_dumps(as_sent(batch), 5.0) == [dump]
    assert fleet.take_dumps(as_sent(batch), 6.0) == []
    assert len(fleet.jobs[JOB].attempt.ranks[0].dumps) == 1


def test_a_node_that_goes_by_another_name_has_the_same_ranks():
    world = World(per_node=4)
    world.step(5)
    for rank in world.ranks.values():
        rank.node = "renamed"
    world.report(20)
    assert world.attempt.number == 1
    assert {r.key.node for r in world.attempt.ranks.values()} == {"renamed"}
    assert len(world.attempt.ranks) == 4
    assert world.attempt.rivals == {}


def test_an_agent_that_dies_beside_another_of_its_name_ends_no_rank():
    fleet = Fleet(Policy(vanish_s=5))

    def report(agent: str, now: float, *gone: ProcessId) -> None:
        job = f"job-of-{agent}"
        vitals = a_rank(0, ord(agent), job=job)
        fleet.take_report(replace(a_report("n0", vitals), agent_id=agent, gone=gone), now)

    for now in range(10):
        report("a", now)
        report("b", now + 0.5)
    assert fleet.nodes["n0"].shared_at > 0
    gone = ProcessId(pid=ord("a"), start_time=ord("a"))
    for now in range(10, 60):
        report("b", now, gone)
        assert fleet.nodes["n0"].missing == ()
    assert fleet.jobs["job-of-a"].attempt.ranks[0].is_live


def test_a_restarted_agent_is_not_a_second_agent():
    fleet = Fleet(Policy())
    for agent in ("a", "a", "b", "b", "c"):
        fleet.take_report(replace(a_report("n0", a_rank(0, 10)), agent_id=agent), 1.0)
    assert fleet.nodes["n0"].shared_at < 0


def test_a_job_that_ended_before_the_tower_started_is_not_watched():
    world = World()
    world.end(0)
    world.ranks = {0: world.ranks[0]}
    world.now += 3600
    ended = world.ranks[0].vitals(4, world.now)
    world.fleet.take_report(a_report("n0", ended), world.now)
    assert world.fleet.jobs == {}


def test_a_dropped_job_continues_to_count_its_attempts():
    fleet = Fleet(Policy())
    fleet.take_report(a_report("n0", a_rank(0, 10)), 1.0)
    fleet.forget(JOB)
    fleet.take_report(a_report("n0", a_rank(0, 11)), 2.0)
    assert fleet.jobs[JOB].attempt.number == 2


def test_dumps_go_to_the_very_process_they_were_taken_of():
    fleet = Fleet(Policy())
    fleet.take_report(a_report("n0", a_rank(0, 10)), 1.0)

    def batch(pid: int) -> DumpBatch:
        dump = RankDump(rank=0, pid=pid, start_time=pid, kernel=KernelWait())
        return replace(
            EMPTY_BATCH,
            id=f"b{pid}",
            node="n0",
            job=JOB,
            held_s=0.5,
            ranks=(dump,),
        )

    assert fleet.take_dumps(as_sent(batch(10)), 5.0)
    assert not fleet.take_dumps(as_sent(batch(99)), 5.0)
    dumps = fleet.jobs[JOB].attempt.ranks[0].dumps
    assert [at for at, _ in dumps] == [4.5]
    assert not fleet.take_dumps(as_sent(replace(batch(10), job="other")), 5.0)


def test_a_node_beyond_the_limit_is_refused():
    fleet = Fleet(Policy(), max_nodes=1)
    fleet.take_report(a_report("n0", a_rank(0, 10)), 1.0)
    with pytest.raises(FleetFullError, match="n1 is refused: the tower already has 1 nodes"):
        fleet.take_report(a_report("n1"), 1.0)


def test_nodes_that_were_invented_do_not_keep_a_real_one_out():
    fleet = Fleet(Policy(), max_nodes=100)
    fleet.take_report(a_report("n0", a_rank(0, 10)), 0.0)
    for number in range(200):
        fleet.take_report(a_report(f"invented-{number}"), 1.0 + number / 1000)
        fleet.take_report(a_report("idle"), 1.0 + number / 1000)
    fleet.take_report(a_report("n1", a_rank(1, 11)), 2.0)
    assert set(fleet.jobs[JOB].attempt.ranks) == {0, 1}
    assert {"n0", "n1", "idle"} < fleet.nodes.keys()
    assert len(fleet.nodes) == 100


def test_a_job_beyond_the_limit_is_skipped_and_hides_no_other_job():
    fleet = Fleet(Policy(), max_jobs=1)
    fleet.take_report(a_report("n0", a_rank(0, 10)), 1.0)
    fleet.take_report(a_report("n0", a_rank(0, 12, job="other"), a_rank(0, 10)), 2.0)
    assert list(fleet.jobs) == [JOB]
    assert fleet.jobs[JOB].attempt.ranks[0].seen_at == 2.0
    (skipped,) = fleet.nodes["n0"].unwatched
    assert (skipped.reason, skipped.count, skipped.pids) == ("over_limit", 1, (12,))


def test_a_node_that_is_silent_for_long_is_dropped():
    fleet = Fleet(Policy())
    fleet.take_report(a_report("n0", a_rank(0, 10)), 1.0)
    fleet.take_report(a_report("n1"), 1.0)
    fleet.drop_old(3000.0)
    assert sorted(fleet.nodes) == ["n0", "n1"]
    fleet.drop_old(4000.0)
    assert sorted(fleet.nodes) == ["n0"]


def test_the_first_beat_is_not_a_step_time():
    world = World()
    for rank in world.ranks.values():
        rank.step, rank.advanced, rank.interval_s = 0, 1, 0.0
    world.report()
    assert list(world.attempt.pace("").plain) == []


def test_an_unchanged_report_has_the_same_effect_as_one_that_is_decided():
    usual, decided = Fleet(Policy()), Fleet(Policy())
    end = Ending(kind=EndingKind.EXIT, code=3, age_s=0.1)
    for second in range(8):
        beat = Beat(step=second, age_s=0.2, advanced=1, interval_s=1.0)
        ranks = [a_rank(0, 10, beat=beat), a_rank(1, 11, beat=beat)]
        if second >= 4:
            ranks[0] = replace(ranks[0], ended=end)
        if second >= 5:
            ranks.append(a_rank(0, 20, launched=True))  # its successor
        if second >= 7:
            ranks = ranks[1:]
        for fleet in (usual, decided):
            fleet.take_report(a_report("n0", *ranks), 100.0 + second)
        for node in decided.nodes.values():
            node.forget_processes()
        attempts = [fleet.jobs[JOB].attempt for fleet in (usual, decided)]
        assert attempts[0] == attempts[1], second
        assert usual.nodes["n0"].ranks == decided.nodes["n0"].ranks


def test_a_process_that_is_reported_twice_hides_no_missing_rank():
    fleet = Fleet(Policy())
    fleet.take_report(a_report("n0", a_rank(0, 10), a_rank(1, 11)), 100.0)
    fleet.take_report(a_report("n0", a_rank(0, 10), a_rank(0, 10)), 101.0)
    assert fleet.nodes["n0"].missing == (ProcessId(pid=11, start_time=11),)
