"""Pauses that ended by themselves: which are stored, and how they extend the patience."""

from tests.jobs.story import Story, a_diagnosis, plain, stalled
from watchtower.jobs.condition import ConditionKind, Why
from watchtower.jobs.effects import (
    IncidentClosed,
    IncidentOpened,
    PauseLearned,
    StatusChanged,
)
from watchtower.jobs.pace import Pause, Pauses
from watchtower.jobs.patience import LOGS_WAIT_S, patience_for
from watchtower.jobs.stall_context import StallContext
from watchtower.policy import Policy
from watchtower.wire.verdict import Cause, Status


def test_steps_before_the_patience_is_over_are_a_pause_to_remember():
    story = Story()
    story.see(stalled())
    story.hear(a_diagnosis())
    story.see(stalled(), seconds=5)
    effects = story.see(plain(ConditionKind.STEPPING))
    assert story.watch.status is Status.HEALTHY
    learned = [effect.pause for effect in effects if isinstance(effect, PauseLearned)]
    assert [(pause.frame_class, pause.length_s) for pause in learned] == [("dataloader", 11.0)]
    assert IncidentOpened not in story.kinds()


def test_a_long_start_is_not_learned_as_a_pause():
    story = Story()
    story.see(stalled(why=Why.STARTUP), starting=True)
    story.hear(a_diagnosis(suspects_moving=True, suspect_class="user"))
    story.see(stalled(why=Why.STARTUP), seconds=900, starting=True)
    assert story.watch.status is Status.SUSPECT
    effects = story.see(plain(ConditionKind.STEPPING))
    assert [type(effect) for effect in effects] == [StatusChanged]
    assert not story.watch.pauses


def test_a_pause_seen_before_gets_more_patience():
    story = Story()
    for length in (9, 12):
        story.see(stalled(since=story.now - 6))
        story.hear(a_diagnosis())
        story.see(stalled(since=story.now - 6), seconds=length)
        story.see(plain(ConditionKind.STEPPING))
    assert story.watch.status is Status.HEALTHY
    assert IncidentOpened not in story.kinds()


def test_a_gpu_that_was_idle_for_a_while_alone_is_a_pause_that_gets_more_patience():
    """A copy to the host does not count as load: another GPU may seem idle until it ends."""
    story = Story()
    for length in (9, 12):
        story.see(stalled(since=story.now - 6))
        story.hear(a_diagnosis(Cause.GPU_FAULT, is_shown_by_gpus=True, suspects_rest=True))
        story.see(stalled(since=story.now - 6), seconds=length)
        story.see(plain(ConditionKind.STEPPING))
    assert story.watch.status is Status.HEALTHY
    assert IncidentOpened not in story.kinds()


def test_a_death_that_peers_survive_is_not_learned_as_a_pause():
    story = Story()
    story.see(stalled(why=Why.DEATH))
    story.hear(a_diagnosis(Cause.PROCESS_DIED))
    effects = story.see(plain(ConditionKind.STEPPING))
    assert [type(effect) for effect in effects] == [StatusChanged]


def test_an_incident_is_not_learned_as_a_pause():
    story = Story()
    story.see(stalled())
    story.hear(a_diagnosis(suspects_moving=True))
    story.see(stalled(), seconds=10_800)
    effects = story.see(plain(ConditionKind.STEPPING))
    assert [type(e) for e in effects] == [StatusChanged, IncidentClosed]
    assert not story.watch.pauses


def test_patience_is_limited_for_pauses_of_any_length():
    context = StallContext(typical_s=1.0)
    pauses = Pauses((Pause(phase="", frame_class="dataloader", length_s=10_800.0),))
    patience = patience_for(a_diagnosis(), context, pauses, Policy())
    assert patience.length_s == Policy().learned_max_s
    assert patience.reason == "a pause of 10800 s was seen here before"
    lacks_logs = a_diagnosis(Cause.UNKNOWN, unlogged=(1,))
    patience = patience_for(lacks_logs, context, pauses, Policy())
    assert patience.length_s == Policy().learned_max_s + LOGS_WAIT_S
    assert patience.reason.endswith("before; collective logs of some ranks are missing")
