"""`/watchtower` in Slack: allowed by its signature alone, and answered for one person."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from urllib.parse import urlencode

import pytest
from httpx2 import ASGITransport, AsyncClient, Response

from tests.access.test_slack_signature import SECRET, sign
from tests.field.field_case import watchdog
from tests.tower.simulator import Simulation, hang
from watchtower.access.slack_signature import SlackSignatures
from watchtower.access.tokens import TokenBook
from watchtower.alerts.labels import AlertLinks
from watchtower.alerts.settings import AlertSettings
from watchtower.api.security import AccessRules, Refusals
from watchtower.api.slack import MAX_BODY, PATH, SlackAnswers, SlackCommands
from watchtower.api.visitors import Visitors
from watchtower.app import add_slack_commands, make_app

ANN = "U0ANN0000"
NOW = 1_795_363_392.0


class Slack:
    """Sends commands as Slack does."""

    def __init__(self, client: AsyncClient, refusals: Refusals) -> None:
        self._client, self.refusals = client, refusals
        self._number = 0

    async def send(self, body: bytes, **headers: str) -> Response:
        stamp = str(int(NOW))
        signed = {
            "X-Slack-Request-Timestamp": stamp,
            "X-Slack-Signature": sign(stamp, body),
            "Content-Type": "application/x-www-form-urlencoded",
        } | headers
        return await self._client.post(PATH, content=body, headers=signed)

    async def say(self, text: str, user: str = ANN, name: str = "ann") -> str:
        self._number += 1
        fields = {"text": text, "user_id": user, "user_name": name, "trigger_id": self._number}
        response = await self.send(urlencode(fields).encode())
        assert response.status_code == 200, response.text
        answer = response.json()
        assert answer["response_type"] == "ephemeral"
        assert answer["blocks"]
        return json.dumps(answer["blocks"])


@contextlib.asynccontextmanager
async def slack_of(sim: Simulation) -> AsyncIterator[Slack]:
    refusals, links = Refusals(), AlertLinks(public_url="https://tower")
    book = TokenBook({}, {"WATCHTOWER_READER_TOKEN": "r" * 32})
    app = make_app(sim.tower, AccessRules(visitors=Visitors(book), refusals=refusals))
    answers = SlackAnswers(sim.tower, links, frozenset({ANN}))
    front = SlackCommands(app, answers, SlackSignatures(SECRET), refusals, lambda: NOW)
    async with AsyncClient(transport=ASGITransport(front), base_url="http://tower") as client:
        yield Slack(client, refusals)


def test_a_person_asks_and_acknowledges(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        (incident,) = await sim.incidents()
        async with slack_of(sim) as slack:
            assert "1 job, 1 in trouble" in await slack.say("jobs")
            text = await slack.say(f"why {incident.job}")
            assert "dataloader_stall" in text
            assert f"https://tower/incidents/{incident.id}" in text
            assert incident.id in await slack.say("incidents")
            assert "ann (Slack U0ANN0000)" in await slack.say(f"ack {incident.id[:20]} on it")
        (incident,) = await sim.incidents()
        assert (incident.ack.by, incident.ack.note) == ("ann (Slack U0ANN0000)", "on it")

    tell(story)


def test_a_pasted_log_has_a_verdict(tell):
    lines = "".join(watchdog(rank, 808) for rank in range(3))
    log = f"world_size=4\nworld_size=4\n[rank3]: step 807\n{lines}"
    hostile = (
        "65000 ranks have launched up to operation 41\n1 ranks have launched up to operation 40"
    )
    listed = "Rank 2 -- GPU 2 managed by process 4711 on node <!channel>"

    async def story(sim: Simulation) -> None:
        async with slack_of(sim) as slack:
            text = await slack.say(f"diagnose {log}")
            assert "behind_collective" in text
            assert "rank 3" in text
            assert "Paste lines" in await slack.say("diagnose ")
            assert "no evidence of a hang" in await slack.say("diagnose hello <!channel>")
            text = await slack.say(f"diagnose #0-0 (27a079b8) MISMATCH\n{hostile}\n{listed}")
            assert "rank 2" in text
            assert "<!channel>" not in text

    tell(story)


def test_only_the_people_of_the_setting_may_acknowledge(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        (incident,) = await sim.incidents()
        async with slack_of(sim) as slack:
            text = await slack.say(f"ack {incident.id}", user="U0EVE0000", name="ann")
        assert "may not acknowledge" in text
        (incident,) = await sim.incidents()
        assert incident.ack is None

    tell(story)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "why JOB"),
        ("help", "ack ID"),
        ("dance <!channel>", "There is no command"),
        ("why", "Name a job"),
        ("why <!here>", "There is no job"),
        ("ack", "Name an incident"),
        ("ack 01XYZ", "There is no incident"),
        ("incidents", "There is no incident."),
    ],
)
def test_every_text_has_an_answer_without_markup(tell, text, words):
    async def story(sim: Simulation) -> None:
        async with slack_of(sim) as slack:
            message = await slack.say(text)
        assert words in message
        assert "<!" not in message

    tell(story)


def test_a_request_without_a_fresh_valid_signature_is_refused_and_counted(tell):
    async def story(sim: Simulation) -> None:
        body = urlencode({"text": "jobs", "user_id": ANN}).encode()
        async with slack_of(sim) as slack:
            assert (await slack.send(body)).status_code == 200
            for headers in (
                {},  # the same request again
                {"X-Slack-Signature": "v0=" + "0" * 64},
                {"X-Slack-Signature": ""},
                {"X-Slack-Request-Timestamp": str(int(NOW) - 301)},
                {"Authorization": f"Bearer {'r' * 32}", "X-Slack-Signature": ""},
            ):
                refused = await slack.send(body, **headers)
                assert refused.status_code == 401
                assert refused.headers["content-type"] == "application/problem+json"
            assert slack.refusals.counts["bad_signature"] == 5

    tell(story)


def test_a_body_is_bounded_and_a_form(tell):
    async def story(sim: Simulation) -> None:
        async with slack_of(sim) as slack:
            assert (await slack.send(b"text=" + b"x" * MAX_BODY)).status_code == 413
            assert (await slack.send(b"text=\xff&user_id=U1")).status_code in (200, 400)
            many = "&".join(f"f{n}=1" for n in range(100)).encode()
            assert (await slack.send(many)).status_code == 400

    tell(story)


def test_the_signature_opens_no_other_path_and_the_path_needs_a_secret(tell, tmp_path):
    async def story(sim: Simulation) -> None:
        async with slack_of(sim) as slack:
            body, stamp = b"text=jobs", str(int(NOW))
            signed = {"X-Slack-Request-Timestamp": stamp, "X-Slack-Signature": sign(stamp, body)}
            other = await slack._client.post("/api/v1/silences", content=body, headers=signed)
            assert other.status_code == 401
            assert (await slack._client.get(PATH, headers=signed)).status_code == 401
        app = make_app(sim.tower)
        without = add_slack_commands(app, sim.tower, AlertSettings(), AlertLinks(), Refusals())
        assert without is app
        (tmp_path / "secret").write_text(f"{SECRET}\n")
        settings = AlertSettings(slack_signing_secret_file=str(tmp_path / "secret"))
        made = add_slack_commands(app, sim.tower, settings, AlertLinks(), Refusals())
        assert isinstance(made, SlackCommands)

    tell(story)
