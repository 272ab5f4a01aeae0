"""The bodies that Alertmanager, PagerDuty and Slack receive for each change of an incident."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from tests.alerts.notifying import LINKS, an_incident, closed, opened, updated
from tests.alerts.receivers import serving
from watchtower.alerts.alert import Alert, make_alert
from watchtower.alerts.destination import DeliveryError
from watchtower.alerts.destinations.alertmanager import REPEAT_S, VALID_S, make_alert_body
from watchtower.alerts.destinations.pagerduty import PagerDuty
from watchtower.alerts.destinations.slack import SlackBot, SlackWebhook
from watchtower.incidents.incident import Ack, Identity, IncidentKind
from watchtower.tower.incident_events import Change, IncidentEvent
from watchtower.wire.verdict import Status
from watchtower.writing.slack_blocks import MAX_TEXT
from watchtower.writing.times import read_time

INCIDENT = an_incident()
FIRST = make_alert(opened(INCIDENT), LINKS, None)
CORRECTED = make_alert(updated(an_incident(rank=5)), LINKS, FIRST)
ACKED = make_alert(
    IncidentEvent(change=Change.ACKNOWLEDGED, incident=replace(INCIDENT, ack=Ack(at=1.0, by="an"))),
    LINKS,
    FIRST,
)
OVER = make_alert(closed(INCIDENT), LINKS, FIRST)


def the_end_of_a_job() -> Alert:
    incident = replace(INCIDENT, identity=Identity(kind=IncidentKind.ENDED))
    done = replace(closed(incident).incident, status=Status.ENDED)
    event = IncidentEvent(change=Change.OPENED, incident=done)
    return make_alert(event, LINKS, None)


HOSTILE = replace(
    FIRST,
    facts=replace(FIRST.facts, job="<!channel> @here *x*", what="<https://evil|x>" + "&" * 999),
)


def seconds(text: object) -> float:
    return read_time(str(text)).timestamp()


def test_alertmanager_holds_an_open_alert_for_some_minutes():
    now = time.time()
    body = make_alert_body(FIRST, now)
    assert body["labels"] == {**FIRST.labels, "severity": "critical"}
    assert seconds(body["endsAt"]) == pytest.approx(now + VALID_S, abs=0.01)
    assert 60 + REPEAT_S < VALID_S < 300
    assert make_alert_body(CORRECTED, now)["labels"] == body["labels"]


def test_alertmanager_gets_the_end_of_an_alert_and_no_end_before_its_start():
    body = make_alert_body(OVER, time.time())
    assert seconds(body["endsAt"]) == pytest.approx(OVER.closed_at, abs=0.01)
    early = replace(OVER, closed_at=OVER.opened_at - 9)
    assert make_alert_body(early, 0.0)["endsAt"] == body["startsAt"]


def test_an_acknowledged_alert_ends_in_alertmanager_as_by_the_rules():
    now = time.time()
    assert seconds(make_alert_body(ACKED, now)["endsAt"]) == pytest.approx(now, abs=0.01)


def test_alertmanager_notifies_the_end_of_a_job():
    now = time.time()
    body = make_alert_body(the_end_of_a_job(), now)
    assert seconds(body["endsAt"]) > now + 60
    assert body["labels"]["severity"] == "warning"


def test_pagerduty_gets_the_events_of_one_incident():
    with serving() as api:
        duty, receipt = PagerDuty(f"{api.url}/v2/enqueue", "key"), ""
        for alert in (FIRST, CORRECTED, ACKED, replace(ACKED, cause="other"), OVER):
            receipt = duty.deliver(alert, receipt)
        actions = [body["event_action"] for body in api.bodies]
        assert actions == ["trigger", "trigger", "acknowledge", "trigger", "resolve"]
        assert {body["dedup_key"] for body in api.bodies} == {"01A"}
        assert {body["routing_key"] for body in api.bodies} == {"key"}
        first, second = api.bodies[0]["payload"], api.bodies[1]["payload"]
        assert first["severity"] == "critical"
        assert first["source"] == "gpu-1"
        assert first["component"] == "llama"
        assert "rank 3 on gpu-1" in first["summary"]
        assert "rank 5 on gpu-1" in second["summary"]
        assert first["custom_details"]["incident"] == "01A"
        assert api.bodies[0]["links"][0]["href"].startswith("https://tower/")


def test_pagerduty_only_triggers_the_end_of_a_job():
    with serving() as api:
        PagerDuty(api.url, "key").deliver(the_end_of_a_job(), "")
        assert [body["event_action"] for body in api.bodies] == ["trigger"]
        assert api.bodies[0]["payload"]["severity"] == "warning"


def test_a_webhook_of_slack_gets_a_message_for_each_change_that_matters():
    with serving() as api:
        slack, receipt = SlackWebhook(f"{api.url}/services/x"), ""
        surer = replace(FIRST, facts=replace(FIRST.facts, confidence=0.5))
        for alert in (FIRST, surer, ACKED, CORRECTED, replace(CORRECTED, version=9), OVER):
            receipt = slack.deliver(alert, receipt)
        assert [("rank 5" in body["text"], "[REC" in body["text"]) for body in api.bodies] == [
            (False, False),
            (True, False),
            (False, True),
        ]


@pytest.mark.parametrize("alert", [FIRST, HOSTILE, OVER])
def test_a_message_of_slack_has_no_markup_no_mention_and_no_text_over_the_limit(alert: Alert):
    with serving() as api:
        SlackWebhook(api.url).deliver(alert, "")
        (body,) = api.bodies
    assert "<" not in body["text"]
    assert ">" not in body["text"]
    assert (body["mrkdwn"], body["link_names"], body["parse"]) == (False, False, "none")
    assert len(body["blocks"]) <= 4
    for block in body["blocks"]:
        if block["type"] == "section":
            assert block["text"]["type"] == "plain_text"
            assert 0 < len(block["text"]["text"]) <= MAX_TEXT
            assert "<" not in block["text"]["text"]
        else:
            assert [set(each) for each in block["elements"]] == [{"type", "text", "url"}]


def test_a_bot_of_slack_edits_one_message_and_replies_in_its_thread():
    with serving() as api:
        api.answer = lambda _: (200, b'{"ok":true,"channel":"C1","ts":"1.5"}')
        bot, receipt = SlackBot("xoxb-1", "#alerts", api.url), ""
        for alert in (FIRST, CORRECTED, replace(CORRECTED, version=9), OVER):
            receipt = bot.deliver(alert, receipt)
        post, update = "/chat.postMessage", "/chat.update"
        assert api.paths == [post, update, post, update, update, post]
        assert api.bodies[0]["channel"] == "#alerts"
        assert {body["channel"] for body in api.bodies[1:]} == {"C1"}
        assert all(api.bodies[n]["ts"] == "1.5" for n in (1, 3, 4))
        assert all(api.bodies[n]["thread_ts"] == "1.5" for n in (2, 5))
        assert {request.headers["Authorization"] for request in api.requests} == {"Bearer xoxb-1"}


@pytest.mark.parametrize("error", ["message_not_found", "cant_update_message"])
def test_a_message_that_can_no_longer_be_edited_is_posted_again(error: str):
    with serving() as api:
        api.answer = lambda request: (
            (200, json.dumps({"ok": False, "error": error}).encode())
            if request.body.get("ts") == "1.5"
            else (200, b'{"ok":true,"channel":"C1","ts":"2.5"}')
        )
        bot = SlackBot("xoxb-1", "C1", api.url)
        receipt = bot.deliver(CORRECTED, '{"said":"x","channel":"C1","ts":"1.5"}')
        assert api.paths == ["/chat.update", "/chat.postMessage"]
        bot.deliver(OVER, receipt)
        assert api.bodies[2]["ts"] == "2.5"


@pytest.mark.parametrize(
    ("error", "is_permanent", "retry_after_s"),
    [
        ("ratelimited", False, 30.0),
        ("internal_error", False, None),
        ("invalid_auth", True, None),
        ("channel_not_found", True, None),
        ("<script> " * 99, True, None),
    ],
)
def test_an_error_of_slack_with_status_200_is_an_error(error, is_permanent, retry_after_s):
    with serving() as api:
        api.answer = lambda _: (200, json.dumps({"ok": False, "error": error}).encode())
        with pytest.raises(DeliveryError) as caught:
            SlackBot("xoxb-1", "C1", api.url).deliver(FIRST, "")
        assert caught.value.is_permanent == is_permanent
        assert caught.value.retry_after_s == retry_after_s
        assert "<" not in str(caught.value)


def test_a_reply_of_slack_that_is_not_json_is_an_error():
    with serving() as api:
        api.answer = lambda _: (200, b"<html>")
        with pytest.raises(DeliveryError, match="not valid"):
            SlackBot("xoxb-1", "C1", api.url).deliver(FIRST, "")


def test_a_reply_in_a_thread_that_failed_is_sent_again():
    with serving() as api:
        good = (200, b'{"ok":true,"channel":"C1","ts":"1.5"}')
        api.answer = lambda _: good
        bot = SlackBot("xoxb-1", "C1", api.url)
        receipt = bot.deliver(FIRST, "")
        api.answer = lambda request: (500, b"") if "thread_ts" in request.body else good
        with pytest.raises(DeliveryError):
            bot.deliver(CORRECTED, receipt)
        api.answer = lambda _: good
        bot.deliver(CORRECTED, receipt)
        assert [body.get("thread_ts") for body in api.bodies if "ts" not in body] == [
            None,
            "1.5",
            "1.5",
        ]
