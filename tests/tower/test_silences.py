"""Which incidents a silence of a job, node or user applies to, while verdicts change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.jobs.scenes import JOB
from tests.tower.simulator import Simulation, hang
from tests.tower.test_incident_identity import name_user
from watchtower.api.metrics import TowerCollector
from watchtower.api.security import Refusals
from watchtower.incidents.incident_filter import IncidentFilter
from watchtower.jobs.verdicts import find_only_node
from watchtower.tower.stored_incidents import get_incident, list_incidents
from watchtower.views.job import view_job
from watchtower.views.people import Subject, subject_of
from watchtower.wire.verdict import Cause, Status, Suspect, Verdict

Tell = Callable[..., None]


def is_silenced(sim: Simulation) -> bool:
    """Whether the metric of the open incident, from which rules make alerts, is 1."""
    families = TowerCollector(sim.tower, Refusals()).collect()
    (found,) = [one for one in families if one.name == "watchtower_incident_silenced"]
    ((sample),) = found.samples
    assert sample.labels == {"incident": sim.verdict.incident, "training_job": JOB}
    return bool(sample.value)


def test_a_silence_by_node_applies_if_all_suspects_are_on_it(tell: Tell):
    async def story(sim: Simulation) -> None:
        await hang(sim, rank=2)
        node = sim.verdict.suspects[0].node
        await sim.tower.silences.add(Subject(node="another"), 600)
        assert not is_silenced(sim)
        await sim.tower.silences.add(Subject(node=node), 600, "new switch")
        assert is_silenced(sim)
        (listed,) = (await list_incidents(sim.tower, IncidentFilter(job=JOB), 10)).items
        assert (listed.silence.node, listed.silence.reason) == (node, "new switch")
        assert (await get_incident(sim.tower, listed.id)).silence == listed.silence
        assert view_job(sim.tower.moment(), JOB).silence is None, "the job itself is not silenced"
        await sim.restart_tower()
        await sim.report(5)
        assert is_silenced(sim)

    tell(story)


def test_a_node_that_only_has_ranks_of_the_job_does_not_silence_it(tell: Tell):
    async def story(sim: Simulation) -> None:
        await hang(sim, rank=2)
        blamed = {suspect.node for suspect in sim.verdict.suspects}
        others = {one.node for one in view_job(sim.tower.moment(), JOB).nodes} - blamed
        assert others
        for node in others:
            await sim.tower.silences.add(Subject(node=node), 600)
        assert not is_silenced(sim)

    tell(story)


def test_a_silence_by_node_applies_to_a_job_that_this_node_slows_down(tell: Tell):
    async def story(sim: Simulation) -> None:
        await sim.step(12)
        await sim.step(4, step_s=3.0)
        nodes = [one.node for one in view_job(sim.tower.moment(), JOB).nodes]
        for node in nodes:
            await sim.tower.silences.add(Subject(node=node), 600)
        assert view_job(sim.tower.moment(), JOB).silence is None, "no rank is named yet"
        for _ in range(6):
            await sim.dump(behind=2)
            await sim.step(3, step_s=3.0)
        blamed = sim.verdict.suspects[0].node
        assert view_job(sim.tower.moment(), JOB).silence.node == blamed
        await sim.step(12)
        assert view_job(sim.tower.moment(), JOB).silence is None

    tell(story)


def test_a_corrected_verdict_ends_the_silence_of_a_node_for_good(tell: Tell):
    async def story(sim: Simulation) -> None:
        await hang(sim, rank=2)
        first = sim.verdict.suspects[0].node
        await sim.tower.silences.add(Subject(node=first), 6000)
        assert is_silenced(sim)
        await sim.dump(behind=1)
        await sim.report(5)
        assert [suspect.node for suspect in sim.verdict.suspects] != [first]
        assert not is_silenced(sim)
        await sim.dump(behind=2)
        await sim.report(5)
        assert [suspect.node for suspect in sim.verdict.suspects] == [first]
        assert not is_silenced(sim), "an alert that fires must not end by a correction"
        await sim.kill_tower()
        await sim.report(20)
        assert not is_silenced(sim)

    tell(story)


def test_a_corrected_verdict_does_not_begin_a_silence(tell: Tell):
    async def story(sim: Simulation) -> None:
        await hang(sim, rank=2)
        await sim.dump(behind=1)
        await sim.report(5)
        second = sim.verdict.suspects[0].node
        await sim.tower.silences.add(Subject(node=second), 600)
        assert not is_silenced(sim)

    tell(story)


def test_a_silence_by_user_applies_to_the_user_at_the_opening(tell: Tell):
    async def story(sim: Simulation) -> None:
        await sim.step(1)
        name_user(sim, "alice")
        await hang(sim, rank=2)
        name_user(sim, "mallory")
        await sim.tower.silences.add(Subject(user="mallory"), 600)
        assert not is_silenced(sim)
        await sim.tower.silences.add(Subject(user="alice"), 600)
        assert is_silenced(sim)
        await sim.restart_tower()
        await sim.report(5)
        assert is_silenced(sim)

    tell(story)


def test_the_silence_of_a_user_is_shown_with_the_jobs_of_this_user(tell: Tell):
    async def story(sim: Simulation) -> None:
        await sim.step(1)
        name_user(sim, "alice")
        await sim.tower.silences.add(Subject(user="alice"), 600)
        assert view_job(sim.tower.moment(), JOB).silence.user == "alice"
        name_user(sim, "bob")
        assert view_job(sim.tower.moment(), JOB).silence is None

    tell(story)


def test_the_longest_of_several_silences_counts(tell: Tell):
    async def story(sim: Simulation) -> None:
        silences, subject = sim.tower.silences, Subject(job=JOB, node="n0", user="alice")
        await silences.add(Subject(job=JOB), 60)
        await silences.add(Subject(user="alice"), 600)
        longest = silences.find(subject)
        assert longest.name == "alice"
        assert await silences.remove(longest.id) == longest
        assert silences.find(subject).name == JOB

    tell(story)


def test_a_name_silences_only_what_it_names(tell: Tell):
    async def story(sim: Simulation) -> None:
        await sim.tower.silences.add(Subject(node=JOB), 600)
        assert sim.tower.silences.find(Subject(job=JOB, user=JOB)) is None
        assert sim.tower.silences.find(Subject()) is None

    tell(story)


def test_suspects_on_several_nodes_or_none_have_no_node():
    first, second = suspect(1, "a"), suspect(2, "b")
    verdict = Verdict(job=JOB, generation=1, status=Status.HUNG, summary="", suspects=())
    assert find_only_node(verdict.suspects) == ""
    assert find_only_node((first, replace(first, rank=3))) == "a"
    assert find_only_node((first, second)) == ""


def suspect(rank: int, node: str) -> Suspect:
    return Suspect(rank=rank, node=node, cause=Cause.UNKNOWN, why="")


def test_an_incident_of_an_earlier_release_has_no_node(tell: Tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        assert subject_of(replace(sim.live.incident, only_node="")).node == ""
        await sim.tower.silences.add(Subject(node=sim.verdict.suspects[0].node), 600)
        sim.live.incident = replace(sim.live.incident, only_node="")
        assert not is_silenced(sim)

    tell(story)
