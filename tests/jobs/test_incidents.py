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
from watchtower.jobs.stall_context import StallContext
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
