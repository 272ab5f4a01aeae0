"""The pages through the story of a job: healthy, suspect, hung, recovered, ended."""

from __future__ import annotations

import signal

from tests.diagnosis.builders import FETCHING
from tests.tower.simulator import Simulation, hang
from tests.ui.browsing import Answer, Page, check_page, get
from watchtower.alerts.labels import AlertLinks
from watchtower.api.front import Front
from watchtower.app import make_app
from watchtower.jobs import dump_timing
from watchtower.tower.tower import Tower
from watchtower.ui import routes
from watchtower.ui.pages import Pages
from watchtower.ui.parts import Part
from watchtower.ui.settings import PageSettings
from watchtower.views.incident import IncidentOverview
from watchtower.wire.report import EndingKind, JobLabels

LOGS = "https://logs.example/?job={job}&from={from}"


def app_of(sim: Simulation, **settings) -> Front:
    links = AlertLinks(public_url="https://tower.example")

    def make(tower: Tower, pages: Pages):
        return routes.page_routes(tower, pages, links, PageSettings(**settings))

    return make_app(sim.tower, pages=make)


async def check_all(app: Front, incident: str = "", outside: tuple[str, ...] = ()) -> list[Page]:
    """Check every page, and that nothing on it changes for a while without news."""
    found = []
    for path in ("/", "/nodes", "/incidents", "/jobs/llama", f"/incidents/{incident}"):
        if path != "/incidents/":
            found.append(check_page(await get(app, path), outside))
    return found


async def incident_page(sim: Simulation, app: Front | None = None) -> Answer:
    (incident, *_) = reversed(await sim.incidents())
    return await get(app or app_of(sim), f"/incidents/{incident.id}")


def test_a_healthy_job_is_shown_with_its_pace(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        app = app_of(sim)
        fleet, nodes, _, job = await check_all(app)
        assert "No job is hung." in fleet.text
        assert "1 s a step" in fleet.text
        assert "2 agents report." in nodes.text
        assert "All ranks have made step 9" in job.text

    tell(story)


def test_a_suspect_is_named_on_the_page_of_the_job(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        await sim.report(6)
        await sim.dump(behind=2)
        await sim.report(3)
        assert sim.status == "suspect"
        fleet, _, _, job = await check_all(app_of(sim))
        assert "1 suspect" in fleet.text
        assert "Rank 2 on n1" in job.text
        assert "It counts as hung at" in job.text
        assert "Not known" not in job.text

    tell(story)


def test_the_page_of_an_incident_answers_the_questions_of_the_person_on_call(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        (incident,) = await sim.incidents()
        url = "https://logs.example/?job=llama&from=2023-11-14T22%3A15%3A10.000Z"
        app = app_of(sim, links={"logs": LOGS})
        fleet, *_, page = await check_all(app, incident.id, (url,))
        assert "1 job is hung: 4 ranks." in fleet.text
        assert "GPU" not in fleet.text
        for text in (
            "Hung since",
            "Rank 2 on n1",
            "% sure: dataloader_stall",
            "Whom to call",
            "Safe to kill? A kill loses no evidence (stacks of 4 of 4 ranks are collected)",
            "3 ranks wait at step 9",
            "What to do",
            "Acknowledge",
            "The job counted as hung. The incident was opened.",
        ):
            assert text in page.text, text
        assert f"https://tower.example/incidents/{incident.id}" in page.text
        assert url in page.addresses
        document = f"../api/v1/incidents/{incident.id}/postmortem"
        assert document in page.addresses
        assert (await get(app, f"/{document[3:]}")).status == 200

    tell(story)


def test_nothing_on_a_page_changes_with_time_alone(tell, monkeypatch):
    # A repeated diagnosis is news: its sentence says for how long a rank has been somewhere.
    monkeypatch.setattr(dump_timing, "DIAGNOSE_EVERY_S", 3600)

    async def story(sim: Simulation) -> None:
        await hang(sim)
        await sim.report(30)
        app = app_of(sim)
        (incident,) = await sim.incidents()
        paths = ("/", "/nodes", "/incidents", "/jobs/llama", f"/incidents/{incident.id}")
        before = {path: (await get(app, path)).etag for path in paths}
        await sim.report(20)
        for path in paths:
            again = await get(app, path, if_none_match=before[path])
            assert again.status == 304, path
        await sim.tower.acks.ack(incident.id, "bob", "checking")
        await sim.report(1)
        for path in ("/", "/incidents", f"/incidents/{incident.id}"):
            again = await get(app, path, if_none_match=before[path])
            assert again.status == 200, path
            assert "by bob" in Page(again.body).text

    tell(story)


def test_a_page_stays_true_after_the_recovery(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        app = app_of(sim)
        await sim.step(12)
        (incident,) = await sim.incidents()
        page = (await check_all(app, incident.id))[-1]
        assert "Recovered It hung for 1" in page.text
        assert "Rank 2 held up the job: waiting for input data." in page.text
        assert "Nothing to do now." in page.text
        assert "If it happens again: call" in page.text
        assert "What was seen while the job hung" in page.text
        assert "Safe to kill" not in page.text
        assert "Acknowledge" not in [text.strip() for text in page.texts]

    tell(story)


def test_a_page_is_the_same_after_the_kill_and_after_a_restart_of_the_tower(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        live = sim.tower.fleet.jobs["llama"]
        live.labels = JobLabels(job="llama", scheduler="slurm", scheduler_id="48213", user="alice")
        await sim.report(1)
        for rank in range(4):
            sim.world.end(rank, EndingKind.SIGNAL, signal.SIGTERM)
        await sim.report(90)
        before = Page((await incident_page(sim)).body)
        for text in ("Hung, then ended", "slurm 48213", "alice", "2 nodes", "Rank 2 on n1"):
            assert text in before.text, text
        assert "Ranks 0-3 ended by SIGTERM" in before.text
        assert "scancel" not in before.text
        await sim.restart_tower()
        again = Page((await incident_page(sim)).body)
        assert again.text == before.text

    tell(story)


def test_names_and_stacks_full_of_markup_stay_text(tell):
    evil = "<script>alert(1)</script>"

    async def story(sim: Simulation) -> None:
        await sim.step(10)
        sim.tower.fleet.jobs["llama"].labels = JobLabels(
            job="llama", scheduler="slurm", scheduler_id=evil, user='"><img src=x onerror=a>'
        )
        await sim.report(6)
        await sim.dump(behind=2, stack=f"{evil} <b>{evil}</b>.py:2 < {FETCHING}")
        await sim.report(12)
        (incident,) = await sim.incidents()
        app = app_of(sim, links={"logs": LOGS})
        answer = await get(app, f"/incidents/{incident.id}")
        shown = [each for each in Page(answer.body).addresses if each.startswith("https://")]
        check_page(answer, tuple(shown))
        assert evil not in answer.body
        assert evil in Page(answer.body).text
        await check_all(app)

    tell(story)


def test_a_part_is_on_the_page_with_its_values(tell):
    async def collect(tower: Tower, overview: IncidentOverview):
        assert tower.fleet.jobs
        return {"job": overview.incident.job} if overview.incident.verdict.suspects else None

    async def nothing(tower: Tower, overview: IncidentOverview):
        return None

    parts = (
        Part(name="graph", title="Who waits for whom", collect=collect),
        Part(name="stacks", title="Stacks", collect=nothing),
    )

    async def story(sim: Simulation) -> None:
        await hang(sim)
        filled = await routes.fill_parts(sim.tower, await overview_of(sim), parts)
        assert [(each.name, each.template, each.values) for each in filled] == [
            ("graph", "parts/graph.html", {"job": "llama"})
        ]

    async def overview_of(sim: Simulation) -> IncidentOverview:
        (incident,) = await sim.incidents()
        overview = await routes.find_incident_overview(sim.tower, incident.id)
        assert overview is not None
        return overview

    tell(story)
