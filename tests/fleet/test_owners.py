"""Owners: processes of different owners belong to different jobs, and quotas are by owner."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.diagnosis.builders import a_stack, as_sent
from tests.fleet.test_fleet_bounds import count_unwatched, dumps, report
from watchtower.fleet import fleet as bounds
from watchtower.fleet.fleet import Fleet
from watchtower.fleet.labels import MAX_PAIRS, Labels
from watchtower.jobs.attempt import PastAttempt
from watchtower.jobs.condition import ConditionKind
from watchtower.jobs.detector import Detector
from watchtower.jobs.pace import Pauses
from watchtower.jobs.ranks import ProcessKey
from watchtower.policy import Policy
from watchtower.service.sharing import Quota
from watchtower.wire.bounds import MAX_NAME
from watchtower.wire.report import Beat, Ending, EndingKind, RankVitals

STEPS = Beat(step=5, age_s=0.1, advanced=1, interval_s=1.0)
STUCK = Beat(step=1, age_s=500.0)
USER, OTHER = "uid:1000", "uid:1001"


def vitals(rank: int = 0, pid: int = 1, owner: str = USER, **more) -> RankVitals:
    words = {"job": "llama", "beat": STEPS, "world_size": 2, **more}
    return RankVitals(rank=rank, pid=pid, start_time=pid, owner=owner, **words)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(Policy())


def ranks_of(fleet: Fleet, label: str = "llama") -> dict[int, int]:
    return {rank: r.key.pid for rank, r in fleet.jobs[label].attempt.ranks.items()}


def test_another_user_s_process_takes_no_rank_and_stalls_no_job(fleet):
    """Its rank exists already or does not. The process is older, younger, or on another node."""
    real = [vitals(0, 10), vitals(1, 11)]
    attack = [
        vitals(0, 1, OTHER, beat=STUCK),
        vitals(7, 2, OTHER, beat=STUCK),
        vitals(1, 99, OTHER, beat=None),
    ]
    detector = Detector(Policy())
    elsewhere = [replace(each, pid=each.pid + 100) for each in attack]
    fleet.take_report(report("n0", *real), 0.0)
    for now in range(20):
        real = [replace(each, beat=replace(STEPS, step=5 + now)) for each in real]
        fleet.take_report(report("n0", *real, *attack), float(now))
        fleet.take_report(report("n1", *elsewhere), float(now))
        for pace in fleet.jobs["llama"].attempt.paces.values():
            pace.end_tick()
    assert ranks_of(fleet) == {0: 10, 1: 11}
    attempt = fleet.jobs["llama"].attempt
    assert attempt.rivals == {}
    assert detector.judge(attempt, fleet.nodes, Pauses(), 19.0).kind is ConditionKind.STEPPING
    assert fleet.jobs["llama@uid:1001"].owner == OTHER
    assert sorted(ranks_of(fleet, "llama@uid:1001")) == [0, 1, 7]


def test_another_user_s_process_hides_no_dead_rank(fleet):
    fleet.take_report(report("n0", vitals(0, 10), vitals(1, 11)), 0.0)
    dead = vitals(0, 10, ended=Ending(kind=EndingKind.SIGNAL, code=9, age_s=0.5))
    fleet.take_report(report("n0", dead, vitals(1, 11), vitals(0, 50, OTHER)), 1.0)
    job = fleet.jobs["llama"]
    assert (job.attempt.number, ranks_of(fleet)) == (1, {0: 10, 1: 11})
    assert job.attempt.ranks[0].ended_at is not None


def test_the_plain_name_is_the_first_owner_s_also_after_a_restart(fleet):
    fleet.take_report(report("n0", vitals(0, 10)), 0.0)
    fleet.take_report(report("n1", vitals(0, 20, OTHER)), 1.0)
    past = {name: job.attempt.remember(job.owner) for name, job in fleet.jobs.items()}
    again = Fleet(Policy())
    again.recall(past, {})
    again.take_report(report("n1", vitals(0, 20, OTHER)), 2.0)
    again.take_report(report("n0", vitals(0, 10)), 3.0)
    assert {name: job.owner for name, job in again.jobs.items()} == {
        "llama": USER,
        "llama@uid:1001": OTHER,
    }
    assert [job.attempt.number for job in again.jobs.values()] == [1, 1]


def test_the_name_of_a_dropped_job_still_belongs_to_its_owner(fleet):
    fleet.take_report(report("n0", vitals(0, 10)), 0.0)
    fleet.forget("llama")
    fleet.take_report(report("n0", vitals(0, 20, OTHER)), 1.0)
    assert list(fleet.jobs) == ["llama@uid:1001"]
    fleet.take_report(report("n0", vitals(0, 30)), 2.0)
    assert fleet.jobs["llama"].attempt.number == 2


def test_many_ended_jobs_of_one_owner_do_not_free_the_name_of_another_one_s_job(fleet, monkeypatch):
    monkeypatch.setattr(bounds, "MAX_PAST", 10)
    fleet.take_report(report("n0", vitals(0, 10)), 0.0)
    fleet.forget("llama")
    for number in range(40):
        fleet.take_report(report("n1", vitals(0, 20 + number, OTHER, job=f"j{number}")), 1.0)
        fleet.forget(f"j{number}")
    assert len(fleet.past) <= 11
    fleet.take_report(report("n1", vitals(0, 99, OTHER)), 2.0)
    assert list(fleet.jobs) == ["llama@uid:1001"]
    fleet.take_report(report("n0", vitals(0, 11)), 3.0)
    assert fleet.jobs["llama"].attempt.number == 2


def test_a_live_job_keeps_its_label_when_the_first_owner_is_no_longer_known(fleet, monkeypatch):
    monkeypatch.setattr(bounds, "MAX_PAST", 1)
    fleet.take_report(report("n0", vitals(0, 10), vitals(0, 20, OTHER)), 0.0)
    fleet.forget("llama")
    fleet.take_report(report("n0", vitals(0, 30, OTHER, job="more")), 1.0)
    fleet.forget("more")
    assert "llama" not in fleet.past
    fleet.take_report(report("n0", vitals(0, 20, OTHER), vitals(1, 21, OTHER)), 2.0)
    assert ranks_of(fleet, "llama@uid:1001") == {0: 20, 1: 21}
    assert list(fleet.jobs) == ["llama@uid:1001"]


def test_no_name_leads_to_another_owner_s_job(fleet):
    """An owner may choose a job name that equals the label of another owner's job."""
    fleet.take_report(report("n0", vitals(0, 10, OTHER, job="llama@uid:1000")), 0.0)
    fleet.take_report(report("n0", vitals(0, 20, "uid:0")), 1.0)
    fleet.take_report(report("n0", vitals(0, 30)), 2.0)
    assert {name: job.owner for name, job in fleet.jobs.items()} == {
        "llama@uid:1000": OTHER,
        "llama": "uid:0",
        "llama@uid:1000@uid:1000": USER,
    }


def test_the_search_for_a_label_ends_for_any_names():
    labels = Labels(lambda label: OTHER if len(label) <= MAX_NAME else None)
    assert len(labels.find("x", USER)) <= MAX_NAME + len(USER) + 1


def test_the_names_of_a_live_job_are_bounded():
    labels = Labels(lambda _: None)
    for number in range(3 * MAX_PAIRS):
        labels.bind("x", f"uid:{number}", "x")
    assert len(labels._live) == MAX_PAIRS
    labels.drop("x")
    assert labels._live == labels._pairs == {}


def test_processes_without_an_owner_join_the_job_with_the_plain_name(fleet):
    fleet.take_report(report("n0", vitals(0, 10, "")), 0.0)
    assert fleet.jobs["llama"].owner == ""
    fleet.take_report(report("n1", vitals(1, 20)), 1.0)
    assert fleet.jobs["llama"].owner == USER
    fleet.take_report(report("n2", vitals(2, 30, "")), 2.0)
    assert ranks_of(fleet) == {0: 10, 1: 20, 2: 30}
    assert list(fleet.jobs) == ["llama"]


def test_a_process_stays_in_its_job_when_its_agent_learns_the_owner(fleet):
    """Agents restart one after the other, and report the namespace of the pods after that."""
    old, new = "uid:0", "namespace:team-a"
    fleet.take_report(report("n0", vitals(0, 10, old)), 0.0)
    fleet.take_report(report("n1", vitals(1, 20, old)), 0.0)
    fleet.take_report(report("n0", vitals(0, 10, new)), 1.0)
    fleet.take_report(report("n1", vitals(1, 20, old)), 1.0)
    assert ranks_of(fleet) == {0: 10, 1: 20}
    assert (list(fleet.jobs), fleet.jobs["llama"].owner) == (["llama"], new)
    assert fleet.take_dumps(as_sent(replace(batch(0, 10), owner=new)), 2.0)
    assert fleet.take_dumps(as_sent(replace(batch(1, 20, "n1"), owner=old)), 2.0)


def test_a_process_stays_in_its_job_when_its_agent_learns_the_owner_without_a_tower(fleet):
    past = PastAttempt(number=3, processes=frozenset({ProcessKey("n0", 10, 10)}), owner="uid:0")
    fleet.recall({"llama": past}, {})
    fleet.take_report(report("n0", vitals(0, 10, "namespace:team-a")), 0.0)
    job = fleet.jobs["llama"]
    assert (job.owner, job.attempt.number) == ("namespace:team-a", 3)


def batch(rank: int, pid: int, node: str = "n0"):
    return dumps("llama", rank, pid, a_stack("a train.py:1"), node=node)


def test_dumps_go_to_the_job_of_their_owner(fleet):
    fleet.take_report(report("n0", vitals(0, 10), vitals(0, 20, OTHER)), 0.0)
    assert fleet.take_dumps(as_sent(replace(batch(0, 20), owner=OTHER)), 1.0)
    held = {name: job.attempt.dumps_bytes > 0 for name, job in fleet.jobs.items()}
    assert held == {"llama": False, "llama@uid:1001": True}
    assert not fleet.take_dumps(as_sent(replace(batch(0, 10), owner=OTHER, id="b2")), 1.0)


def test_the_owner_with_most_bytes_loses_dumps_however_many_jobs_he_has(fleet, monkeypatch):
    many = [vitals(0, 100 + n, OTHER, job=f"j{n}") for n in range(8)]
    fleet.take_report(report("n0", vitals(0, 10), *many), 0.0)
    large = as_sent(replace(dumps("llama", 0, 10, *STACKS, node="n0"), owner=USER))
    small = [
        as_sent(replace(dumps(f"j{n}", 0, 100 + n, STACKS[0], node="n0"), owner=OTHER))
        for n in range(8)
    ]
    assert len(large.body) < sum(len(each.body) for each in small[:6])
    monkeypatch.setattr(bounds, "MAX_STORED_BYTES", len(large.body) + 7 * len(small[0].body))
    for sent in (large, *small):
        fleet.take_dumps(sent, 1.0)
    assert fleet.jobs["llama"].attempt.dumps_bytes == len(large.body)


LONG = " < ".join(f"{'f' * 1000} lib.py:{line}" for line in range(1, 9))
STACKS = [a_stack(f"{LONG} < f train.py:{line}") for line in range(1, 6)]


def test_sixty_jobs_of_one_namespace_leave_room_for_every_other_owner(fleet, monkeypatch):
    monkeypatch.setattr(bounds, "MAX_JOBS_PER_NODE", 100)
    pods = [vitals(0, 100 + n, "namespace:sweep", job=f"j{n}") for n in range(60)]
    fleet.take_report(report("n0", *pods), 0.0)
    assert len(fleet.jobs) == 50
    assert count_unwatched(fleet, "n0") == 10
    fleet.take_report(report("n0", *pods, vitals(0, 10), vitals(0, 20, OTHER)), 1.0)
    assert {"llama", "llama@uid:1001"} <= fleet.jobs.keys()
    assert fleet.is_nearly_full_for(fleet.jobs["j0"])
    assert not fleet.is_nearly_full_for(fleet.jobs["llama"])
    for n in range(50):
        fleet.forget(f"j{n}")
    assert fleet._founded["n0"].total == 2
    assert fleet.rank_count == 2


def test_shares_follow_a_job_to_its_owner(fleet):
    fleet.take_report(report("n0", vitals(0, 10, ""), vitals(1, 11, "")), 0.0)
    fleet.take_report(report("n0", vitals(0, 10), vitals(1, 11)), 1.0)
    assert fleet._ranks._by_owner == {USER: 2}
    assert fleet._jobs._by_owner == fleet._founded["n0"]._by_owner == {USER: 1}
    fleet.take_report(report("n0", vitals(0, 20), vitals(1, 21)), 2.0)
    assert fleet._ranks._by_owner == {USER: 2}
    fleet.forget("llama")
    assert fleet._ranks._by_owner == fleet._jobs._by_owner == {}


def test_each_owner_may_take_as_much_as_is_left():
    shares = Quota()
    taken = {}
    for owner in ("a", "b", "c", "d"):
        while shares.has_room(owner, 64):
            shares.add(owner, 1)
            taken[owner] = taken.get(owner, 0) + 1
    assert taken == {"a": 32, "b": 16, "c": 8, "d": 4}


def launched(rank: int, pid: int, **more) -> RankVitals:
    return vitals(rank, pid, launched=True, **more)


def test_a_process_started_by_hand_takes_no_rank_of_the_launcher_s_family(fleet):
    """The process has a page that the rank lacks, is older, came first, or is on another node."""
    by_hand = [vitals(0, 5, beat=STUCK), vitals(1, 99, beat=STEPS)]
    fleet.take_report(report("n0", *by_hand), 0.0)
    real = [launched(0, 10, beat=None), launched(1, 11, beat=None)]
    for now in (1.0, 2.0):
        fleet.take_report(report("n0", *by_hand, *real), now)
        fleet.take_report(report("n1", vitals(1, 7)), now)
    job = fleet.jobs["llama"]
    assert (job.attempt.number, ranks_of(fleet)) == (1, {0: 10, 1: 11})
    assert {key.pid for key in job.attempt.rivals} == {5, 99, 7}


@pytest.mark.parametrize("was_there", [True, False])
@pytest.mark.parametrize("node", ["n0", "n1"])
def test_a_process_started_by_hand_hides_no_dead_rank_of_the_family(fleet, was_there, node):
    by_hand = vitals(0, 5, beat=STEPS)
    if was_there:
        fleet.take_report(report("n0", launched(0, 10), launched(1, 11)), 0.0)
        fleet.take_report(report(node, *([by_hand] if node == "n1" else [])), 0.5)
    dead = launched(0, 10, ended=Ending(kind=EndingKind.SIGNAL, code=9, age_s=0.5))
    every = [dead, launched(1, 11)]
    for now in (1.0, 2.0):
        fleet.take_report(report("n0", *every, *([by_hand] if node == "n0" else [])), now)
        if node == "n1":
            fleet.take_report(report("n1", by_hand), now)
    attempt = fleet.jobs["llama"].attempt
    assert (attempt.number, ranks_of(fleet)) == (1, {0: 10, 1: 11})
    assert attempt.ranks[0].ended_at is not None
    assert ProcessKey(node, 5, 5) in attempt.rivals


def test_a_rival_begins_no_attempt_when_the_family_has_ended_but_a_new_process_may(fleet):
    fleet.take_report(report("n0", launched(0, 10), vitals(0, 50)), 0.0)
    dead = launched(0, 10, ended=Ending(kind=EndingKind.EXIT, code=1, age_s=0.5))
    fleet.take_report(report("n0", dead, vitals(0, 50)), 1.0)
    assert ranks_of(fleet) == {0: 10}
    fleet.take_report(report("n0", dead, vitals(0, 60)), 90.0)
    assert (fleet.jobs["llama"].attempt.number, ranks_of(fleet)) == (2, {0: 60})


def test_jobs_that_were_never_launched_are_as_before(fleet):
    fleet.take_report(report("n0", vitals(0, 10, beat=None)), 0.0)
    fleet.take_report(report("n0", vitals(0, 10, beat=None), vitals(0, 11)), 1.0)
    assert ranks_of(fleet) == {0: 11}


def test_jobs_stored_by_an_older_release_have_no_owner(fleet):
    fleet.recall({"llama": PastAttempt(number=3)}, {})
    fleet.take_report(report("n0", vitals(0, 10)), 0.0)
    assert (fleet.jobs["llama"].owner, fleet.jobs["llama"].attempt.number) == (USER, 4)
