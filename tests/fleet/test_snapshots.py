"""Snapshots of several nodes, joined to one case for each job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.diagnosis.builders import FETCHING, IN_TORCH_ALL_REDUCE, IN_USER_CODE, Built, a_rank
from tests.snapshots import GAP_S, TAKEN_AT, a_snapshot, merge
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.evidence.case import Presence
from watchtower.fleet.snapshots import join_snapshots
from watchtower.wire.dumps import NativeKind, NativePlace
from watchtower.wire.report import AgentGaps, Beat, Movement
from watchtower.wire.snapshot import JobGap
from watchtower.wire.verdict import Cause, Status

SIZE, PER_NODE = 8, 4


def rank(number, stack=IN_TORCH_ALL_REDUCE, **values):
    return a_rank(number, stack, **{"step": None, **values})


def nodes(*others, size=SIZE, **values):
    """Snapshots of all nodes: every rank waits in all_reduce, except `others`."""
    by_rank = {number: rank(number) for number in range(size)}
    by_rank |= {each.evidence.rank: each for each in others}
    return [
        a_snapshot([by_rank[r] for r in range(first, first + PER_NODE)], size=size, **values)
        for first in range(0, size, PER_NODE)
    ]


def accused(job):
    return [suspect.rank for suspect in diagnose(job.case).suspects]


def test_the_odd_rank_is_found_in_the_files_of_two_nodes():
    (job,) = join_snapshots(nodes(rank(5, FETCHING)))
    assert (job.job, job.status) == ("llama", Status.SUSPECT)
    assert {each.presence for each in job.case.ranks} == {Presence.LIVE}
    assert all(len(each.dumps) == 2 for each in job.case.ranks)
    assert accused(job) == [5]
    assert diagnose(job.case).cause is Cause.DATALOADER_STALL


def test_the_order_of_the_files_does_not_matter():
    files = nodes(rank(5, FETCHING))
    (one,), (other,) = join_snapshots(files), join_snapshots(files[::-1])
    assert diagnose(one.case) == diagnose(other.case)


def test_a_rank_in_no_file_is_out_of_sight_and_did_not_fail_to_start():
    (job,) = join_snapshots(nodes(rank(2, FETCHING))[:1])
    unseen = [each.rank for each in job.case.ranks if each.presence is Presence.UNREPORTED]
    assert unseen == [4, 5, 6, 7]
    found = diagnose(job.case)
    assert accused(job) == [2]
    assert any("4-7" in gap and "no snapshot" in gap for gap in found.missing_evidence)


def test_without_the_file_of_the_culprit_no_seen_rank_is_accused():
    (job,) = join_snapshots(nodes(rank(5, FETCHING))[:1])
    found = diagnose(job.case)
    assert found.cause is not Cause.NEVER_STARTED
    assert not {0, 1, 2, 3} & set(accused(job))


def test_two_jobs_have_two_verdicts():
    one, other = nodes(rank(1, FETCHING)), nodes(rank(6, FETCHING), job="bert")
    jobs = join_snapshots([merge(a, b) for a, b in zip(one, other, strict=True)])
    assert [(job.job, accused(job)) for job in jobs] == [("bert", [6]), ("llama", [1])]


def test_two_owners_of_one_name_have_two_verdicts():
    jobs = join_snapshots([*nodes(rank(1, FETCHING)), *nodes(rank(6, FETCHING), owner="uid:7")])
    assert [(job.owner, accused(job)) for job in jobs] == [("uid:1000", [1]), ("uid:7", [6])]


def test_the_later_of_two_snapshots_of_a_node_is_used():
    old = nodes(rank(1, FETCHING))
    new = [replace(each, taken_at=TAKEN_AT + 60) for each in nodes(rank(3, FETCHING))]
    (job,) = join_snapshots([*new, *old])
    assert accused(job) == [3]
    assert job.replaced == (2, 3)
    assert job.apart_s == 0


def test_the_times_of_the_files_are_compared():
    first, last = nodes()
    (job,) = join_snapshots([first, replace(last, taken_at=TAKEN_AT + 900)])
    assert (job.apart_s, job.taken_at) == (900, TAKEN_AT + 900)


def test_a_job_that_steps_between_the_rounds_is_healthy():
    beats = {r: (Beat(step=7, age_s=9.0), Beat(step=8, age_s=0.5)) for r in range(SIZE)}
    (job,) = join_snapshots(nodes(rank(5, FETCHING), beats=beats))
    assert (job.status, job.step) == (Status.HEALTHY, 8)


def test_a_job_whose_last_rank_does_not_step_is_suspect():
    beats = {r: (Beat(step=7, age_s=9.0), Beat(step=8, age_s=0.5)) for r in range(SIZE)}
    beats[5] = (Beat(step=7, age_s=9.0), Beat(step=7, age_s=9.0 + GAP_S))
    (job,) = join_snapshots(nodes(rank(5, FETCHING), beats=beats))
    assert (job.status, job.step) == (Status.SUSPECT, 7)
    assert job.case.stalled_for_s == pytest.approx(9.0 + GAP_S)


@pytest.mark.parametrize(("age_s", "is_young"), [(20.0, True), (100.0, False)])
def test_a_step_may_take_as_long_as_a_young_stall(age_s, is_young):
    beats = {r: (Beat(step=7, age_s=age_s), Beat(step=7, age_s=age_s + GAP_S)) for r in range(SIZE)}
    (job,) = join_snapshots(nodes(rank(5, FETCHING), beats=beats))
    assert job.status is Status.SUSPECT
    assert ("is 23 s old: a step or a pause that takes longer" in job.caveat) is is_young
    assert bool(job.caveat) is is_young


def test_a_young_heartbeat_is_no_hang():
    beats = {r: (Beat(step=7, age_s=0.0), Beat(step=7, age_s=GAP_S)) for r in range(SIZE)}
    (job,) = join_snapshots(nodes(beats=beats))
    assert job.status is Status.HEALTHY


def test_without_heartbeats_a_job_whose_ranks_all_change_is_healthy():
    moved = [rank(r, before=IN_USER_CODE) for r in range(SIZE)]
    (job,) = join_snapshots(nodes(*moved))
    assert job.status is Status.HEALTHY


def test_without_heartbeats_one_changing_rank_is_no_progress():
    (job,) = join_snapshots(nodes(rank(5, FETCHING, before=IN_USER_CODE)))
    assert job.status is Status.SUSPECT
    assert accused(job) == [5]


SLEPT = NativePlace(kind=NativeKind.PYTHON, run_ns=9, switches=7)
RAN = NativePlace(kind=NativeKind.LIBC, running=True)
POLLED = NativePlace(kind=NativeKind.DEVICE_WAIT, running=True)
MOVED = Movement(socket_bytes_per_s=700_000.0)
"""Of a job whose ranks exchange gradients in short steps."""


def moved_by(native: NativePlace | None, *, but: int) -> list[Built]:
    """All ranks but one: at the same line twice, and their processes moved data."""
    return [rank(r, native=native, movement=MOVED) for r in range(SIZE) if r != but]


def test_without_heartbeats_ranks_at_the_same_line_by_chance_that_move_data_are_healthy():
    moved = moved_by(RAN, but=SIZE - 1)
    (job,) = join_snapshots(nodes(*moved, rank(SIZE - 1, before=IN_USER_CODE)))
    assert (job.status, "moved data" in job.reason) == (Status.HEALTHY, True)


@pytest.mark.parametrize(
    "still",
    [
        rank(5, FETCHING),
        # Another thread, such as an upload, moves the data: the training thread did not run.
        rank(5, FETCHING, native=SLEPT, movement=MOVED),
    ],
)
def test_without_heartbeats_a_rank_that_did_not_move_is_suspect_beside_ranks_that_did(still):
    (job,) = join_snapshots(nodes(*moved_by(RAN, but=5), still))
    assert job.status is Status.SUSPECT
    assert "at the same line twice by chance" in job.caveat


@pytest.mark.parametrize("native", [POLLED, None])
def test_without_heartbeats_data_of_other_threads_does_not_hide_ranks_that_may_wait(native):
    (job,) = join_snapshots(nodes(*moved_by(native, but=5), rank(5, before=IN_USER_CODE)))
    assert job.status is Status.SUSPECT


def a_device_wait(*, ran_python: bool | None) -> NativePlace:
    return NativePlace(kind=NativeKind.DEVICE_WAIT, running=True, ran_python=ran_python)


def test_without_heartbeats_a_job_whose_device_waits_end_is_healthy():
    waits = [rank(r, native=a_device_wait(ran_python=True)) for r in range(SIZE - 1)]
    (job,) = join_snapshots(nodes(*waits, rank(SIZE - 1, IN_USER_CODE, native=RAN)))
    assert (job.status, "ended a wait" in job.reason) == (Status.HEALTHY, True)


@pytest.mark.parametrize("ran_python", [False, None])
def test_one_rank_that_ends_waits_of_its_own_is_no_progress_and_holds_up_the_others(ran_python):
    waits = [rank(r, native=a_device_wait(ran_python=ran_python)) for r in range(SIZE)]
    waits[5] = rank(5, IN_USER_CODE, native=a_device_wait(ran_python=True))
    (job,) = join_snapshots(nodes(*waits))
    assert job.status is Status.SUSPECT
    assert accused(job) == [5]


def test_python_that_runs_without_a_device_wait_is_no_progress():
    loops = [rank(r, native=replace(SLEPT, ran_python=True)) for r in range(SIZE)]
    (job,) = join_snapshots(nodes(*loops))
    assert job.status is Status.SUSPECT


def test_a_job_of_which_every_rank_is_stopped_is_suspended():
    (job,) = join_snapshots(nodes(*[rank(r, state="T") for r in range(SIZE)]))
    assert job.status is Status.SUSPENDED
    assert accused(job) == []


def test_a_rank_in_no_file_is_to_be_found_before_the_others_are_checked():
    others = [rank(r) for r in range(SIZE - 1)]
    (job,) = join_snapshots([a_snapshot(others, size=SIZE)])
    found = diagnose(job.case)
    last = f"rank {SIZE - 1}"
    assert found.summary.startswith(f"All {SIZE - 1} ranks in the snapshots wait in all_reduce")
    assert "; 1 rank is in no snapshot." in found.summary
    assert found.next_steps[0].startswith(f"find out whether {last} still runs: take a snapshot")
    assert any(
        gap.startswith(f"{last}: in no snapshot, so it has") for gap in found.missing_evidence
    )


def test_what_the_snapshots_of_a_job_lack_is_named_with_the_nodes():
    gap = JobGap(job="llama", owner="uid:1000", text="its ranks were not dumped")
    others = (replace(gap, job="bert"), replace(gap, owner="uid:7"))
    files = [replace(each, gaps=(gap, *others)) for each in nodes()]
    (job,) = join_snapshots(files)
    names = ", ".join(each.node for each in files)
    assert job.gaps == (f"{names}: its ranks were not dumped",)


def test_a_node_that_cannot_see_all_ranks_says_so_if_some_are_in_no_file():
    found = [
        replace(each, limits=AgentGaps(process="finds only ranks of user 7"))
        for each in nodes(rank(1, FETCHING))[0].reports
    ]
    files = [replace(nodes(rank(1, FETCHING))[0], reports=tuple(found))]
    (job,) = join_snapshots(files)
    gaps = diagnose(job.case).missing_evidence
    assert any("finds only ranks of user 7" in gap for gap in gaps)


def test_snapshots_without_ranks_have_no_job():
    assert join_snapshots([]) == []
