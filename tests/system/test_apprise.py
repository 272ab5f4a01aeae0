"""Apprise: a real child sends to a real webhook, within its deadline, and no secret is shown."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.alerts.notifying import LINKS, an_incident, closed, opened
from tests.alerts.receivers import Receiver, receiving
from watchtower.alerts.alert import make_alert
from watchtower.alerts.destination import DeliveryError
from watchtower.alerts.destinations import apprise
from watchtower.alerts.destinations.apprise import Apprise, defuse, hide, make_apprise
from watchtower.alerts.settings import AlertSettings
from watchtower.service.settings import ConfigError

pytest.importorskip("apprise", reason="pip install '.[apprise]'")

SECRET = "s3cr3t-s3cr3t"
INCIDENT = an_incident()
FIRST = make_alert(opened(INCIDENT), LINKS, None)
LAST = make_alert(closed(INCIDENT), LINKS, FIRST)


def of(receiver: Receiver, **more: float) -> Apprise:
    return Apprise(receiver.url.replace("http://", "json://") + f"/hook/{SECRET}", **more)


def test_the_opening_and_the_end_are_one_message_each() -> None:
    with receiving() as receiver:
        service = of(receiver)
        receipt = service.deliver(FIRST, "")
        assert service.deliver(FIRST, receipt) == receipt
        service.deliver(LAST, receipt)
    first, last = receiver.accepted
    assert (first["title"], first["type"]) == (FIRST.lines[0], "failure")
    assert all(url in first["message"] for url in FIRST.facts.links.values())
    assert (last["title"], last["type"]) == (LAST.lines[0], "success")


def test_a_refusal_is_an_error_that_is_retried_and_has_no_secret() -> None:
    with receiving() as receiver:
        receiver.status = 403
        with pytest.raises(DeliveryError) as caught:
            of(receiver).deliver(FIRST, "")
    assert not caught.value.is_permanent
    assert "403" in str(caught.value)
    assert SECRET not in f"{caught.value}{caught.value!r}{of(receiver)!r}"


def test_a_service_that_does_not_answer_is_given_up_at_the_deadline() -> None:
    with receiving() as receiver:
        receiver.delay_s = 20.0
        began = time.monotonic()
        with pytest.raises(DeliveryError, match=r"not sent within 1\.5 s"):
            of(receiver, deadline_s=1.5).deliver(FIRST, "")
        assert time.monotonic() - began < 10


def test_a_service_that_apprise_does_not_know_is_an_error() -> None:
    with pytest.raises(DeliveryError, match="knows no service with such a URL"):
        Apprise(f"nothing://{SECRET}").deliver(FIRST, "")


def test_the_child_has_no_other_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHTOWER_SLACK_TOKEN", SECRET)
    code = "import os, json; print(json.dumps({'sent': 0, 'error': str(sorted(os.environ))}))"
    monkeypatch.setattr(apprise, "module_command", lambda _: ("python3", "-c", code))
    with pytest.raises(DeliveryError) as caught:
        Apprise("json://127.0.0.1:1").deliver(FIRST, "")
    assert "WATCHTOWER" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "text"),
    [("not a url", "does not contain a URL"), ("json://a b", "does not contain"), ("", "one line")],
)
def test_a_wrong_url_is_refused_and_not_quoted(tmp_path: Path, content: str, text: str) -> None:
    path = tmp_path / "url"
    path.write_text(content)
    with pytest.raises(ConfigError, match=text) as caught:
        make_apprise(AlertSettings(apprise_url_file=str(path)))
    assert not content or content not in str(caught.value)


def test_without_the_package_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "url").write_text("json://localhost")
    monkeypatch.setattr(apprise, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"gpu-watchtower\[apprise\]"):
        make_apprise(AlertSettings(apprise_url_file=str(tmp_path / "url")))


def test_a_name_is_neither_a_mention_nor_a_link() -> None:
    assert defuse("@everyone [a](http://b) <@1>") == "@\u200beveryone [a] (http://b) ‹@\u200b1›"


@pytest.mark.parametrize("text", ["cannot reach hunter2hunter2", "a hunter%402x b", "hunter@2x!"])
def test_a_reason_with_a_part_of_the_url_is_not_shown(text: str) -> None:
    url = "mailto://me:hunter2hunter2@mail.example?key=hunter%402x"
    assert hide(text, url) == ""
    assert hide("error=403", url) == "error=403"
