"""A job is called healthy only if that is known: until then every text, page, metric and exit code
states that it is not judged yet, what is missing, and until when."""

from __future__ import annotations

import pytest

from tests.jobs.scenes import JOB, World
from tests.tower.simulator import Simulation
from tests.tower.test_job_metrics import values
from tests.tower.watching import Watching
from tests.ui.browsing import check_page, get
from tests.ui.test_stories import app_of
from watchtower.commands.asking import exit_code_for
from watchtower.commands.client import DONE, NOT_JUDGED, TROUBLE
from watchtower.views.fleet import summarize_jobs
from watchtower.views.measures import measure_job
from watchtower.wire.report import Ending, EndingKind
from watchtower.wire.verdict import Progress
from watchtower.writing.times import read_time
from watchtower.writing.verdict_text import render_markdown, render_slack, render_text

STARTING = "starting, not judged yet"


def missing(sim: Simulation) -> tuple[str, ...]:
    assert sim.verdict.not_judged is not None
    return sim.verdict.not_judged.missing


def seconds_left(sim: Simulation) -> float:
    assert sim.verdict.not_judged is not None
    return read_time(sim.verdict.not_judged.until).timestamp() - sim.tower.clock.wall()


def is_judged(sim: Simulation) -> bool:
    return sim.verdict.not_judged is None


def code(sim: Simulation) -> int:
    verdict = {"status": sim.status, "not_judged": sim.verdict.not_judged}
    return exit_code_for([verdict])


def test_a_hung_job_without_heartbeats_is_never_called_healthy(tell_no_heartbeat):
    async def story(sim: Simulation, watch: Watching) -> None:
        watch.be_still()
        await watch.go(5)
        assert missing(sim) == ("no rank has heartbeats", "no stack sample was taken yet")
        for _ in range(120):
            if sim.status != "healthy":
                break
            assert sim.verdict.not_judged.text == STARTING
            assert code(sim) == NOT_JUDGED
            assert 0 <= seconds_left(sim) <= 130
            await watch.go(1)
        assert is_judged(sim)
        assert (sim.status, code(sim)) == ("suspect", TROUBLE)

    tell_no_heartbeat(story, no_step_floor_s=60)


def test_a_suspicion_comes_at_the_promised_time_at_the_latest(tell_no_heartbeat):
    async def story(sim: Simulation, watch: Watching) -> None:
        watch.be_still()
        await watch.go(30)
        left = seconds_left(sim)
        assert await watch.until("suspect") == pytest.approx(left, abs=3)

    tell_no_heartbeat(story, no_step_floor_s=60)


def test_changes_soon_after_the_start_may_be_imports(tell_no_heartbeat):
    async def story(sim: Simulation, watch: Watching) -> None:
        await watch.work(100)
        assert sim.verdict.progress is Progress.STEPPING
        assert missing(sim)[-1].startswith("stacks have changed only soon after the start")
        await watch.work(60)
        assert is_judged(sim)
        assert code(sim) == DONE

    tell_no_heartbeat(story)


def test_a_job_that_worked_and_changes_no_more_is_not_called_healthy_nor_starting(
    tell_no_heartbeat,
):
    async def story(sim: Simulation, watch: Watching) -> None:
        await watch.work(200)
        await watch.go(80)
        assert sim.status == "healthy"
        assert sim.verdict.not_judged.text == "not judged yet"
        assert missing(sim)[-1] == "the latest stack samples show no change"

    tell_no_heartbeat(story)


def test_ranks_that_were_not_found_are_named_in_every_form(tell):
    async def story(sim: Simulation) -> None:
        sim.world.hidden = {3}
        await sim.report(5)
        assert missing(sim) == ("3 of 4 ranks were found (not rank 3)", "no rank has made a step")
        assert 50 <= seconds_left(sim) <= 60
        texts = [render(sim.verdict) for render in (render_text, render_markdown, render_slack)]
        (listed,) = summarize_jobs(sim.tower.moment())
        assert listed.not_judged == sim.verdict.not_judged
        app = app_of(sim)
        pages = [check_page(await get(app, path)).text for path in ("/", f"/jobs/{JOB}")]
        assert "1 not judged yet" in pages[0]
        for text in (*texts, *pages):
            assert STARTING in text.lower()
            assert "3 of 4 ranks were found (not rank 3)" in text
            assert "at the latest" in text
            assert "healthy" not in text.lower()
        assert "next: diagnose it now: `watchtower why llama --now`" in texts[0]

    tell(story)


def test_the_first_steps_are_not_judged_and_a_known_step_time_is(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(2)
        assert missing(sim) == ("too few steps were seen to know how long one takes",)
        assert sim.verdict.not_judged.text == "not judged yet"
        assert values(sim, "watchtower_job_state") == {JOB: -1}
        status = values(sim, "watchtower_job_status", "status")
        assert {name for name, value in status.items() if value} == {"not_judged"}
        await sim.step(10)
        assert is_judged(sim)
        assert values(sim, "watchtower_job_state") == {JOB: 0}
        assert measure_job(sim.tower.moment(), sim.tower.fleet.jobs[JOB], ()).is_judged
        assert code(sim) == DONE

    tell(story)


def test_a_job_whose_last_rank_has_just_ended_is_not_called_healthy(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        for rank in sim.world.ranks.values():
            rank.ended, rank.ended_at = Ending(kind=EndingKind.EXIT, code=0, age_s=0), sim.world.now
        await sim.report(1)
        assert sim.verdict.not_judged.text == "ending, not judged yet"
        await sim.report(3)
        assert (sim.status, sim.verdict.not_judged) == ("ended", None)

    tell(story)


def test_a_large_job_of_which_little_was_found_has_a_short_text(tell):
    async def story(sim: Simulation) -> None:
        sim.world.hidden = set(range(0, 64, 2))
        await sim.report(3)
        assert len(missing(sim)[0]) < 130

    tell(story, World(size=64, per_node=32))
