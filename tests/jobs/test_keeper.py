"""A keeper without a tower: reports, diagnoses, acts and time go in, effects come out."""

from __future__ import annotations

import pytest

from tests.jobs.scenes import JOB, World
from tests.jobs.story import a_diagnosis
from watchtower.incidents.incident import NO_SHADOW, Ack
from watchtower.jobs.effects import (
    AttemptBegun,
    DiagnosisWanted,
    DumpsWanted,
    Effect,
    IncidentClosed,
    IncidentOpened,
    RecallWanted,
    SeriesWanted,
    StatusChanged,
    StoreWanted,
)
from watchtower.jobs.keeper import (
    FORGET_AFTER_S,
    FORGET_CROWDED_AFTER_S,
    FORGET_LOST_AFTER_S,
    Keeper,
)
from watchtower.jobs.verdicts import DiagnosisResult
from watchtower.wire.verdict import Status

ID = "01INCIDENT"


class Watched:
    """A keeper in a world, and a caller that carries out what concerns its incident."""

    def __init__(self) -> None:
        self.world = World()
        self.world.step(20)
        self.effects: list[Effect] = []
        self.check()

    @property
    def keeper(self) -> Keeper:
        return self.world.fleet.jobs[JOB]

    @property
    def wall(self) -> float:
        return 1_700_000_000.0 + self.world.now

    def check(self) -> list[Effect]:
        """Check the job now. Return the effects."""
        keeper, now, found = self.keeper, self.world.now, list[Effect]()
        if not keeper.is_begun:
            found += keeper.begin(None, NO_SHADOW, now, self.wall)
        for effect in keeper.check(self.world.fleet.nodes, now, self.wall):
            found.append(effect)
            if isinstance(effect, IncidentOpened):
                facts = keeper.facts()
                keeper.judged.open_incident(ID, "", keeper.sharer, facts, now, self.wall)
        self.effects += found
        return found

    def report(self, seconds: int) -> None:
        for _ in range(seconds):
            self.world.report(1)
            self.check()

    def hang(self) -> None:
        """Let no rank step until the job is hung, with one diagnosis."""
        self.report(8)
        result = DiagnosisResult(diagnosis=a_diagnosis(), evidence=b"{}")
        self.keeper.judged.take_diagnosis(result, self.world.now, self.wall)
        self.report(12)
        assert self.keeper.judged.watch.status is Status.HUNG

    def kinds(self) -> list[type]:
        return list(dict.fromkeys(type(effect) for effect in self.effects))


def test_a_hang_is_a_list_of_effects():
    watched = Watched()
    begin = [AttemptBegun, RecallWanted, StoreWanted]
    assert watched.kinds() == begin
    watched.hang()
    assert watched.kinds() == [
        *begin,
        DumpsWanted,
        StatusChanged,
        DiagnosisWanted,
        IncidentOpened,
        SeriesWanted,
    ]
    (series,) = (each for each in watched.effects if isinstance(each, SeriesWanted))
    assert (series.incident, series.suspects) == (ID, (2,))
    incident = watched.keeper.judged.current_incident
    assert incident is not None
    assert incident.evidence is None, "whoever stores it has it"


def test_what_follows_an_effect_uses_what_it_has_changed():
    watched = Watched()
    watched.report(8)
    result = DiagnosisResult(diagnosis=a_diagnosis(), evidence=b"{}")
    watched.keeper.judged.take_diagnosis(result, watched.world.now, watched.wall)
    while IncidentOpened not in (kinds := [type(effect) for effect in watched.check()]):
        watched.world.report(1)
    assert kinds.index(SeriesWanted) > kinds.index(IncidentOpened), "of the incident just opened"


def test_the_next_attempt_closes_the_incident_and_begins_anew():
    watched = Watched()
    watched.hang()
    before = watched.keeper.judged
    watched.world.launch(pids_from=500)
    watched.world.report(1)
    assert not watched.keeper.is_begun
    assert [type(effect) for effect in watched.check()][:2] == [IncidentClosed, AttemptBegun]
    judgement = watched.keeper.judged
    assert judgement is not before
    assert (judgement.attempt.number, judgement.incident) == (2, None)
    assert judgement.watch.pauses is before.watch.pauses, "a job keeps what it has learned"


def test_an_acknowledgement_is_of_its_own_incident():
    watched, ack = Watched(), Ack(at=1.0, by="ann")
    assert watched.keeper.take_ack(ID, ack) is None
    watched.hang()
    assert watched.keeper.take_ack("another", ack) is None
    acked = watched.keeper.take_ack(ID, ack)
    assert acked is watched.keeper.judged.incident
    assert acked is not None
    assert acked.ack == ack


@pytest.mark.parametrize(
    ("over", "after_s"), [("ended_at", FORGET_AFTER_S), ("lost_at", FORGET_LOST_AFTER_S)]
)
def test_a_job_that_is_over_is_dropped_after_a_while(over, after_s):
    keeper = Watched().keeper
    assert not keeper.is_over(1e9, crowded=True)
    setattr(keeper.judged, over, 100.0)
    assert not keeper.is_over(100.0 + after_s, crowded=False)
    assert keeper.is_over(101.0 + after_s, crowded=False)
    assert not keeper.is_over(100.0 + FORGET_CROWDED_AFTER_S, crowded=True)
    assert keeper.is_over(101.0 + FORGET_CROWDED_AFTER_S, crowded=True)
