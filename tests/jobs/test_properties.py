"""Properties of detection that hold for every timeline."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.jobs.scenes import World
from tests.jobs.test_incidents import a_diagnosis
from tests.properties import examples
from watchtower.jobs.condition import Condition, ConditionKind, Stall, Why
from watchtower.jobs.effects import IncidentClosed, IncidentOpened, IncidentUpdated
from watchtower.jobs.incidents import AttemptWatch
from watchtower.jobs.pace import Pauses
from watchtower.jobs.stall_context import StallContext
from watchtower.policy import Policy
from watchtower.wire.verdict import Cause, Status

FEW = examples(40)


@FEW
@given(step_s=st.floats(0.2, 20), share=st.floats(0, 0.97))
def test_there_is_no_stall_before_the_deadline(step_s: float, share: float):
    world = World()
    world.step(8, step_s=step_s)
    deadline = world.detector.deadline_s(world.attempt, "", world.pauses)
    world.now += share * deadline
    for node in world.fleet.nodes.values():
        node.reporter = replace(node.reporter, seen_at=world.now, silent_from=world.now + 10)
    for record in world.attempt.ranks.values():
        beat, age = record.vitals.beat, world.now - record.seen_at
        record.seen_at = world.now
        record.vitals = replace(record.vitals, beat=replace(beat, age_s=beat.age_s + age))
    assert world.judge().kind is not ConditionKind.STALLED


@FEW
@given(seconds=st.lists(st.integers(1, 20), min_size=1, max_size=6))
def test_without_a_beat_a_stall_stays_a_stall(seconds: list[int]):
    world = World()
    world.step(8)
    stalled = False
    for some in seconds:
        stalled_now = world.report(some).kind is ConditionKind.STALLED
        assert stalled_now or not stalled
        stalled = stalled_now


@FEW
@given(late=st.sets(st.integers(0, 7), min_size=1))
def test_exactly_the_ranks_that_stopped_are_in_the_stall_and_a_beat_clears_them(late: set[int]):
    world = World(size=8, per_node=4)
    world.step(8)
    condition = world.step(8, but=frozenset(late))
    assert condition.stall.ranks == late
    assert world.step(1).kind is ConditionKind.STEPPING


@FEW
@given(late=st.integers(0, 7), moved=st.permutations(range(8)))
def test_renumbering_the_ranks_renumbers_the_stall(late: int, moved: list[int]):
    world = World(size=8, per_node=4)
    world.ranks = {moved[r]: replace(rank, rank=moved[r]) for r, rank in world.ranks.items()}
    world.step(8)
    assert world.step(8, but=frozenset({moved[late]})).stall.ranks == {moved[late]}


class AnyTimeline(RuleBasedStateMachine):
    """Conditions and diagnoses in any order. An incident must open before it can close."""

    @initialize()
    def begin(self) -> None:
        self.watch = AttemptWatch(policy=Policy(), pauses=Pauses())
        self.now = 100.0
        self.open = False
        self.opened = 0

    def take(self, effects: list[object]) -> None:
        for effect in effects:
            if isinstance(effect, IncidentOpened):
                assert not self.open, "a second incident opened"
                self.opened += 1
                self.open = self.watch.status is not Status.ENDED
            elif isinstance(effect, IncidentUpdated):
                assert self.open, "a closed incident was changed"
            elif isinstance(effect, IncidentClosed):
                assert self.open, "a closed incident was closed again"
                self.open = False

    @rule(kind=st.sampled_from(ConditionKind), why=st.sampled_from(Why), after=st.floats(0.1, 40))
    def see(self, kind: ConditionKind, why: Why, after: float) -> None:
        self.now += after
        stall = Stall(why=why, since=self.now - 6, ranks=frozenset({2}))
        given = Condition(
            kind=kind, reason="any", stall=stall if kind is ConditionKind.STALLED else None
        )
        context = StallContext(typical_s=1.0, dumps_have=1, dumps_want=1, evidence=(int(self.now),))
        self.take(self.watch.advance(given, context, self.now))

    @rule(cause=st.sampled_from(Cause), moving=st.booleans(), waiting=st.booleans())
    def hear(self, cause: Cause, moving: bool, waiting: bool) -> None:
        diagnosis = a_diagnosis(cause, suspects_moving=moving, peers_waiting=waiting)
        self.take(self.watch.take_diagnosis(diagnosis, self.now))

    @invariant()
    def an_incident_is_open_exactly_while_hung(self) -> None:
        if hasattr(self, "watch"):
            assert self.open == (self.watch.status is Status.HUNG)


AnyTimeline.TestCase.settings = examples(150, stateful_step_count=30)
TestAnyTimeline = AnyTimeline.TestCase
