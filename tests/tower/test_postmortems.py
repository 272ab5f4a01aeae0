"""The post-mortem stays true: after a kill, a recovery, a restart of the tower and retention."""

from __future__ import annotations

import contextlib
import signal
import sqlite3

from httpx2 import ASGITransport, AsyncClient

from tests.tower.simulator import Simulation, hang
from tests.tower.test_aftermath import SUSPECT, kill
from watchtower.alerts.labels import AlertLinks
from watchtower.app import make_app
from watchtower.incidents.postmortem.writer import DELETED
from watchtower.tower.postmortems import make_postmortem
from watchtower.writing.documents import write_markdown

LINK = "https://tower/incidents/1"


async def text_of(sim: Simulation) -> str:
    (incident,) = await sim.incidents()
    document = await make_postmortem(sim.tower, incident.id, LINK)
    assert document is not None
    return write_markdown(document)


def test_it_is_the_same_document_after_a_kill_a_restart_and_later(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim, SUSPECT)
        during = await text_of(sim)
        assert "the incident was still open" in during
        kill(sim, 0, 1, 2, 3, code=signal.SIGTERM)
        await sim.report(60)
        after = await text_of(sim)
        assert f"Rank {SUSPECT} on n1 was the cause: waiting for input data" in after
        assert "The job ended at " in after
        assert "ranks 0-3: ended by SIGTERM" in after
        assert "4 ranks x " in after
        assert "## Which ranks waited for which" in after
        await sim.restart_tower()
        assert await text_of(sim) == after
        await sim.report(7200, every=9)
        assert await text_of(sim) == after

    tell(story)


def test_it_says_so_if_retention_has_deleted_the_evidence(tell, tmp_path):
    async def story(sim: Simulation) -> None:
        await hang(sim, SUSPECT)
        kill(sim, 0, 1, 2, 3, code=signal.SIGKILL)
        await sim.report(60)
        before = await text_of(sim)
        assert "__next" in before
        with contextlib.closing(sqlite3.connect(tmp_path / "watchtower.db")) as db, db:
            db.execute("DELETE FROM evidence")
        await sim.restart_tower()
        after = await text_of(sim)
        assert DELETED.split("`")[0] in after
        assert "4 ranks x " in after
        events = before[before.index("## Timeline") : before.index("## Healthy")]
        assert events in after

    tell(story)


def test_a_recovery_is_told_in_the_past_tense(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim, SUSPECT)
        await sim.step(8)
        text = await text_of(sim)
        assert "The job recovered at " in text
        assert "No step was lost" in text
        assert "the job made steps again" in text

    tell(story)


def test_the_route_writes_markdown_and_html(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim, SUSPECT)
        (incident,) = await sim.incidents()
        app = make_app(sim.tower, links=AlertLinks(public_url="https://tower"))
        async with AsyncClient(transport=ASGITransport(app), base_url="http://tower") as client:
            path = f"/api/v1/incidents/{incident.id}/postmortem"
            markdown = await client.get(path)
            page = await client.get(f"{path}?format=html")
            refused = await client.get(f"{path}?format=pdf")
            unknown = await client.get("/api/v1/incidents/01XYZ/postmortem")
        assert markdown.headers["content-type"] == "text/markdown; charset=utf-8"
        assert f"<https://tower/incidents/{incident.id}>" in markdown.text
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert page.headers["content-security-policy"] == "default-src 'none'; img-src data:"
        assert "<h2>Timeline</h2>" in page.text
        assert '<img src="data:image/svg+xml;base64,' in page.text
        assert (refused.status_code, unknown.status_code) == (422, 404)

    tell(story)
