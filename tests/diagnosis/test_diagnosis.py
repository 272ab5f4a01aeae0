from dataclasses import replace

import pytest

from tests.diagnosis.builders import (
    FETCHING,
    IN_ALL_REDUCE,
    IN_DDP_BACKWARD,
    IN_HIDDEN_WAIT,
    IN_LOCK,
    IN_TORCH_ALL_REDUCE,
    IN_USER_CODE,
    a_case,
    a_dead_rank,
    a_failure,
    a_missing_rank,
    a_rank,
    picture_of,
    ranks_in,
    with_rank,
)
from tests.diagnosis.recording import a_recorded_case, calls
from watchtower.diagnosis.accusation import Accusation, Reason, Tier
from watchtower.diagnosis.causes import CAUSES, Entry
from watchtower.diagnosis.diagnosis import NO_HEARTBEATS, diagnose
from watchtower.wire.report import Movement
from watchtower.wire.verdict import Cause

UNSURE = (Cause.BUSY_LOOP, Cause.LOCK_DEADLOCK, Cause.NETWORK_WAIT, Cause.DATALOADER_STALL)

SPINS = {"state": "R", "syscall": "", "active": True, "cpu": 0.98}


def diagnose_job(*others, count=8, stack=IN_ALL_REDUCE, **values):
    return diagnose(a_case(with_rank(ranks_in(count, stack, **values), *others)))


def a_finding(cause=Cause.BUSY_LOOP, tier=Tier.STACKS, confidence=0.8, ranks=(3,)):
    picture = picture_of(ranks_in(8))
    return Accusation(
        cause=cause,
        tier=tier,
        suspects=tuple(picture.by_rank[rank] for rank in ranks),
        reasons=(Reason("startup", confidence, ranks, "no rank has finished set-up yet"),),
        advice=("restart",),
    )


def judged(*findings):
    causes = [Entry(item.cause, lambda *_, item=item: item, ()) for item in findings]
    return diagnose(a_case(ranks_in(8)), causes)


class TestChoice:
    def test_a_stronger_tier_beats_more_confidence(self):
        died = a_finding(Cause.PROCESS_STOPPED, Tier.CANNOT_ANSWER, 0.6)
        assert judged(a_finding(confidence=0.95), died).cause is Cause.PROCESS_STOPPED

    def test_inside_a_tier_confidence_decides_then_the_order_of_rules(self):
        lock = a_finding(Cause.LOCK_DEADLOCK, confidence=0.8)
        assert judged(a_finding(confidence=0.7), lock).cause is Cause.LOCK_DEADLOCK
        assert judged(a_finding(confidence=0.8), lock).cause is Cause.BUSY_LOOP

    def test_a_strong_tier_that_is_unsure_does_not_hide_a_sure_finding(self):
        died = a_finding(Cause.PROCESS_STOPPED, Tier.CANNOT_ANSWER, 0.4)
        answer = judged(a_finding(), died)
        assert answer.cause is Cause.BUSY_LOOP
        assert [item.cause for item in answer.alternatives] == [Cause.PROCESS_STOPPED]

    def test_alternatives_share_what_the_chosen_faults_leave(self):
        stopped = a_finding(Cause.PROCESS_STOPPED, Tier.CANNOT_ANSWER, 0.8, ranks=(1,))
        traced = a_finding(Cause.PROCESS_TRACED, Tier.CANNOT_ANSWER, 0.75, ranks=(2,))
        busy = a_finding(Cause.BUSY_LOOP, confidence=0.9, ranks=(3,))
        lock = a_finding(Cause.LOCK_DEADLOCK, confidence=0.6, ranks=(4,))
        # Both faults must be wrong: 0.2 * 0.25. The alternatives exclude each other.
        shares = [other.confidence for other in judged(stopped, traced, busy, lock).alternatives]
        assert shares == [pytest.approx(0.05 * 0.9 / 1.5), pytest.approx(0.05 * 0.6 / 1.5)]
        # One alternative is as sure as its cause, in what is left.
        assert judged(stopped, lock).alternatives[0].confidence == pytest.approx(0.2 * 0.6)

    def test_candidates_of_an_unknown_cause_exclude_each_other(self):
        found = [a_finding(cause, confidence=0.4, ranks=(at,)) for at, cause in enumerate(UNSURE)]
        assert [each.confidence for each in judged(*found).alternatives] == [0.25] * len(UNSURE)

    def test_runners_up_about_other_ranks_are_alternatives(self):
        answer = judged(a_finding(), a_finding(Cause.LOCK_DEADLOCK, confidence=0.3, ranks=(5,)))
        (other,) = answer.alternatives
        assert (other.cause, other.suspects) == (Cause.LOCK_DEADLOCK, (5,))
        assert other.confidence == pytest.approx(0.3 * (1 - answer.confidence))

    def test_a_coarse_runner_up_lists_only_ranks_without_a_finer_reason(self):
        coarse = a_finding(Cause.BEHIND_COLLECTIVE, confidence=0.6, ranks=(3, 5))
        assert judged(a_finding(), coarse).alternatives[0].suspects == (5,)

    def test_several_faults_of_one_tier_are_told_together(self):
        answer = diagnose_job(
            a_rank(2, FETCHING, syscall="read"), a_rank(5, IN_LOCK, syscall="futex")
        )
        assert {suspect.rank: suspect.cause.value for suspect in answer.suspects} == {
            5: "lock_deadlock",
            2: "dataloader_stall",
        }
        assert answer.cause is Cause.LOCK_DEADLOCK
        assert answer.waiting == "0-1,3-4,6-7"

    def test_a_second_rank_that_records_show_awaited_is_told_though_its_reason_is_coarse(self):
        built = with_rank(
            ranks_in(4, IN_TORCH_ALL_REDUCE),
            a_rank(0, IN_HIDDEN_WAIT, syscall="clock_nanosleep"),
            a_rank(2, IN_LOCK, syscall="futex"),
        )
        made = {rank: {"w": calls("all_reduce", open=1, before=3)} for rank in (1, 3)}
        made |= {rank: {"w": calls("", before=3)} for rank in (0, 2)}
        answer = diagnose(a_recorded_case(built, {"w": [0, 1, 2, 3]}, made))
        assert [(item.rank, item.cause.value) for item in answer.suspects] == [
            (2, "lock_deadlock"),
            (0, "behind_collective"),
        ]

    def test_without_records_a_second_rank_without_a_finer_reason_is_only_an_alternative(self):
        answer = diagnose_job(
            a_rank(2, IN_USER_CODE, syscall="clock_nanosleep"), a_rank(5, IN_LOCK, syscall="futex")
        )
        assert [item.rank for item in answer.suspects] == [5]


class TestUnknown:
    def test_below_a_half_the_candidates_are_ranked(self):
        answer = judged(
            a_finding(confidence=0.2), a_finding(Cause.NETWORK_WAIT, confidence=0.4, ranks=(1,))
        )
        assert (answer.cause, answer.confidence, answer.suspects) == (Cause.UNKNOWN, 0.0, ())
        assert [item.cause for item in answer.alternatives] == [
            Cause.NETWORK_WAIT,
            Cause.BUSY_LOOP,
        ]
        assert answer.next_steps == judged(a_finding(Cause.NETWORK_WAIT, ranks=(1,))).next_steps

    def test_everybody_in_the_collective_accuses_nobody(self):
        answer = diagnose_job()
        assert (answer.cause, answer.suspects) == (Cause.SYMMETRIC_HANG, ())
        assert answer.peers_waiting

    def test_where_no_rank_waits_no_peers_do(self):
        answer = diagnose_job(count=2, stack=IN_USER_CODE)
        assert (answer.cause, answer.peers_waiting) == (Cause.UNKNOWN, False)

    def test_a_rank_that_was_never_seen_and_one_without_a_stack_are_candidates(self):
        answer = diagnose_job(a_missing_rank(3), a_rank(4, dumps=0))
        assert (answer.cause, answer.suspects) == (Cause.UNKNOWN, ())
        assert {item.suspects for item in answer.alternatives} == {(4,)}

    def test_a_suspended_job_is_nobodys_fault(self):
        answer = diagnose_job(state="T")
        assert (answer.cause, answer.suspects, answer.alternatives) == (Cause.UNKNOWN, (), ())

    def test_a_cancelled_job_is_nobodys_fault(self):
        answer = diagnose(a_case([a_dead_rank(rank, signal=15) for rank in range(8)]))
        assert (answer.cause, answer.suspects, answer.alternatives) == (Cause.UNKNOWN, (), ())

    def test_a_finished_job_is_nobodys_fault(self):
        answer = diagnose(a_case([a_dead_rank(rank, code=0) for rank in range(8)]))
        assert (answer.cause, answer.suspects, answer.alternatives) == (Cause.UNKNOWN, (), ())


def test_a_rule_that_fails_is_missing_evidence_and_costs_no_verdict():
    def broken(picture):
        raise KeyError("oops")

    case = a_case(with_rank(ranks_in(8), a_rank(3, FETCHING)))
    answer = diagnose(case, [Entry(Cause.MISCONFIGURED, broken, ()), *CAUSES])
    assert answer.cause is Cause.DATALOADER_STALL
    assert answer.missing_evidence == ("cause misconfigured failed (KeyError) and was left out",)


def test_an_accusation_that_cannot_be_written_costs_no_verdict_either():
    def why(position):
        raise TypeError("no such value")

    unfit = a_finding(Cause.EXITED_EARLY, Tier.CANNOT_ANSWER)
    answer = judged(replace(unfit, why=why), a_finding())
    assert answer.cause is Cause.BUSY_LOOP
    assert answer.missing_evidence[0].startswith("cause exited_early failed (TypeError)")


class TestForTheIncident:
    """The values that decide between suspect and hung."""

    def test_a_suspect_that_works_is_moving(self):
        assert diagnose_job(
            a_rank(0, IN_USER_CODE, cpu=1.0, state="R", active=True)
        ).suspects_moving
        assert not diagnose_job(a_rank(0, FETCHING)).suspects_moving

    def test_a_candidate_that_works_is_moving_too(self):
        answer = diagnose_job(*(a_rank(rank, IN_USER_CODE, cpu=1.0) for rank in range(6)))
        assert answer.cause is Cause.UNKNOWN
        assert answer.suspects_moving

    def test_peers_wait_only_if_one_is_seen_to(self):
        assert diagnose_job(a_rank(0, FETCHING)).peers_waiting
        assert not diagnose_job(stack=FETCHING).peers_waiting

    def test_a_crowd_that_computes_is_not_seen_to_wait(self):
        moving = diagnose_job(a_rank(0, FETCHING), stack=IN_HIDDEN_WAIT, cpu=0.7)
        still = diagnose_job(a_rank(0, FETCHING), stack=IN_HIDDEN_WAIT)
        assert (moving.peers_waiting, still.peers_waiting) == (False, True)

    def test_a_crowd_that_spins_at_one_line_waits_for_a_motionless_suspect(self):
        """MPI polls: who waits in it uses a whole core."""
        answer = diagnose_job(a_rank(0, IN_LOCK, syscall="futex"), stack=IN_HIDDEN_WAIT, **SPINS)
        assert [suspect.rank for suspect in answer.suspects] == [0]
        assert (answer.peers_waiting, answer.suspects_moving) == (True, False)
        assert answer.waiting_text == "7 ranks seem to wait for rank 0"

    def test_so_does_one_on_a_crowded_machine_that_every_look_finds_running(self):
        crowd = {**SPINS, "cpu": 0.5}
        assert diagnose_job(a_rank(0, FETCHING), stack=IN_HIDDEN_WAIT, **crowd).peers_waiting

    def test_so_does_one_that_hardly_gets_a_processor(self):
        """Nor does a rank that computes: whether it sleeps tells the suspect from its peers."""
        crowd = {**SPINS, "stack": IN_HIDDEN_WAIT}
        for cpu in (0.01, 0.06):
            assert diagnose_job(a_rank(0, FETCHING), **crowd | {"cpu": cpu}).peers_waiting
            computes = a_rank(0, IN_USER_CODE, **SPINS | {"cpu": 0.01})
            assert not diagnose_job(computes, **crowd | {"cpu": cpu}).peers_waiting

    @pytest.mark.parametrize(
        "changes",
        [
            {"cpu": 3.9},
            {"written": 1e7},
            {"movement": Movement(cpu_cores=1.0, read_bytes_per_s=1e7)},
            {"movement": Movement(cpu_cores=1.0, socket_bytes_per_s=1e7)},
            {"state": "S", "active": False, "cpu": 0.7},
        ],
        ids=["many threads", "writes", "reads", "transfers", "its helpers compute"],
    )
    def test_a_crowd_that_is_seen_to_work_does_not(self, changes):
        answer = diagnose_job(a_rank(0, FETCHING), stack=IN_HIDDEN_WAIT, **SPINS | changes)
        assert not answer.peers_waiting
        assert answer.waiting_text == "7 ranks seem to wait for rank 0"

    def test_nor_does_one_while_the_suspect_works(self):
        """An unmarked evaluation: most ranks happen to be at one line, all compute."""
        answer = diagnose_job(a_rank(0, IN_USER_CODE, **SPINS), stack=IN_HIDDEN_WAIT, **SPINS)
        assert answer.suspects_moving
        assert not answer.peers_waiting

    def test_nor_does_one_that_changes_below_one_line(self):
        layer = "forward @torch/nn/modules/{}.py:9 < " + IN_HIDDEN_WAIT
        crowd = {"stack": layer.format("linear"), "before": layer.format("conv"), **SPINS}
        assert not diagnose_job(a_rank(0, FETCHING), **crowd).peers_waiting

    def test_nor_does_one_while_no_suspect_is_named(self):
        """The stack of rank 0 could not be read: whether it waits or works is not known."""
        answer = diagnose_job(a_rank(0, failure=a_failure()), stack=IN_HIDDEN_WAIT, **SPINS)
        assert answer.suspects == ()
        assert not answer.peers_waiting

    def test_ranks_that_all_wait_wait_for_other_ranks(self):
        assert diagnose_job().waiting_text == "8 ranks wait for other ranks"
        assert diagnose_job(count=2, stack=IN_USER_CODE).waiting_text == ""

    def test_the_class_of_the_top_suspect_is_told(self):
        assert diagnose_job(a_rank(0, FETCHING)).suspect_class == "dataloader"
        assert (
            diagnose_job(a_rank(0, IN_USER_CODE, phase="checkpoint")).suspect_class == "checkpoint"
        )
        assert diagnose_job(a_dead_rank(0, code=3)).suspect_class == ""
        assert diagnose_job().suspect_class == ""


def test_the_step_is_the_lowest_that_every_rank_with_heartbeats_has_made():
    behind = diagnose_job(a_rank(3, FETCHING, step=40))
    assert behind.step == 40
    assert behind.next_steps[-1].endswith("from its last checkpoint before step 40")
    ahead = diagnose_job(a_rank(3, FETCHING, step=42))
    assert ahead.step == 41
    assert ahead.next_steps[-1].endswith("from its last checkpoint before step 41")
    assert diagnose_job(a_rank(3, FETCHING, step=None)).step == 41
    assert diagnose_job(a_rank(3, FETCHING, step=-1)).step is None
    assert diagnose_job(step=None).step is None


def test_ddp_waiters_count_as_waiting():
    answer = diagnose_job(a_rank(3, FETCHING), stack=IN_DDP_BACKWARD, syscall="futex")
    assert answer.waiting == "0-2,4-7"
    assert answer.waiting_text == "7 ranks wait for rank 3"


def test_a_loss_that_became_nan_is_told_but_decides_nothing():
    built = a_rank(3, FETCHING)
    beat = replace(built.evidence.beat, loss_is_bad=True)
    built = replace(built, evidence=replace(built.evidence, beat=beat))
    answer = diagnose(a_case(with_rank(ranks_in(8), built)))
    assert answer.cause is diagnose(a_case(with_rank(ranks_in(8), a_rank(3, FETCHING)))).cause
    told = answer.evidence[-1]
    assert (told.source, told.ranks, told.weight) == ("heartbeat", "3", 0)


def test_a_verdict_on_a_job_without_any_page_is_less_sure():
    built = a_rank(3, FETCHING)
    sure = diagnose_job(built).confidence
    ranks = with_rank(ranks_in(8, IN_ALL_REDUCE), built)
    pageless = [replace(each, evidence=replace(each.evidence, beat=None)) for each in ranks]
    diagnosis = diagnose(a_case(pageless))
    assert diagnosis.cause is Cause.DATALOADER_STALL
    assert diagnosis.confidence == NO_HEARTBEATS.ceiling < sure
