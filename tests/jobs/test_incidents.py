"""Statuses and incidents: the table of statuses, and timelines of conditions."""

import pytest

from tests.jobs.scenes import World
from tests.jobs.story import Story, a_diagnosis, plain, stalled
from watchtower.jobs.condition import ConditionKind, Why
from watchtower.jobs.effects import (
    DiagnosisWanted,
    DumpsWanted,
    IncidentClosed,
    IncidentOpened,
    IncidentUpdated,
    PauseLearned,
    StatusChanged,
)
from watchtower.jobs.incidents import NEXT, AttemptWatch
from watchtower.jobs.pace import Pauses
from watchtower.jobs.patience import patience_for
from watchtower.jobs.stall_context import StallContext
from watchtower.policy import Policy
from watchtower.wire.verdict import Cause, Status


def test_the_table_answers_every_status_and_condition():
    assert set(NEXT) == set(Status)
    for row in NEXT.values():
        assert set(row) == set(ConditionKind)


def test_a_stall_makes_a_job_suspect_and_asks_for_dumps_and_a_diagnosis():
    story = Story()
    story.see(stalled())
    assert story.watch.status is Status.SUSPECT
    assert story.kinds() == [DumpsWanted, DiagnosisWanted, StatusChanged]


def test_missing_dumps_delay_the_diagnosis_only_for_a_while():
    story = Story()
    assert DiagnosisWanted() not in story.see(stalled(), dumps_have=3)
    assert DiagnosisWanted() in story.see(stalled(), seconds=3, dumps_have=3)


def test_a_death_is_diagnosed_without_waiting_for_dumps():
    story = Story()
    assert DiagnosisWanted() in story.see(stalled(why=Why.DEATH), dumps_have=0)


def test_new_evidence_is_diagnosed_once():
    story = Story()
    story.see(stalled(), evidence=(4,))
    story.now += 1
    assert DiagnosisWanted() not in story.see(stalled(), evidence=(4,))
    assert DiagnosisWanted() in story.see(stalled(), evidence=(8,))


def test_a_motionless_suspect_that_others_wait_for_is_hung_after_ten_seconds():
    story = Story()
    story.see(stalled())
    story.hear(a_diagnosis())
    story.see(stalled(), seconds=9)
    assert story.watch.status is Status.SUSPECT
    story.see(stalled(), seconds=1)
    assert story.watch.status is Status.HUNG
    assert IncidentOpened in story.kinds()


def test_the_stacks_are_dumped_again_before_an_incident_opens():
    story = Story()
    story.see(stalled())
    story.hear(a_diagnosis())
    second = story.see(stalled(), seconds=7)
    assert DumpsWanted(reason="second dump", again=True) in second


def test_without_a_diagnosis_nothing_becomes_an_incident():
    story = Story()
    story.see(stalled(), seconds=600)
    assert story.watch.status is Status.SUSPECT


def test_steps_after_an_incident_make_it_recovered_and_the_next_stall_is_a_new_one():
    story = Story()
    story.see(stalled())
    story.hear(a_diagnosis())
    story.see(stalled(), seconds=12)
    effects = story.see(plain(ConditionKind.STEPPING))
    assert story.watch.status is Status.RECOVERED
    assert IncidentClosed() in effects
    story.see(plain(ConditionKind.STEPPING), seconds=4)
    assert story.watch.status is Status.RECOVERED
    story.see(plain(ConditionKind.STEPPING), seconds=1)
    assert story.watch.status is Status.HEALTHY
    story.see(stalled(since=story.now - 6))
    assert story.watch.status is Status.SUSPECT
    assert story.watch.diagnosis is None


def test_recovered_lasts_for_some_typical_steps():
    story = Story()
    story.see(stalled())
    story.hear(a_diagnosis())
    story.see(stalled(), seconds=12)
    story.see(plain(ConditionKind.STEPPING), typical_s=7.0)
    story.see(plain(ConditionKind.STEPPING), seconds=34, typical_s=7.0)
    assert story.watch.status is Status.RECOVERED
    story.see(plain(ConditionKind.STEPPING), seconds=1, typical_s=7.0)
    assert story.watch.status is Status.HEALTHY


def test_a_job_that_makes_no_step_is_not_healthy_and_a_stall_is_still_followed():
    story = Story()
    assert DumpsWanted not in [type(effect) for effect in story.see(plain(ConditionKind.STEPLESS))]
    assert story.watch.status is Status.SUSPECT
    effects = story.see(stalled())
    assert DumpsWanted(reason="suspect") in effects
    story.hear(a_diagnosis())
    story.see(stalled(), seconds=10)
    assert story.watch.status is Status.HUNG


def test_a_job_cancelled_during_a_suspicion_opens_no_incident():
    story = Story()
    story.see(stalled(), typical_s=30.0)
    story.hear(a_diagnosis())
    story.see(stalled(), seconds=15, typical_s=30.0)
    story.see(plain(ConditionKind.ENDING), seconds=2, typical_s=0.0)
    assert story.watch.status is Status.SUSPECT
    assert IncidentOpened not in story.kinds()


def test_a_death_during_a_stall_keeps_the_evidence_of_the_stall():
    story = Story()
    story.see(stalled(since=100.0))
    story.see(stalled(since=105.0, why=Why.DEATH))
    assert (story.watch.stall.why, story.watch.stall.since) == (Why.DEATH, 100.0)


def test_a_job_that_counted_as_ended_is_watched_again_when_it_is_reported():
    story = Story()
    story.see(plain(ConditionKind.ENDED))
    story.see(plain(ConditionKind.STEPPING))
    assert story.watch.status is Status.HEALTHY


def test_an_open_incident_is_updated_by_newer_diagnoses():
    story = Story()
    story.see(stalled())
    story.hear(a_diagnosis())
    story.see(stalled(), seconds=12)
    assert story.hear(a_diagnosis(confidence=0.95)) == [IncidentUpdated()]


@pytest.mark.parametrize(
    "kind", [ConditionKind.LOST, ConditionKind.SUSPENDED, ConditionKind.ENDING]
)
def test_only_steps_or_the_end_close_an_open_incident(kind):
    story = Story()
    story.see(stalled())
    story.hear(a_diagnosis())
    story.see(stalled(), seconds=12)
    story.see(plain(kind))
    assert story.watch.status is Status.HUNG


def test_a_start_that_stalls_and_moves_by_turns_is_one_suspicion_and_one_incident():
    story = Story()
    for _ in range(8):
        story.see(stalled(why=Why.STARTUP))
        story.hear(a_diagnosis(Cause.NEVER_STARTED))
        story.now += 1
        story.see(plain(ConditionKind.STARTING))
        story.now += 1
    assert story.watch.status is Status.HUNG
    assert story.kinds().count(IncidentOpened) == 1
    assert IncidentClosed not in story.kinds()
    story.see(plain(ConditionKind.STEPPING))
    assert story.watch.status is Status.RECOVERED


def test_first_steps_clear_a_suspicion_of_the_start():
    story = Story()
    story.see(stalled(why=Why.STARTUP))
    story.hear(a_diagnosis(Cause.INIT_STUCK))
    story.see(plain(ConditionKind.STARTING), seconds=30)
    assert story.watch.status is Status.SUSPECT
    story.see(plain(ConditionKind.STEPPING))
    assert story.watch.status is Status.HEALTHY


def test_a_hung_job_that_is_ended_closes_its_incident_as_ended():
    story = Story()
    story.see(stalled())
    story.hear(a_diagnosis())
    story.see(stalled(), seconds=12)
    assert IncidentClosed() in story.see(plain(ConditionKind.ENDED))
    assert story.watch.status is Status.ENDED


def test_the_cause_of_a_jobs_death_is_reported_once():
    story = Story()
    assert DiagnosisWanted() in story.see(plain(ConditionKind.ENDED))
    assert story.hear(a_diagnosis(Cause.EXCEPTION)) == [IncidentOpened()]
    assert story.hear(a_diagnosis(Cause.EXCEPTION)) == []
    assert story.see(plain(ConditionKind.ENDED), seconds=20) == []


@pytest.mark.parametrize("cause", [Cause.UNKNOWN, Cause.DATALOADER_STALL, Cause.PROCESS_STOPPED])
def test_a_normal_end_of_a_job_is_not_reported(cause):
    story = Story()
    story.see(plain(ConditionKind.ENDED))
    assert story.hear(a_diagnosis(cause)) == []
    assert story.watch.status is Status.ENDED


def test_a_late_diagnosis_of_a_stall_that_is_over_changes_nothing():
    story = Story()
    story.see(stalled())
    story.see(plain(ConditionKind.STEPPING))
    assert story.hear(a_diagnosis()) == []
    assert story.watch.status is Status.HEALTHY


def test_a_new_attempt_closes_what_was_open():
    story = Story()
    story.see(stalled())
    story.hear(a_diagnosis())
    story.see(stalled(), seconds=12)
    assert story.watch.end("attempt 2 began") == [IncidentClosed()]
    assert story.watch.end("again") == []


ALONE = {"cause": Cause.BEHIND_COLLECTIVE, "is_shown_by_gpus": True, "suspects_moving": True}
ALONE |= {"suspect_class": "user", "suspects_rest": True}
"""All hosts wait for their GPUs, and one GPU works alone."""

IDLE = {"cause": Cause.GPU_FAULT, "is_shown_by_gpus": True, "suspect_class": "user"}
IDLE |= {"suspects_rest": True}
"""The same with one GPU that alone has no work."""

BUSY = {"suspects_rest": False}
"""The host of the suspect is at another place in each dump, or moves data: it may give its GPU more
work."""

PATIENCE = [
    # diagnosis, context, seconds, part of the reason
    ({}, {}, 10, "does not move"),
    ({}, {"typical_s": 4.0}, 20, "does not move"),
    ({"suspects_moving": True}, {}, 30, "moves but makes no step"),
    ({"suspects_moving": True, "suspect_class": "checkpoint"}, {}, 900, "checkpoint"),
    ({"suspects_moving": True, "suspect_class": "child"}, {}, 900, "child"),
    (
        {"suspects_moving": True, "suspects_transfer": True, "suspect_class": "user"},
        {},
        900,
        "network",
    ),
    (
        {"suspects_moving": True, "suspects_transfer": True, "suspect_class": "dataloader"},
        {},
        30,
        "moves but makes no step",
    ),
    ({"suspects_moving": True}, {"phase": "eval"}, 900, "works in phase eval"),
    ({}, {"phase": "eval"}, 60, "nothing moves in phase eval"),
    ({"peers_waiting": False}, {}, 900, "no rank is waiting for another"),
    ({"peers_waiting": False}, {"all_still": True}, 30, "nothing moves"),
    ({"cause": Cause.INIT_STUCK}, {"starting": True}, 10, "does not move"),
    ({"cause": Cause.INIT_STUCK, "suspects_moving": True}, {"starting": True}, 1800, "works"),
    ({"suspects": ()}, {"starting": True, "all_still": True}, 30, "nothing moves"),
    ({"suspects": (), "places": {"device": 4}}, {"starting": True}, 900, "all ranks wait"),
    (
        {"suspects": (), "places": {"device": 3, "elsewhere": 1}},
        {"starting": True},
        1800,
        "works on the first steps",
    ),
    ({"suspects": (), "places": {}}, {"starting": True}, 1800, "works on the first steps"),
    ({"cause": Cause.PROCESS_STOPPED, "peers_waiting": False}, {}, 10, "cannot go on"),
    ({}, {"no_heartbeat": True}, 10, "does not move"),
    ({"suspects_moving": True}, {"no_heartbeat": True}, 900, "no step is known"),
    ({"suspects_moving": True}, {"no_heartbeat": True, "rare_s": 60}, 60, "rarely agree"),
    ({"suspects_moving": True}, {"no_heartbeat": True, "rare_s": 20}, 30, "rarely agree"),
    (
        {"suspects_moving": True, "suspect_class": "compile"},
        {"no_heartbeat": True, "rare_s": 60},
        900,
        "no step is known",
    ),
    (
        {"peers_waiting": False},
        {"no_heartbeat": True, "all_still": True},
        900,
        "no rank is waiting",
    ),
    ({"suspects": ()}, {"no_heartbeat": True, "all_still": True}, 900, "no rank is known"),
    (ALONE, {}, 10, "the GPU of the suspect differs"),
    (ALONE, {"typical_s": 4.0}, 20, "the GPU of the suspect differs"),
    (ALONE, {"no_heartbeat": True, "typical_s": 0.0}, 30, "no step is known"),
    (ALONE, {"no_heartbeat": True, "longest_run_s": 240.0}, 240, "no step is known"),
    (ALONE, {"typical_s": 0.0}, 30, "no step is known"),
    (ALONE | BUSY, {}, 30, "moves but makes no step"),
    (ALONE | BUSY | {"suspects_transfer": True}, {}, 900, "transfers data"),
    (ALONE | BUSY, {"no_heartbeat": True}, 900, "no step is known"),
    (IDLE | BUSY | {"suspects_moving": True}, {}, 30, "moves but makes no step"),
    (ALONE, {"starting": True}, 1800, "first steps"),
    (ALONE, {"phase": "eval"}, 900, "works in phase eval"),
    (ALONE | {"suspect_class": "checkpoint"}, {}, 900, "checkpoint work takes long"),
    (IDLE, {}, 10, "the GPU of the suspect differs"),
    (IDLE | {"suspect_class": "checkpoint"}, {}, 900, "checkpoint work takes long"),
]


@pytest.mark.parametrize(("diagnosis", "context", "seconds", "reason"), PATIENCE)
def test_patience_depends_on_the_evidence(diagnosis, context, seconds, reason):
    context = StallContext(**({"typical_s": 1.0} | context))
    patience = patience_for(a_diagnosis(**diagnosis), context, Pauses(), Policy())
    assert patience.length_s == seconds
    assert reason in patience.reason


REASONS = [
    (
        {"waiting_text": "3 ranks seem to wait for it"},
        "the suspect does not move and 3 ranks seem to wait for it",
    ),
    (
        {"waiting_text": "3 ranks wait for them", "suspects": 2 * a_diagnosis().suspects},
        "the suspects do not move and 3 ranks wait for them",
    ),
    (
        {"waiting_text": "8 ranks wait for other ranks", "suspects": ()},
        "8 ranks wait for other ranks",
    ),
    (
        {"waiting_text": "3 ranks seem to wait for it", "peers_waiting": False},
        "3 ranks seem to wait for it, but they may be working there",
    ),
]


@pytest.mark.parametrize(("diagnosis", "reason"), REASONS)
def test_the_reason_of_a_patience_agrees_with_the_summary(diagnosis, reason):
    context = StallContext(typical_s=1.0)
    assert patience_for(a_diagnosis(**diagnosis), context, Pauses(), Policy()).reason == reason


def test_a_real_timeline_becomes_hung_through_fleet_and_detector():
    world = World()
    world.step(10)
    watch = AttemptWatch(policy=world.policy, pauses=world.pauses)
    statuses = []
    for _ in range(25):
        condition = world.report(1)
        watch.advance(condition, StallContext(typical_s=1.0), world.now)
        if watch.status is Status.SUSPECT and watch.diagnosis is None:
            watch.take_diagnosis(a_diagnosis(), world.now)
        statuses.append(watch.status)
    assert statuses.index(Status.SUSPECT) == 5
    assert statuses.index(Status.HUNG) == 15


def test_a_suspicion_remains_when_the_agents_stop_reporting():
    story = Story()
    story.see(stalled())
    story.hear(a_diagnosis())
    story.see(plain(ConditionKind.LOST), seconds=3)
    assert story.watch.status is Status.MONITORING_LOST
    assert story.watch.reason == "lost; it was suspect: rank 2 has not stepped"
    assert story.watch.stall is not None
    assert story.watch.diagnosis is not None
    story.see(plain(ConditionKind.STEPPING))
    assert story.watch.stall is None
    assert PauseLearned not in story.kinds()  # nobody saw how long it was
    story.see(plain(ConditionKind.LOST))
    assert story.watch.reason == "lost"


def test_a_stall_that_is_seen_again_after_the_loss_is_the_same_one():
    story = Story()
    story.see(stalled(since=100.0))
    story.see(plain(ConditionKind.LOST), seconds=30)
    story.see(stalled(since=101.0))
    assert story.watch.status is Status.SUSPECT
    assert story.watch.stall.since == 100.0
