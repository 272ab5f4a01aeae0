"""Events after a right verdict: the hung job is killed, loses a node, is restarted, or recovers."""

from __future__ import annotations

import re
import signal

import pytest

from tests.diagnosis.builders import FETCHING
from tests.jobs.story import Story, a_diagnosis, plain, stalled
from tests.tower.simulator import Simulation, hang
from watchtower.jobs.condition import ConditionKind
from watchtower.tower.stored_incidents import get_incident
from watchtower.wire.report import EndingKind, ProcessState
from watchtower.wire.verdict import Cause, Status
from watchtower.writing.verdict_text import render_text

SUSPECT = 2


def kill(sim: Simulation, *ranks: int, code: int = signal.SIGTERM) -> None:
    for rank in ranks:
        sim.world.end(rank, EndingKind.SIGNAL, int(code))


async def only_incident(sim: Simulation):
    (incident,) = await sim.incidents()
    return incident


async def assert_unchanged(sim: Simulation, cause: Cause = Cause.DATALOADER_STALL) -> None:
    incident = await only_incident(sim)
    assert incident.verdict.cause is cause
    assert [suspect.rank for suspect in incident.verdict.suspects] == [SUSPECT]
    assert [entry.cause for entry in incident.verdicts] == [cause]


@pytest.mark.parametrize("code", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGSEGV])
def test_a_hung_job_that_is_killed_keeps_its_verdict(tell, code):
    async def story(sim: Simulation) -> None:
        await hang(sim, SUSPECT)
        kill(sim, 0, 1, 2, 3, code=code)
        await sim.report(60)
        assert sim.status == "ended"
        await assert_unchanged(sim)
        (group,) = sim.verdict.aftermath
        assert (group.ranks, group.text) == ("0-3", f"ended by {code.name}")

    tell(story)


@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_ranks_that_end_seconds_apart_on_two_nodes_change_nothing(tell, first):
    async def story(sim: Simulation) -> None:
        await hang(sim, SUSPECT)
        others = [rank for rank in range(4) if rank != first]
        kill(sim, first, code=signal.SIGKILL)
        await sim.report(6)
        kill(sim, *others[:1], code=signal.SIGTERM)
        await sim.report(6)
        kill(sim, *others[1:], code=signal.SIGKILL)
        await sim.report(60)
        await assert_unchanged(sim)
        assert {group.text for group in sim.verdict.aftermath} == {
            "ended by SIGKILL",
            "ended by SIGTERM",
        }

    tell(story)


def test_a_node_that_drops_out_while_the_job_hangs_is_aftermath(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim, SUSPECT)
        sim.world.silent.add("n0")
        await sim.report(60)
        assert sim.status == "hung"
        await assert_unchanged(sim)
        (group,) = sim.verdict.aftermath
        assert (group.ranks, group.text) == ("0-1", "node n0 stopped reporting")
        kill(sim, 2, 3, code=signal.SIGKILL)
        await sim.report(60)
        await assert_unchanged(sim)

    tell(story)


def test_a_job_that_is_started_again_leaves_the_verdict_of_its_incident(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim, SUSPECT)
        kill(sim, 0, 1, 2, 3)
        await sim.report(1)
        sim.world.launch(pids_from=500)
        await sim.step(8)
        await assert_unchanged(sim)
        incident = await only_incident(sim)
        assert incident.status is Status.ENDED
        assert incident.verdict.aftermath[-1].text == "attempt 2 began"
        assert (sim.status, sim.verdict.incident) == ("healthy", None)

    tell(story)


def test_another_rank_that_crashes_afterwards_is_aftermath(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim, SUSPECT)
        kill(sim, 0, code=signal.SIGSEGV)
        await sim.report(30)
        await assert_unchanged(sim)

    tell(story)


def test_the_named_rank_that_dumps_core_later_is_still_named_and_its_death_is_reported(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim, SUSPECT)
        await sim.report(20)
        kill(sim, SUSPECT, code=signal.SIGABRT)
        await sim.report(5)
        kill(sim, 0, 1, 3, code=signal.SIGTERM)
        await sim.report(60)
        await assert_unchanged(sim)
        assert [(g.ranks, g.text) for g in sim.verdict.aftermath] == [
            ("2", "ended by SIGABRT"),
            ("0-1,3", "ended by SIGTERM"),
        ]

    tell(story)


def test_an_out_of_memory_kill_of_the_named_rank_is_the_better_cause(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim, SUSPECT)
        kill(sim, SUSPECT, code=signal.SIGKILL)
        ended = sim.world.ranks[SUSPECT].ended
        object.__setattr__(ended, "oom_killed", True)
        await sim.report(35)
        incident = await only_incident(sim)
        assert incident.verdict.cause is Cause.OOM_KILLED
        assert [entry.cause for entry in incident.verdicts] == [
            Cause.DATALOADER_STALL,
            Cause.OOM_KILLED,
        ]

    tell(story)


async def hang_for_unknown_reasons(sim: Simulation) -> None:
    """Stop every rank, without a stack of any rank."""
    await sim.step(10)
    await sim.report(60)
    assert (sim.status, sim.verdict.cause) == ("hung", Cause.UNKNOWN)


def test_a_crash_explains_a_hang_that_was_unknown(tell):
    async def story(sim: Simulation) -> None:
        await hang_for_unknown_reasons(sim)
        kill(sim, 1, code=signal.SIGSEGV)
        await sim.report(5)
        kill(sim, 0, 2, 3, code=signal.SIGTERM)
        await sim.report(60)
        incident = await only_incident(sim)
        assert incident.verdict.cause is Cause.PROCESS_DIED
        assert [suspect.rank for suspect in incident.verdict.suspects] == [1]

    tell(story)


@pytest.mark.parametrize("code", [signal.SIGTERM, signal.SIGKILL, signal.SIGABRT])
def test_a_kill_explains_nothing(tell, code):
    async def story(sim: Simulation) -> None:
        await hang_for_unknown_reasons(sim)
        kill(sim, 1, code=code)
        await sim.report(5)
        kill(sim, 0, 2, 3, code=signal.SIGKILL)
        await sim.report(60)
        assert (await only_incident(sim)).verdict.cause is Cause.UNKNOWN

    tell(story)


def test_a_restarted_tower_still_knows_which_deaths_came_after_the_opening(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim, SUSPECT)
        await sim.restart_tower()
        await sim.report(5)
        kill(sim, 0, 1, code=signal.SIGKILL)
        await sim.report(5)
        kill(sim, 2, 3, code=signal.SIGKILL)
        await sim.report(60)
        await assert_unchanged(sim)
        assert sim.verdict.aftermath

    tell(story)


STUCK = "score /job/loss.py:17 < train /job/main.py:42 < <module> /job/main.py:80"


@pytest.mark.parametrize("stops_tower", [False, True])
def test_when_the_suspect_has_ended_no_step_names_its_process(tell, stops_tower):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        await sim.report(6)
        await sim.dump(behind=SUSPECT, stack=STUCK)
        await sim.report(60)
        assert sim.status == "hung"
        asked, command = sim.verdict.next_steps
        assert "read the code" in asked
        assert "py-spy dump --pid" in command
        if stops_tower:
            await sim.restart_tower()
            await sim.report(5)
        kill(sim, 0, code=signal.SIGKILL)
        await sim.report(3)
        assert sim.verdict.next_steps == (asked, command)
        kill(sim, SUSPECT, code=signal.SIGKILL)
        await sim.report(3)
        assert sim.verdict.next_steps == (asked,)
        kill(sim, 1, 3, code=signal.SIGKILL)
        await sim.report(60)
        assert sim.status == "ended"
        assert sim.verdict.next_steps == (asked,)
        incident = await only_incident(sim)
        text = render_text((await get_incident(sim.tower, incident.id)).verdict)
        assert "pid" not in text.partition("next:")[2]
        assert re.search(r"then ended at 2023-\d\d-\d\d \d\d:\d\d:\d\d UTC\.", text)
        assert not re.search(r"\dT\d", text)

    tell(story)


def test_recovered_is_an_event_and_then_the_job_is_healthy_again(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim, SUSPECT)
        await sim.report(100)
        await sim.step(1)
        assert sim.status == "recovered"
        assert 115 <= sim.verdict.stalled_for_s <= 122
        assert sim.verdict.incident
        await sim.step(10)
        assert (sim.status, sim.verdict.incident) == ("healthy", None)
        incident = await only_incident(sim)
        assert incident.status is Status.RECOVERED
        detail = await get_incident(sim.tower, incident.id)
        assert detail.verdict.status is Status.RECOVERED
        assert detail.verdict.cause is Cause.DATALOADER_STALL
        text = render_text(detail.verdict)
        assert "and recovered at 2023-" in text
        assert "Rank 2 (n1) held it up: waiting for input data (" in text
        assert "next:" not in text
        assert "waits" not in text

    tell(story)


def test_a_recovered_job_that_ends_later_ended_without_an_incident(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim, SUSPECT)
        await sim.step(12)
        for rank in range(4):
            sim.world.end(rank)
        await sim.report(30)
        assert (sim.status, sim.verdict.incident) == ("ended", None)

    tell(story)


def test_a_suspicion_says_when_it_becomes_an_incident_and_why(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        await sim.report(6)
        await sim.dump(behind=SUSPECT, stack=FETCHING)
        await sim.report(3)
        assert sim.status == "suspect"
        assert 5 <= sim.verdict.hung_in_s <= 8
        assert sim.verdict.hung_because
        assert "hung in" in render_text(sim.verdict)
        await sim.report(10)
        assert (sim.status, sim.verdict.hung_in_s) == ("hung", None)

    tell(story)


@pytest.mark.parametrize("gap_s", [0.1, 1, 8])
@pytest.mark.parametrize("raises", [True, False])
def test_ranks_that_handle_sigterm_and_then_end_by_themselves_explain_nothing(tell, gap_s, raises):
    async def story(sim: Simulation) -> None:
        await hang_for_unknown_reasons(sim)
        for rank in (2, 0, 1, 3):
            sim.world.end(rank, EndingKind.EXIT, 1 if raises else 3)
            if raises:
                ended = sim.world.ranks[rank].ended
                object.__setattr__(ended, "exception_type", "RuntimeError")
            sim.world.now += gap_s % 1
            await sim.report(gap_s // 1)
        await sim.report(30)
        assert (await only_incident(sim)).verdict.cause is Cause.UNKNOWN

    tell(story)


def test_deaths_are_listed_while_every_live_rank_is_stopped(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim, SUSPECT)
        sim.world.ranks[SUSPECT].state = ProcessState.STOPPED
        kill(sim, 0, 1, 3, code=signal.SIGKILL)
        await sim.report(3)
        assert [(g.ranks, g.text) for g in sim.verdict.aftermath] == [("0-1,3", "ended by SIGKILL")]
        await assert_unchanged(sim)

    tell(story)


def test_nodes_that_are_silent_together_are_listed(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim, SUSPECT)
        sim.world.silent |= {"n0", "n1"}
        await sim.report(30)
        assert {g.text for g in sim.verdict.aftermath} == {
            "node n0 stopped reporting",
            "node n1 stopped reporting",
        }

    tell(story)


def test_an_incident_has_no_verdicts_of_an_earlier_stall(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim, SUSPECT)
        await sim.step(12)
        sim.world.end(1, EndingKind.SIGNAL, int(signal.SIGSEGV))
        for rank in (0, 2, 3):
            sim.world.end(rank, EndingKind.SIGNAL, int(signal.SIGTERM))
        await sim.report(30)
        _, crash = await sim.incidents()
        assert [entry.suspects for entry in crash.verdicts] == ["1"]

    tell(story)


def test_a_restarted_tower_lists_what_its_last_run_listed_and_what_happened_meanwhile(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim, SUSPECT)
        kill(sim, 0, code=signal.SIGKILL)
        await sim.report(4)
        await sim.kill_tower()
        sim.restart_agent("n0")  # it no longer knows rank 0
        kill(sim, 1, 2, 3, code=signal.SIGTERM)
        await sim.report(30)
        await assert_unchanged(sim)
        assert sim.status == "ended"
        assert {(g.ranks, g.text) for g in sim.verdict.aftermath} == {
            ("0", "ended by SIGKILL"),
            ("1-3", "ended by SIGTERM"),
        }

    tell(story)


def test_a_stall_that_is_over_without_a_step_does_not_go_on_counting():
    story = Story()
    story.see(stalled())
    story.hear(a_diagnosis())
    story.see(plain(ConditionKind.STEPLESS), seconds=600)
    assert story.watch.hung_in_s(story.now) is None
    story.see(stalled(since=story.now))
    story.hear(a_diagnosis())
    story.see(stalled(since=story.now), seconds=9)
    assert story.watch.status is Status.SUSPECT


def test_an_incident_stays_open_when_a_new_agent_no_longer_reports_its_live_ranks(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim, SUSPECT)
        sim.restart_agent("n0")
        sim.restart_agent("n1")
        sim.world.hidden = {0, 1, 2, 3}
        await sim.report(120)
        assert sim.status == "hung"
        assert "no longer reported by the agent on n0, n1: ranks 0-3" in sim.live.watch.reason
        await assert_unchanged(sim)
        assert (await only_incident(sim)).closed_at is None

    tell(story)


def test_a_healthy_job_is_monitoring_lost_when_its_agent_reports_without_a_live_rank(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        sim.world.hidden = {1}
        await sim.step(60)
        assert sim.status == "monitoring_lost"
        assert await sim.incidents() == []
        sim.world.hidden = set()
        await sim.step(3)
        assert sim.status == "healthy"

    tell(story)


def test_ranks_that_an_agent_no_longer_reports_are_aftermath(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim, SUSPECT)
        sim.restart_agent("n1")
        sim.world.hidden = {SUSPECT, 3}
        await sim.report(60)
        await assert_unchanged(sim)
        (group,) = sim.verdict.aftermath
        assert (group.ranks, group.text) == ("2-3", "no longer reported by the agent on n1")
        kill(sim, 0, 1, 2, 3)
        await sim.report(60)
        await assert_unchanged(sim)

    tell(story)
