"""The conditions of jobs, for timelines of reports."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.jobs.scenes import World
from watchtower.jobs.condition import ConditionKind, Why, find_end
from watchtower.jobs.pace import Pause
from watchtower.policy import Policy
from watchtower.wire.report import EndingKind, ProcessState


def running(**changes) -> World:
    """Return four ranks on two nodes, after ten steps of one second."""
    world = World(**changes)
    world.step(10)
    return world


def test_a_stepping_job_is_stepping():
    assert running().judge().kind is ConditionKind.STEPPING


def test_the_reason_of_a_stepping_job_does_not_change_with_each_step():
    world = running()
    reasons = {world.step().reason for _ in range(3)}
    assert len(reasons) == 1


def test_a_rank_is_late_after_the_floor_and_five_typical_steps():
    world = running()
    assert world.report(5).kind is ConditionKind.STEPPING
    condition = world.report(1)
    assert condition.kind is ConditionKind.STALLED
    assert condition.stall.why is Why.OVERDUE
    assert condition.stall.ranks == {0, 1, 2, 3}


def test_long_steps_have_longer_deadlines():
    world = World()
    world.step(10, step_s=8.0)
    assert world.report(39).kind is ConditionKind.STEPPING
    assert world.report(2).kind is ConditionKind.STALLED


def test_one_rank_that_stopped_alone_is_the_stall():
    world = running()
    assert world.step(7, but=frozenset({2})).stall.ranks == {2}


def test_a_late_report_does_not_make_a_rank_late():
    world = running()
    world.now += 9.0
    assert world.judge().kind is ConditionKind.STEPPING


def test_a_stall_goes_on_until_the_next_step():
    world = running()
    for _ in range(30):
        condition = world.report(1)
    assert condition.kind is ConditionKind.STALLED
    assert world.step().kind is ConditionKind.STEPPING


def test_a_marked_phase_has_patience():
    world = running()
    for rank in world.ranks.values():
        rank.phase, rank.cpu_cores = "checkpoint", 0.5
    assert world.report(600).kind is ConditionKind.STEPPING
    assert world.report(310).kind is ConditionKind.STALLED


def test_a_marked_phase_in_which_nothing_moves_has_less():
    world = running()
    for rank in world.ranks.values():
        rank.phase = "checkpoint"
    assert world.report(50).kind is ConditionKind.STEPPING
    assert world.report(15).kind is ConditionKind.STALLED


def test_a_learned_phase_is_suspect_after_some_of_its_lengths():
    world = running()
    world.pauses.learn(Pause(phase="eval", frame_class="user", length_s=4.0))
    for rank in world.ranks.values():
        rank.phase, rank.cpu_cores = "eval", 0.5
    assert world.report(19).kind is ConditionKind.STEPPING
    assert world.report(2).kind is ConditionKind.STALLED


def test_a_learned_phase_is_suspect_in_time_however_long_it_once_took():
    world = running()
    world.pauses.learn(Pause(phase="checkpoint", frame_class="user", length_s=7200.0))
    deadline_s = world.detector.deadline_s(world.attempt, "checkpoint", world.pauses)
    assert deadline_s == world.policy.learned_max_s


def test_silence_of_every_agent_is_not_a_stall():
    world = running()
    world.silent = {"n0", "n1"}
    world.report(9)
    assert world.judge().kind is ConditionKind.STEPPING
    world.now += 5
    assert world.judge().kind is ConditionKind.LOST


def test_silence_of_one_agent_is_monitoring_lost_while_the_others_step():
    world = running()
    world.silent = {"n1"}
    condition = world.step(12)
    assert condition.kind is ConditionKind.LOST
    assert "n1" in condition.reason


def test_silence_of_one_agent_does_not_hide_a_stall_of_the_others():
    world = running()
    world.silent = {"n1"}
    condition = world.report(15)
    assert condition.kind is ConditionKind.STALLED
    assert condition.stall.ranks == {0, 1}


def test_a_job_whose_ranks_are_all_stopped_is_suspended():
    world = running()
    for rank in world.ranks.values():
        rank.state = ProcessState.STOPPED
    assert world.report(30).kind is ConditionKind.SUSPENDED


def test_after_a_suspension_ages_count_anew():
    world = running()
    for rank in world.ranks.values():
        rank.state = ProcessState.STOPPED
    world.report(30)
    for rank in world.ranks.values():
        rank.state = ProcessState.SLEEPING
    assert world.report(4).kind is ConditionKind.STEPPING
    assert world.report(3).kind is ConditionKind.STALLED


def test_one_rank_that_resumes_does_not_extend_the_deadlines_of_others():
    world = running()
    world.ranks[2].state = ProcessState.STOPPED
    world.report(8)
    world.ranks[2].state = ProcessState.SLEEPING
    assert world.report(1).kind is ConditionKind.STALLED


def test_a_death_is_a_stall_after_the_settle_time():
    world = running()
    world.end(2, EndingKind.SIGNAL, 9)
    assert world.report(1).kind is ConditionKind.STEPPING
    condition = world.report(1)
    assert condition.stall.why is Why.DEATH
    assert condition.stall.ranks == {2}


def test_a_death_is_not_a_stall_if_the_others_make_steps():
    world = running()
    world.end(2, EndingKind.SIGNAL, 9)
    world.step(8)
    assert world.judge().kind is ConditionKind.STEPPING


def test_exit_code_0_is_not_a_death():
    world = running()
    world.end(2)
    assert world.report(4).kind is ConditionKind.STEPPING


def test_a_job_has_ended_when_its_last_rank_has_and_a_moment_later():
    world = running()
    for rank in range(4):
        world.end(rank)
    assert world.report().kind is ConditionKind.ENDING
    assert world.report(3).kind is ConditionKind.ENDED


@pytest.mark.parametrize(
    ("kind", "code", "text"),
    [
        (EndingKind.EXIT, 0, "finished: every rank exited with code 0"),
        (EndingKind.SIGNAL, 15, "cancelled: SIGTERM ended every rank"),
        (EndingKind.UNKNOWN, None, "every rank exited (exit status unknown)"),
    ],
)
def test_the_reason_of_an_ended_job_describes_its_end(kind, code, text):
    world = running()
    for rank in range(4):
        world.end(rank, kind, code)
    assert world.report(3).reason == text


def test_a_mixed_end_is_counted():
    world = running()
    world.end(0, EndingKind.SIGNAL, 9)
    for rank in range(1, 4):
        world.end(rank)
    assert (
        world.report(3).reason
        == "every rank has ended: 3 ranks exited with code 0, 1 rank ended by SIGKILL"
    )


@pytest.mark.parametrize(
    ("kind", "code", "text"),
    [
        (EndingKind.EXIT, 0, "exited with code 0"),
        (EndingKind.SIGNAL, 15, "ended by SIGTERM"),
    ],
)
def test_the_end_of_a_job_counts_ranks_that_were_never_seen(kind, code, text):
    world = World()
    world.launch(pids_from=100, absent=frozenset({3}))
    world.step(10)
    for rank in range(3):
        world.end(rank, kind, code)
    told = f"3 of 4 ranks were seen, and each of these {text}"
    assert world.report(3).reason == told


def test_a_mixed_end_with_ranks_never_seen_is_counted():
    world = World()
    world.launch(pids_from=100, absent=frozenset({1}))
    world.step(10)
    world.end(0, EndingKind.SIGNAL, 9)
    world.end(2)
    world.end(3)
    assert world.report(3).reason == (
        "3 of 4 ranks were seen, and each of these has ended: "
        "2 ranks exited with code 0, 1 rank ended by SIGKILL"
    )


def test_how_a_job_ended_is_a_value_before_it_is_a_sentence():
    world = running()
    for rank in range(4):
        world.end(rank, EndingKind.SIGNAL, 15)
    world.report(3)
    end = find_end(world.attempt)
    assert end.is_cancelled
    assert not end.is_finished
    assert not replace(end, never_seen=1).is_cancelled
    assert not replace(end, silent=1).is_cancelled


def test_ranks_that_exit_one_after_the_other_are_not_a_stall():
    world = running()
    for rank in range(3):
        world.end(rank)
        assert world.report(1).kind is ConditionKind.STEPPING
    world.end(3)
    assert world.report(3).kind is ConditionKind.ENDED


def test_a_start_without_work_is_a_stall_after_the_grace():
    world = World()
    assert world.report(60).kind is ConditionKind.STARTING
    assert world.report(59).kind is ConditionKind.STEPLESS
    condition = world.report(3)
    assert condition.stall.why is Why.STARTUP


def test_a_start_in_which_waiting_ranks_spin_is_a_stall():
    world = World()
    world.report()
    for rank in (0, 1, 3):
        world.ranks[rank].cpu_cores = 1.0
    assert world.report(125).stall.why is Why.STARTUP


def stands_since(age_s: float, phase: str = "") -> World:
    """Return a job that was hung at step 12 for `age_s` seconds before its first report."""
    world = World()
    for rank in world.ranks.values():
        rank.step, rank.beat_at = 12, world.now - age_s
        rank.phase, rank.phase_at = phase, world.now - age_s if phase else None
    return world


def test_a_job_that_hung_before_it_was_watched_gets_no_new_startup_grace():
    world = stands_since(300)
    condition = world.report()
    assert condition.kind is ConditionKind.STARTING  # other nodes may be about to report
    assert condition.reason == "too few steps were seen to know how long a step takes"
    condition = world.report(3)
    assert condition.stall.why is Why.STARTUP
    assert condition.stall.ranks == {0, 1, 2, 3}
    assert condition.reason.startswith("no step since step 12, 303.0 s ago")


def test_the_startup_grace_of_a_hung_job_counts_from_its_last_step():
    world = stands_since(60)
    assert world.report(59).kind is ConditionKind.STARTING
    assert world.report(3).stall.why is Why.STARTUP


def test_a_phase_seen_first_of_all_gets_the_patience_of_phases():
    world = stands_since(300, "checkpoint")
    assert world.report(5).kind is ConditionKind.STARTING


def test_a_loop_inside_a_phase_has_the_pace_of_its_steps():
    world = World()
    for rank in world.ranks.values():
        rank.phase, rank.phase_at = "train", world.now - 100
    world.step(10)
    assert world.judge().kind is ConditionKind.STEPPING
    assert world.report(7).kind is ConditionKind.STALLED


def test_a_step_before_a_phase_does_not_count_for_that_phase():
    world = running()
    for _ in range(5):
        for rank in world.ranks.values():
            rank.phase, rank.phase_at = "checkpoint", world.now
        world.report(1)
        for rank in world.ranks.values():
            rank.phase = ""
        world.step(2)
    assert "checkpoint" not in world.attempt.paces


def test_a_death_before_further_steps_is_not_part_of_a_later_stall():
    world = running()
    world.end(2, EndingKind.SIGNAL, 9)
    world.step(20)
    world.end(1, EndingKind.SIGNAL, 9)
    assert world.report(3).stall.ranks == {1}


def test_ranks_that_finished_with_an_unknown_code_are_not_deaths():
    world = running()
    for rank in (1, 2, 3):
        world.end(rank, EndingKind.EXIT, None)
    assert world.report(4).kind is ConditionKind.STEPPING


def test_a_rank_that_never_came_is_part_of_the_startup_stall():
    world = World()
    world.launch(pids_from=100, absent=frozenset({2}))
    world.report()
    assert 2 in world.report(125).stall.ranks


def test_a_job_without_heartbeat_files_is_unwatched():
    world = World()
    for rank in world.ranks.values():
        rank.has_page = False
    assert world.report(60).kind is ConditionKind.UNWATCHED
    assert world.report(240).kind is ConditionKind.STEPLESS


@pytest.mark.parametrize(("step_s", "limit_s"), [(1.0, 60), (30.0, 90)])
def test_a_job_without_a_step_for_long_is_stepless_before_it_is_overdue(step_s, limit_s):
    world = World(policy=Policy(suspect_factor=200))
    world.step(8, step_s=step_s)
    assert world.report(limit_s - 1).kind is ConditionKind.STEPPING
    condition = world.report(2)
    assert (condition.kind, condition.stall) == (ConditionKind.STEPLESS, None)
    assert world.step().kind is ConditionKind.STEPPING


def test_a_phase_that_moves_is_not_stepless_and_one_that_does_not_is():
    world = running()
    for rank in world.ranks.values():
        rank.phase, rank.phase_at, rank.cpu_cores = "checkpoint", world.now, 1.0
    assert world.report(110).kind is ConditionKind.STEPPING
    for rank in world.ranks.values():
        rank.cpu_cores = 0.0
    assert world.report(61).kind is not ConditionKind.STEPPING


def test_steps_that_became_much_longer_are_slow():
    world = running()
    assert world.step(7, step_s=4.5).kind is ConditionKind.SLOW


def test_a_job_whose_steps_are_about_the_limit_stays_slow():
    world = running()
    assert world.step(7, step_s=2.2).kind is ConditionKind.SLOW
    kinds = [world.step(1, step_s=length).kind for length in (1.8, 2.2, 1.8, 1.8, 1.8, 1.8, 2.2)]
    assert kinds == [ConditionKind.SLOW] * 7
    assert world.step(7, step_s=1.2).kind is ConditionKind.STEPPING


@pytest.mark.parametrize("setting", ["suspect_floor_s", "settle_s", "slow_factor"])
def test_a_setting_out_of_range_names_itself_and_the_range(setting):
    with pytest.raises(ValueError, match=rf"`{setting}` is -1, allowed is"):
        replace(Policy(), **{setting: -1})
    with pytest.raises(ValueError, match=rf"`{setting}` is 'x', allowed is a number"):
        replace(Policy(), **{setting: "x"})


@pytest.mark.parametrize("name", ["xid.79", "gpu_lost"])
def test_a_fatal_error_of_a_gpu_is_a_stall_after_the_settle_time(name):
    world = running()
    world.errors[2] = name, world.now
    assert world.report(1).kind is ConditionKind.STEPPING
    condition = world.report(1)
    assert condition.stall.why is Why.ERROR
    assert condition.stall.ranks == {2}
    assert condition.reason == "rank 2 had a fatal GPU error 2.0 s ago"


def test_a_fatal_error_is_not_a_stall_while_the_job_makes_steps():
    world = running()
    world.errors[2] = "xid.79", world.now
    assert world.step(8).kind is ConditionKind.STEPPING
    assert world.report(5).kind is ConditionKind.STEPPING
    assert world.report(1).stall.why is Why.OVERDUE


@pytest.mark.parametrize("name", ["xid.13", "xid.45", "xid.63", "segfault"])
def test_other_errors_are_not_a_stall(name):
    world = running()
    world.errors[2] = name, world.now
    assert world.report(5).kind is ConditionKind.STEPPING


def test_a_rank_that_its_agent_no_longer_reports_is_monitoring_lost_and_has_not_ended():
    world = running()
    world.hidden = {1}
    assert world.step(9).kind is ConditionKind.STEPPING
    condition = world.step(60)
    assert condition.kind is ConditionKind.LOST
    assert condition.reason == "no longer reported by the agent on n0: rank 1"
    assert world.attempt.ranks[1].is_live


def test_a_job_of_which_no_rank_is_reported_by_live_agents_has_not_ended():
    world = running()
    world.end(3, EndingKind.SIGNAL, 9)
    world.report(1)
    world.hidden = {0, 1, 2}
    condition = world.report(90)
    assert condition.kind is ConditionKind.LOST
    assert condition.reason == "no longer reported by the agent on n0, n1: ranks 0-2"


def test_a_process_that_is_gone_when_its_agent_comes_back_died():
    world = running()
    del world.ranks[1]
    condition = world.report(15)
    assert condition.kind is ConditionKind.STALLED
    assert condition.stall.why is Why.DEATH
    assert condition.stall.ranks == {1}
