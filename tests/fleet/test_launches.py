"""Launches with one name and one owner are one job, its attempts, or several jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.diagnosis.builders import as_sent
from tests.fleet.launch_scenes import (
    A1,
    A2,
    B1,
    B2,
    CONFIRMED,
    USER,
    A,
    B,
    Sim,
    processes,
    without_rendezvous,
)
from tests.fleet.test_fleet_bounds import count_unwatched, dumps
from tests.properties import examples
from watchtower.fleet import labels as label_bounds
from watchtower.fleet import placing as placing_bounds
from watchtower.fleet.fleet import Fleet
from watchtower.fleet.labels import Labels, plain_label, read_origin
from watchtower.jobs.ranks import LaunchKey
from watchtower.policy import Policy
from watchtower.wire.dumps import KernelWait, RankDump
from watchtower.wire.report import (
    MAX_UNWATCHED,
    Ending,
    EndingKind,
    RankVitals,
    Report,
    Unwatched,
)


@pytest.fixture
def sim() -> Sim:
    return Sim(Fleet(Policy()))


TWINS = {
    "torchrun on one node": [[A], [B]],
    "the default port in two containers": [[A], [replace(B, at=A.at, network="net:2")]],
    "the default port on two machines": [[A], [replace(B, node="n1", at=A.at)]],
    "no rendezvous is known": [[without_rendezvous(A)], [without_rendezvous(B)]],
    "one program starts both": [[A], [replace(B, pid=1000, round=1)]],
    "static rendezvous on two nodes": [[A1, A2], [B1, B2]],
    "static rendezvous on four nodes": [
        [A1, A2],
        [replace(B1, node="n2", at="node2:29500"), replace(B2, node="n3", at="node2:29500")],
    ],
    "srun without torchrun": [
        [replace(without_rendezvous(each), scheduler="slurm 1") for each in (A1, A2)],
        [replace(without_rendezvous(each), scheduler="slurm 2") for each in (B1, B2)],
    ],
    "two steps of one allocation": [
        [replace(without_rendezvous(each), scheduler="slurm 1") for each in (A1, A2)],
        [replace(without_rendezvous(each), scheduler="slurm 1") for each in (B1, B2)],
    ],
    "mpirun": [
        [replace(each, at="pmix n0-1000") for each in (A1, A2)],
        [replace(each, at="pmix n0-2000") for each in (B1, B2)],
    ],
    "other numbers of ranks": [
        [A1, A2],
        [replace(without_rendezvous(B1), node="n2", ranks=(6, 7), world=8)],
    ],
    "without heartbeats": [[replace(A, beat=None)], [replace(B, beat=None)]],
    "started by hand, with an own rendezvous": [
        [replace(A, beat=None, launched=False)],
        [replace(B, beat=None, launched=False)],
    ],
    "c10d": [
        [replace(each, run="exp-1") for each in (A1, A2)],
        [replace(each, run="exp-1") for each in (B1, B2)],
    ],
}


@pytest.mark.parametrize("first", [True, False], ids=["one after the other", "at once"])
@pytest.mark.parametrize("name", TWINS)
def test_launches_that_contradict_each_other_are_two_jobs(sim, name, first):
    one, other = TWINS[name]
    if first:
        sim.run(*one, seconds=3)
    sim.run(*one, *other, seconds=CONFIRMED)
    assert sim.jobs() == {"mine": processes(*one), "mine~2": processes(*other)}
    assert [job.attempt.number for job in sim.fleet.jobs.values()] == [1, 1]
    assert [job.owner for job in sim.fleet.jobs.values()] == [USER, USER]
    assert not any(job.attempt.rivals for job in sim.fleet.jobs.values())
    assert sim.fleet.rank_count == len(processes(*one, *other))


ONE_JOB = {
    "static rendezvous": [A1, A2],
    "a launcher per node without a rendezvous": [without_rendezvous(A1), without_rendezvous(A2)],
    "torchrun under srun, a step for each node": [
        replace(A1, scheduler="slurm 1"),
        replace(A2, scheduler="slurm 1"),
    ],
    "a heterogeneous job of Slurm": [
        replace(A1, scheduler="slurm 1"),
        replace(A2, scheduler="slurm 2"),
    ],
    "ranks started by hand from two shells": [
        replace(without_rendezvous(A1), launched=False, beat=None),
        replace(without_rendezvous(A2), node="n0", launched=False, beat=None),
    ],
    "two agents of one machine": [
        replace(A1, at="127.0.0.1:1", network="net:1", boot="b"),
        replace(A2, at="127.0.0.1:1", network="net:1", boot="b"),
    ],
}


@pytest.mark.parametrize("name", ONE_JOB)
def test_launches_that_complete_each_other_are_one_job(sim, name):
    sim.run(*ONE_JOB[name], seconds=CONFIRMED)
    assert sim.jobs() == {"mine": processes(*ONE_JOB[name])}
    assert sim.fleet.jobs["mine"].attempt.number == 1


def test_three_jobs_of_many_nodes_that_start_at_once_are_three_jobs(sim):
    """Their nodes report in any order, so that parts of two jobs look like one at first."""
    c1 = replace(B1, pid=3000, at="node0:29700")
    c2 = replace(B2, pid=3100, at="node0:29700")
    sim.run(A1)
    sim.run(A1, replace(B2, node="n2"), seconds=2)
    sim.run(A1, replace(B2, node="n2"), c2, seconds=2)
    starts = (A1, replace(B2, node="n2"), c2, A2, B1, c1)
    sim.run(*starts, seconds=4 * CONFIRMED)
    found = sorted(map(sorted, sim.jobs().values()))
    wanted = [processes(A1, A2), processes(replace(B2, node="n2"), B1), processes(c1, c2)]
    assert found == sorted(map(sorted, wanted))
    assert sim.fleet.labels.find_launch(sim.fleet.jobs["mine"].attempt.ranks[0].launch) == "mine"


RESTARTS = {
    "the same command again": replace(A, pid=5000),
    "another port": replace(A, pid=5000, at="127.0.0.1:29999"),
    "elastic: the launcher restarts its ranks at another port": replace(
        A, at="127.0.0.1:29999", round=1
    ),
    "another job of the scheduler": replace(A, pid=5000, scheduler="slurm 2"),
    "another number of ranks": replace(A, pid=5000, ranks=(0, 1), world=2),
}


@pytest.mark.parametrize("name", RESTARTS)
def test_a_launch_after_the_end_of_another_one_is_an_attempt_of_its_job(sim, name):
    before = replace(A, scheduler="slurm 1")
    sim.run(before, seconds=3)
    sim.run(replace(before, ended=True), RESTARTS[name], seconds=3)
    assert sim.jobs() == {"mine": processes(RESTARTS[name])}
    assert sim.fleet.jobs["mine"].attempt.number == 2


def test_a_restart_that_the_nodes_report_at_different_moments_is_one_attempt(sim):
    """torchrun assigns ranks anew: for a second, an old and a new process have the same rank."""
    sim.run(A1, A2, seconds=3)
    again1 = replace(A1, ranks=(2, 3), at="node0:30000", round=1)
    again2 = replace(A2, ranks=(0, 1), at="node0:30000", round=1)
    sim.run(replace(A2, ended=True), again2)  # node n0 has not noticed yet
    sim.now += 1.0
    sim.run(replace(A1, ended=True), again1, replace(A2, ended=True), again2, seconds=3)
    assert sim.jobs() == {"mine": processes(again1, again2)}


def test_a_launcher_that_was_replaced_on_one_node_joins_its_job(sim):
    sim.run(A1, A2, seconds=3)
    launcher = replace(A2, pid=7100, at="node0:30000")
    again = replace(A1, at="node0:30000", round=1)
    ended = replace(A2, ended=True)
    sim.run(A1, ended, launcher)
    sim.run(replace(A1, ended=True), again, ended, launcher, seconds=3)
    assert sim.jobs() == {"mine": processes(again, launcher)}


def test_the_restart_of_a_twin_is_an_attempt_of_the_twin(sim):
    sim.run(A, B, seconds=CONFIRMED)
    again = replace(B, pid=5000, at="127.0.0.1:29999")
    sim.run(A, replace(B, ended=True), again, seconds=CONFIRMED)
    assert sim.jobs() == {"mine": processes(A), "mine~2": processes(again)}
    assert sim.fleet.jobs["mine~2"].attempt.number == 2
    assert sim.fleet.jobs["mine"].attempt.number == 1


def test_a_twin_does_not_replace_the_dead_rank_of_another_job(sim):
    sim.run(A, seconds=2)
    living, ended = replace(A, ranks=(0, 1, 2)).vitals(), A.vitals()[3:]
    ended = [replace(each, ended=Ending(kind=EndingKind.EXIT, code=1, age_s=1.0)) for each in ended]
    for _ in range(CONFIRMED):
        sim.now += 1.0
        report = Report(
            version=1,
            node="n0",
            agent_id="agent-n0",
            boot="boot-n0",
            interval_s=1.0,
            ranks=(*living, *ended, *B.vitals()),
            launches=(A.launch(), B.launch()),
        )
        sim.fleet.take_report(report, sim.now)
    assert sim.jobs() == {"mine": processes(A), "mine~2": processes(B)}
    assert sim.fleet.jobs["mine"].attempt.number == 1


def test_the_rest_of_a_launch_does_not_join_the_job_that_it_has_just_left(sim):
    """Only a part of it was reported at first, and seemed to be another node of that job."""
    first = replace(A1, ranks=(0, 1, 2, 3), world=8)
    part = replace(B1, node="n1", ranks=(4, 5, 6, 7), world=8)
    whole = replace(part, ranks=tuple(range(8)))
    sim.run(first, part)
    assert list(sim.jobs()) == ["mine"]
    sim.run(first, whole, seconds=2 * CONFIRMED)
    assert sim.jobs() == {"mine": processes(first), "mine~2": processes(whole)}


def test_programs_that_are_never_a_job_do_not_hide_the_twins_of_others(sim, monkeypatch):
    monkeypatch.setattr(placing_bounds, "MAX_CONTRADICTIONS", 8)
    many = [
        replace(
            without_rendezvous(A),
            node="x",
            owner="uid:9",
            pid=n,
            ranks=(0,),
            launched=False,
            beat=None,
        )
        for n in range(1000, 1040)
    ]
    sim.run(A, *many, seconds=2)
    sim.run(A, B, *many, seconds=CONFIRMED)
    assert sim.jobs()["mine~2"] == processes(B)


def test_one_owner_with_many_twins_does_not_hide_the_twins_of_others(sim, monkeypatch):
    monkeypatch.setattr(placing_bounds, "MAX_CONTRADICTIONS", 8)
    many = [
        replace(A, node="x", owner="uid:9", pid=10 * n, ranks=(0,), at=f"127.0.0.1:{n}")
        for n in range(100, 140)
    ]
    sim.run(A, *many)
    sim.run(A, B, *many, seconds=CONFIRMED)
    assert sim.jobs()["mine~2"] == processes(B)


def test_a_second_contradiction_has_a_wait_of_its_own(sim):
    first = replace(A1, ranks=(0, 1, 2, 3), world=8)
    part = replace(B1, node="n1", ranks=(4, 5, 6, 7), world=8)
    whole = replace(part, ranks=(4, 5, 6, 7, 0))
    for _ in range(3):
        sim.run(first, part, seconds=2)
        sim.run(first, whole, seconds=4)
        assert list(sim.jobs()) == ["mine"]
    sim.run(first, whole, seconds=CONFIRMED)
    assert list(sim.jobs()) == ["mine", "mine~2"]


def test_processes_of_twins_stay_in_their_jobs_if_an_older_agent_reports_them(sim):
    sim.run(A, B, seconds=CONFIRMED)
    report = replace(sim.make_report(A, B), launches=(), agent_id="older")
    report = replace(report, ranks=tuple(replace(each, launch="") for each in report.ranks))
    for _ in range(CONFIRMED):
        sim.now += 1.0
        sim.fleet.take_report(report, sim.now)
    assert sim.jobs() == {"mine": processes(A), "mine~2": processes(B)}
    for job in sim.fleet.jobs.values():
        assert {each.seen_at for each in job.attempt.ranks.values()} == {sim.now}
        assert job.attempt.rivals == {}
    assert sim.fleet.nodes["n0"].is_settled


def test_a_launcher_is_known_as_long_as_its_last_launch(sim):
    labels = Labels({}.get)
    for number in range(label_bounds.MAX_PAST_LAUNCHES + 10):
        start = replace(A, at=f"host:{number}")
        key = LaunchKey("mine", USER, "n0", start.id)
        origin = read_origin(start.launch(), "n0", "b")
        labels.join("mine~2", key, origin, 0)
        assert labels.find_origin(key, origin.launcher) == "mine~2"
    oldest = read_origin(A1.launch(), "n0", "b")
    assert labels.find_origin(key, oldest.rendezvous) is None
    labels.drop("mine~2")
    assert labels.find_origin(key, origin.launcher) is None


def test_a_program_with_the_environment_of_a_rank_is_not_a_job(sim):
    beside = replace(
        A, pid=9000, ranks=(2,), launched=False, beat=None, at="", network="", has_launcher=True
    )
    sim.run(A, beside, seconds=3 * CONFIRMED)
    assert sim.jobs() == {"mine": processes(A)}
    assert len(sim.fleet.jobs["mine"].attempt.rivals) == 1
    same_place = replace(beside, at=A.at, network=A.network, launched=True, pid=9500)
    sim.run(A, same_place, seconds=3 * CONFIRMED)
    assert sim.jobs() == {"mine": processes(A)}
    assert len(sim.fleet.jobs["mine"].attempt.rivals) == 1


def test_a_contradiction_that_ends_soon_makes_no_job(sim):
    again = replace(A, pid=5000, at="127.0.0.1:29999")
    sim.run(A, seconds=3)
    sim.run(A, again, seconds=3)
    assert sim.jobs() == {"mine": processes(A)}
    sim.run(replace(A, ended=True), again, seconds=2)
    assert sim.jobs() == {"mine": processes(again)}


def test_ranks_of_a_silent_node_contradict_nothing(sim):
    """Their node was lost: the job was started again elsewhere."""
    sim.run(A, seconds=3)
    again = replace(A, node="n9", pid=5000, at="node9:29500")
    sim.run(again, seconds=int(Policy().silence_s) + CONFIRMED)
    assert sim.jobs() == {"mine": processes(again)}
    assert sim.fleet.jobs["mine"].attempt.number == 2


def test_labels_are_the_same_after_a_restart_of_the_tower(sim):
    sim.run(A, B, seconds=CONFIRMED)
    past = {name: job.attempt.remember(job.owner) for name, job in sim.fleet.jobs.items()}
    for order in ([A, B], [B, A]):
        again = Sim(Fleet(Policy()))
        again.fleet.recall(past, {})
        again.run(*order)
        assert again.jobs() == {"mine": processes(A), "mine~2": processes(B)}
        assert [job.attempt.number for job in again.fleet.jobs.values()] == [1, 1]


def test_dumps_reach_the_job_of_their_launch(sim):
    sim.run(A, B, seconds=CONFIRMED)
    for start, label in ((A, "mine"), (B, "mine~2")):
        pids = {each.rank: each.pid for each in start.vitals()}
        ranks = tuple(
            RankDump(rank=rank, pid=pid, start_time=start.pid, kernel=KernelWait())
            for rank, pid in pids.items()
        )
        batch = replace(dumps("mine", 0, 1, node="n0", name=start.id), ranks=ranks)
        batch = replace(batch, owner=USER, launch=start.id)
        assert sim.fleet.placing.find_label_of_dumps(batch) == label
        assert len(sim.fleet.take_dumps(as_sent(batch), sim.now)) == len(start.ranks)
        # After a restart of the tower, before any report.
        again = Fleet(Policy())
        again.recall(
            {name: job.attempt.remember(job.owner) for name, job in sim.fleet.jobs.items()}, {}
        )
        assert again.placing.find_label_of_dumps(batch) == label


def test_twins_share_the_quota_of_their_owner(sim, monkeypatch):
    fleet = Fleet(Policy(), max_jobs=4)
    sim = Sim(fleet)
    starts = [replace(A, pid=1000 * n, at=f"127.0.0.1:{n}") for n in range(1, 7)]
    sim.run(*starts, seconds=CONFIRMED)
    assert len(fleet.jobs) == 2
    assert count_unwatched(fleet, "n0") == 16
    sim.run(replace(A, node="n1", owner="uid:2"))
    assert "mine@uid:2" in fleet.jobs


def test_the_number_of_twins_is_bounded(sim, monkeypatch):
    monkeypatch.setattr(label_bounds, "MAX_TWINS", 3)
    starts = [replace(A, pid=1000 * n, at=f"127.0.0.1:{n}") for n in range(1, 7)]
    sim.run(*starts, seconds=2 * CONFIRMED)
    assert list(sim.fleet.jobs) == ["mine", "mine~2", "mine~3"]
    rivals = sim.fleet.jobs["mine"].attempt.rivals
    assert len(rivals) == 12


@pytest.mark.parametrize("owner", [USER, "uid:2"])
@pytest.mark.parametrize("order", [True, False], ids=["before", "after"])
def test_a_name_like_the_label_of_a_twin_leads_to_no_twin(sim, owner, order):
    hostile = replace(A, pid=4000, name="mine~2", owner=owner, at="127.0.0.1:4")
    starts = [hostile, A, B] if order else [A, B, hostile]
    for count in range(1, 4):
        sim.run(*starts[:count], seconds=CONFIRMED)
    assert sim.jobs() == {
        "mine": processes(A),
        "mine~2": processes(B),
        "mine~2~1": processes(hostile),
    }


@examples(200)
@given(st.lists(st.sampled_from(["mine", "~", "1", "2", "03", "@uid:1", "x"]), max_size=6))
def test_no_name_has_the_label_of_a_twin_or_of_another_name(words):
    name = "".join(words)
    label, holders = plain_label(name), {}
    labels = Labels(holders.get)
    assert labels.find(name, USER) == label
    assert label == plain_label(label.removesuffix("~1")) or label == name
    for other in labels.list_all("mine", USER):
        assert (label == other) == (name == "mine" and other == "mine")


@examples(60)
@given(
    st.permutations([A1, A2, B1, B2]),
    st.lists(st.integers(0, 3), max_size=12),
)
def test_whatever_is_reported_first_the_launches_of_two_jobs_end_in_two_jobs(order, delays):
    """Each launch begins to be reported at another time; both jobs have two nodes."""
    sim = Sim(Fleet(Policy()))
    for count, delay in zip(range(1, 5), delays + [0] * 4, strict=False):
        sim.run(*order[:count], seconds=delay)
    sim.run(*order, seconds=4 * CONFIRMED)
    found = sorted(map(sorted, sim.jobs().values()))
    assert found == sorted(map(sorted, [processes(A1, A2), processes(B1, B2)]))
    assert len(sim.fleet.jobs) == 2


def test_processes_of_more_jobs_than_are_listed_have_a_sentence(sim):
    starts = []
    for n in range(MAX_UNWATCHED + 2):
        first = replace(A, pid=1000 + 10 * n, ranks=(0,), owner=f"uid:{n}", at=f"h:{n}")
        starts += [first, replace(first, pid=5000 + 10 * n, beat=None, launched=False)]
    sim.run(*starts, seconds=2)
    *listed, rest = sim.fleet.nodes["n0"].unwatched
    assert len(listed) == MAX_UNWATCHED - 1
    assert (rest.reason, rest.job, rest.count) == ("other", "", 3)
    assert rest.text == (
        "3 processes are not watched: the reasons differ, and this node has too many such jobs to "
        "list each. End what is not needed."
    )


def test_every_live_process_of_a_report_is_watched_or_counted_with_a_reason(sim):
    beside = replace(A, pid=9000, ranks=(2,), launched=False, beat=None, at="", network="")
    agent = Unwatched(
        reason="wrong_rank", owner=USER, job="mine", count=2, pids=(7, 8), text="2 processes ..."
    )
    sim.run(A, beside, seconds=2)
    report = replace(sim.make_report(A, beside), unwatched=(agent,))
    sim.fleet.take_report(report, sim.now)
    found = sim.fleet.nodes["n0"].unwatched
    assert [(each.reason, each.job, each.owner, each.count, each.pids) for each in found] == [
        ("wrong_rank", "mine", USER, 2, (7, 8)),
        ("second_claim", "mine", USER, 1, (9001,)),
    ]
    sim.run(A)
    assert sim.fleet.nodes["n0"].unwatched == ()


def test_processes_of_an_earlier_attempt_and_of_one_that_began_too_often_are_counted(sim):
    sim.run(A)
    again = replace(A, pid=5000, ranks=(0, 1, 2), at=A.at)
    sim.run(replace(A, ranks=(0, 1, 2), ended=True), again)
    old = RankVitals(
        job="mine", owner=USER, launch=A.id, rank=3, pid=A.vitals()[3].pid, start_time=A.pid
    )
    report = sim.make_report(again, A)
    sim.fleet.take_report(replace(report, ranks=(*again.vitals(), old)), sim.now + 0.1)
    (left,) = sim.fleet.nodes["n0"].unwatched
    assert (left.reason, left.pids) == ("earlier_attempt", (old.pid,))
    for number in range(1, 12):
        sim.run(replace(A, pid=5000 + 1000 * number, ranks=(0, 1, 2)))
        ended = replace(A, pid=5000 + 1000 * number, ranks=(0, 1, 2), ended=True)
        sim.run(ended)
    sim.run(ended, replace(A, pid=90_000, ranks=(0, 1, 2)))
    assert [(each.reason, each.count) for each in sim.fleet.nodes["n0"].unwatched] == [
        ("many_attempts", 3)
    ]
