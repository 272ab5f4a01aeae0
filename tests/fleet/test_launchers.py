"""Launchers that wait: a job exists before it has ranks."""

from dataclasses import replace

from tests.jobs.scenes import JOB
from watchtower.fleet.fleet import MAX_JOBS_PER_NODE, Fleet
from watchtower.jobs.condition import ConditionKind
from watchtower.jobs.pace import Pauses
from watchtower.policy import Policy
from watchtower.wire.report import FOR_RANKS, RankVitals, Report, WaitingLauncher

POLICY = Policy(startup_grace_s=60.0)
LAUNCHER = WaitingLauncher(
    job=JOB,
    launcher="torchrun",
    pid=7,
    start_time=1,
    waits_s=5.0,
    nodes=2,
    most_nodes=2,
    node_list="n[0-1]",
)


def report(fleet, now, *waiting, node="n0", ranks=()):
    sent = Report(
        version=1, node=node, agent_id=node, interval_s=1.0, waiting=waiting, ranks=tuple(ranks)
    )
    assert fleet.take_report(sent, now) == {}


def judge(fleet, now):
    attempt = fleet.jobs[JOB].attempt
    return fleet.detector.judge(attempt, fleet.nodes, Pauses(), now)


def a_rank(rank, found_age_s=0.0):
    return RankVitals(
        job=JOB, rank=rank, pid=50 + rank, start_time=1, world_size=2, found_age_s=found_age_s
    )


def test_a_job_exists_while_its_launchers_wait_and_is_late_after_the_grace():
    fleet = Fleet(POLICY)
    report(fleet, 100.0, LAUNCHER)
    condition = judge(fleet, 100.0)
    assert condition.kind is ConditionKind.STARTING
    assert condition.reason == "1 of 2 nodes joined, waiting for 1 (n1); since 5 s"
    report(fleet, 160.0, replace(LAUNCHER, waits_s=65.0))
    assert judge(fleet, 160.0).kind is ConditionKind.STALLED
    report(fleet, 160.5, replace(LAUNCHER, waits_s=1.0), node="n1")
    condition = judge(fleet, 160.5)
    assert condition.kind is ConditionKind.STARTING
    assert condition.reason == "2 of 2 nodes joined, waiting for each other; since 66 s"


def test_the_grace_of_the_ranks_begins_with_the_ranks():
    fleet = Fleet(POLICY)
    report(fleet, 100.0, replace(LAUNCHER, waits_s=500.0))
    report(fleet, 101.0, ranks=[a_rank(0)])
    attempt = fleet.jobs[JOB].attempt
    assert (attempt.number, attempt.began_at) == (1, 101.0)
    assert not attempt.launchers.has_waited
    assert judge(fleet, 101.0).kind is not ConditionKind.STALLED
    report(fleet, 101.5, LAUNCHER, node="n1")
    assert not fleet.jobs[JOB].attempt.launchers.has_waited, "the job has ranks"


def test_a_job_whose_launchers_end_has_ended_and_nobody_is_blamed():
    fleet = Fleet(POLICY)
    report(fleet, 100.0, LAUNCHER)
    report(fleet, 101.0)
    assert judge(fleet, 101.0).kind is ConditionKind.ENDING
    report(fleet, 110.0)
    condition = judge(fleet, 110.0)
    assert (condition.kind, condition.is_end_unseen) == (ConditionKind.ENDED, True)


def test_a_launcher_on_a_silent_node_does_not_count():
    fleet = Fleet(POLICY)
    report(fleet, 100.0, LAUNCHER)
    assert judge(fleet, 400.0).kind is ConditionKind.LOST


def test_launchers_of_a_job_that_has_ranks_change_nothing():
    fleet = Fleet(POLICY)
    report(fleet, 100.0, ranks=[a_rank(0), a_rank(1)])
    report(fleet, 101.0, LAUNCHER, node="n1")
    assert sorted(fleet.jobs[JOB].attempt.ranks) == [0, 1]
    assert not fleet.jobs[JOB].attempt.launchers.has_waited


def test_a_node_cannot_invent_jobs_without_bound():
    fleet = Fleet(POLICY)
    for number in range(2 * MAX_JOBS_PER_NODE):
        report(fleet, 100.0 + number, replace(LAUNCHER, job=f"job-{number}"))
    assert len(fleet.jobs) <= MAX_JOBS_PER_NODE


SRUN = replace(LAUNCHER, launcher="srun", waits_for=FOR_RANKS, owner="uid:1", job="slurm-7")


def test_a_launcher_of_ranks_elsewhere_is_shown_and_never_late():
    fleet = Fleet(POLICY)
    report(fleet, 100.0, SRUN, node="login")
    report(fleet, 900.0, replace(SRUN, waits_s=805.0), node="login")
    condition = fleet.detector.judge(fleet.jobs["slurm-7"].attempt, fleet.nodes, Pauses(), 900.0)
    assert condition.kind is ConditionKind.STARTING
    assert condition.reason == "no rank was seen yet on n0, n1; since 13 min"


def test_it_has_ended_once_its_ranks_are_there_under_another_name():
    fleet = Fleet(POLICY)
    report(fleet, 100.0, SRUN, node="login")
    assert "slurm-7" in fleet.jobs
    ranks = [replace(a_rank(0), job="slurm-7.0", owner="uid:1")]
    report(fleet, 101.0, ranks=ranks)
    report(fleet, 102.0, replace(SRUN, waits_s=7.0), node="login")
    condition = fleet.detector.judge(fleet.jobs["slurm-7"].attempt, fleet.nodes, Pauses(), 110.0)
    assert condition.kind is ConditionKind.ENDED
    other = [replace(a_rank(0), job="slurm-7.0", owner="uid:2")]
    fleet = Fleet(POLICY)
    report(fleet, 101.0, ranks=other)
    report(fleet, 102.0, SRUN, node="login")
    assert "slurm-7" in fleet.jobs, "another owner's job says nothing"


def test_a_launcher_that_has_ended_for_a_known_reason_is_late_at_once():
    fleet = Fleet(POLICY)
    report(fleet, 100.0, replace(LAUNCHER, ended="pid 7 listens at n0:29500"))
    assert judge(fleet, 100.0).kind is ConditionKind.STALLED
    report(fleet, 101.0, LAUNCHER, replace(LAUNCHER, pid=6, ended="pid 7 listens at n0:29500"))
    assert judge(fleet, 101.0).kind is ConditionKind.STARTING, "it was started again"
