"""Every destination: failures lose nothing, a restart repeats nothing, no text has a secret."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.alerts.notifying import LINKS, an_incident, closed, opened, updated
from tests.alerts.receivers import Api, serving
from watchtower.access.tower_connection import bounded_reply
from watchtower.alerts import destination as delivery
from watchtower.alerts.alert import make_alert
from watchtower.alerts.destination import DeliveryError, Destination
from watchtower.alerts.destinations import make_destinations
from watchtower.alerts.destinations.alertmanager import Alertmanager
from watchtower.alerts.destinations.pagerduty import PagerDuty
from watchtower.alerts.destinations.slack import SlackBot, SlackWebhook
from watchtower.alerts.destinations.webhook import Webhook
from watchtower.alerts.notifier import AlertNotifier
from watchtower.alerts.settings import NAMES, AlertSettings
from watchtower.service.settings import ConfigError, convert
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.clock import Clock

SECRET = "s3cr3t-s3cr3t"
GOOD = (200, b'{"ok":true,"channel":"C1","ts":"1.5"}')

MAKE = {
    "webhook": lambda url: Webhook(f"{url}/hook/{SECRET}"),
    "alertmanager": lambda url: Alertmanager(f"{url}/api/v2/alerts"),
    "slack webhook": lambda url: SlackWebhook(f"{url}/services/{SECRET}"),
    "slack bot": lambda url: SlackBot(SECRET, "C1", url),
    "pagerduty": lambda url: PagerDuty(f"{url}/v2/enqueue", SECRET),
}
"""Destinations that tell refusals apart. Apprise is in tests/system/test_apprise.py."""


@pytest.fixture
def api() -> Iterator[Api]:
    with serving() as one:
        one.answer = lambda _: GOOD
        yield one


@pytest.fixture(params=MAKE)
def destination(request: pytest.FixtureRequest, api: Api) -> Destination:
    return MAKE[request.param](api.url)


FIRST = make_alert(opened(an_incident()), LINKS, None)


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
def test_a_refusal_is_an_error_without_a_secret(api: Api, destination: Destination, status: int):
    api.answer = lambda request: (status, b'{"message": "bad key"}')
    api.headers = {"Retry-After": "7"}
    with pytest.raises(DeliveryError) as caught:
        destination.deliver(FIRST, "")
    assert caught.value.is_permanent == (status in (400, 401, 404))
    assert caught.value.retry_after_s == 7
    assert SECRET not in str(caught.value) + repr(caught.value)


def test_a_reply_that_drips_is_an_error(
    api: Api, destination: Destination, monkeypatch: pytest.MonkeyPatch
):
    quick = bounded_reply(0.3, delivery.MAX_REPLY)
    monkeypatch.setattr(delivery._Connection, "response_class", quick)
    api.drips = True
    with pytest.raises(DeliveryError):
        destination.deliver(FIRST, "")


def test_a_destination_that_is_down_is_an_error():
    with serving() as gone:
        url = gone.url
    for make in MAKE.values():
        with pytest.raises(DeliveryError) as caught:
            make(url).deliver(FIRST, "")
        assert not caught.value.is_permanent
        assert SECRET not in str(caught.value)


def test_no_secret_is_in_the_text_of_an_object(destination: Destination):
    assert SECRET not in f"{destination!r}{destination}"


@pytest.mark.parametrize("status", [404, 500])
def test_a_tower_that_restarts_loses_nothing_and_repeats_nothing(
    tmp_path: Path,
    api: Api,
    destination: Destination,
    status: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    caplog.set_level(logging.INFO)
    # Only a restart repeats an attempt, however long the store takes.
    monkeypatch.setattr("watchtower.alerts.outbox.FIRST_RETRY_S", 3600.0)
    quiet = _without_repeats(destination)
    incident = an_incident()

    async def run(*events: object) -> None:
        store = SqliteStore(tmp_path / "watchtower.db")
        startup = store.recall()
        notifier = AlertNotifier([quiet], store, Clock())
        notifier.recall(startup.alerts, startup.incidents)
        notifier.start(lambda _: False)
        try:
            for event in events:
                notifier.note(event)
            (sender,) = notifier.senders.values()
            while sender.outbox.count_waiting() and not sender.outbox.failures:
                await asyncio.sleep(0.01)
            await asyncio.wrap_future(store.save_incident(incident))
            await asyncio.wrap_future(store.probe())
        finally:
            await notifier.close()
            store.close()

    api.answer = lambda _: (status, b"no")
    asyncio.run(asyncio.wait_for(run(opened(incident)), 100))
    assert len(api.requests) == 1
    api.answer = lambda _: GOOD
    asyncio.run(asyncio.wait_for(run(), 100))
    assert len(api.requests) == 2  # not lost
    asyncio.run(asyncio.wait_for(run(updated(incident)), 30))
    assert len(api.requests) == 2  # not twice
    asyncio.run(asyncio.wait_for(run(updated(incident), closed(incident)), 30))
    assert len(api.requests) > 2
    assert SECRET not in caplog.text


def _without_repeats(destination: Destination) -> Destination:
    """An Alertmanager gets an open alert again after a restart: a repeat changes nothing there."""
    return replace(destination, repeat_s=None, end_delay_s=0.0)  # type: ignore[type-var]


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "secret"
    path.write_text(f"{text}\n")
    return str(path)


def test_each_destination_is_made_of_its_settings(tmp_path: Path):
    pytest.importorskip("apprise", reason="pip install '.[apprise]'")
    assert make_destinations(AlertSettings()) == ()
    hook, token = write(tmp_path, "https://chat.example/hook"), tmp_path / "token"
    token.write_text(SECRET)
    made = make_destinations(
        AlertSettings(
            webhook_url_file=hook,
            alertmanager_url="http://alertmanager:9093/",
            slack_token_file=str(token),
            slack_channel="C1",
            pagerduty_key_file=str(token),
            apprise_url_file=hook,
        )
    )
    assert tuple(each.name for each in made) == NAMES
    assert made[1] == Alertmanager("http://alertmanager:9093/api/v2/alerts")
    assert made[2] == SlackBot(SECRET, "C1")
    assert made[3] == PagerDuty("https://events.pagerduty.com/v2/enqueue", SECRET)
    (slack,) = make_destinations(AlertSettings(slack_webhook_file=hook))
    assert slack == SlackWebhook("https://chat.example/hook")


def test_settings_that_contradict_each_other_are_refused(tmp_path: Path):
    hook = write(tmp_path, f"https://chat.example/{SECRET}")
    for settings in (
        AlertSettings(slack_channel="C1"),
        AlertSettings(slack_token_file=hook),
        AlertSettings(slack_token_file=hook, slack_webhook_file=hook, slack_channel="C1"),
        AlertSettings(alertmanager_url="alertmanager:9093"),
        AlertSettings(alertmanager_url="https://ann:s3cr3t@alertmanager:9093"),
        AlertSettings(pagerduty_key_file=__file__, pagerduty_url="https://ann@pagerduty"),
        AlertSettings(pagerduty_key_file=hook, pagerduty_url="nowhere"),
        AlertSettings(slack_webhook_file=str(tmp_path / "missing")),
    ):
        with pytest.raises(ConfigError) as caught:
            make_destinations(settings)
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        AlertSettings(webhook_url_file=f"https://chat.example/{SECRET}"),
        AlertSettings(slack_webhook_file=f"chat.example/{SECRET}"),
        AlertSettings(slack_token_file=f"xoxb-{SECRET}", slack_channel="C1"),
        AlertSettings(pagerduty_key_file=SECRET),
    ],
)
def test_a_secret_in_the_place_of_a_file_is_not_quoted(settings: AlertSettings):
    with pytest.raises(ConfigError, match="_file` must be the path of a file") as caught:
        make_destinations(settings)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("key", ["webhook_url", "slack_token", "pagerduty_key"])
def test_a_secret_in_an_unknown_setting_is_not_quoted(key: str):
    with pytest.raises(ConfigError, match=f"unknown setting `{key}` in .alerts") as caught:
        convert("alerts", {key: SECRET}, AlertSettings)
    assert SECRET not in str(caught.value)


def test_a_password_in_an_address_comes_from_a_file_or_the_environment_only(
    tmp_path: Path, api: Api, monkeypatch: pytest.MonkeyPatch
):
    url = api.url.replace("://", f"://ann:{SECRET}@")
    with pytest.raises(ConfigError, match="`alertmanager_url_file`, or set WATCHTOWER_ALERT") as no:
        make_destinations(AlertSettings(alertmanager_url=url))
    assert SECRET not in str(no.value)
    file = tmp_path / "url"
    file.write_text(url)
    (from_file,) = make_destinations(AlertSettings(alertmanager_url_file=str(file)))
    monkeypatch.setenv("WATCHTOWER_ALERTMANAGER_URL", url)
    (from_environment,) = make_destinations(AlertSettings())
    for destination in (from_file, from_environment):
        destination.deliver(FIRST, "")
        assert SECRET not in repr(destination)
    for request in api.requests:
        scheme, word = request.headers["Authorization"].split()
        assert (scheme, base64.b64decode(word).decode()) == ("Basic", f"ann:{SECRET}")
    api.answer = lambda request: (400, b"no ann:" + SECRET.encode())
    with pytest.raises(DeliveryError) as refused:
        from_file.deliver(FIRST, "")
    assert SECRET not in str(refused.value)
