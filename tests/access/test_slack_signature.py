from __future__ import annotations

import hashlib
import hmac

import pytest

from watchtower.access import slack_signature
from watchtower.access.slack_signature import MAX_AGE_S, SlackSignatures

# The example in Slack's documentation of signatures.
SECRET, STAMP = "8f742231b10e8888abcd99yyyzzz85a5", "1531420618"
SIGNATURE = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"
BODY = (
    b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow"
    b"&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner"
    b"&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands"
    b"%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
    b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
)
NOW = float(STAMP) + 2


def sign(stamp: str, body: bytes, secret: str = SECRET) -> str:
    text = b"v0:" + stamp.encode() + b":" + body
    return f"v0={hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()}"


def test_the_example_of_slack_is_accepted():
    assert SlackSignatures(SECRET).accept(STAMP, SIGNATURE, BODY, NOW) == ""


@pytest.mark.parametrize(
    ("stamp", "signature", "body", "now"),
    [
        (STAMP, SIGNATURE, BODY + b"x", NOW),
        (STAMP, "v0=" + "0" * 64, BODY, NOW),
        (STAMP, SIGNATURE.replace("v0=", "v1="), BODY, NOW),
        (STAMP, "", BODY, NOW),
        ("", SIGNATURE, BODY, NOW),
        ("²531420618", SIGNATURE, BODY, NOW),
        ("-1531420618", SIGNATURE, BODY, NOW),
        (str(int(STAMP) + 1), SIGNATURE, BODY, NOW),
        (STAMP, SIGNATURE, BODY, float(STAMP) + MAX_AGE_S + 1),
        (STAMP, SIGNATURE, BODY, float(STAMP) - MAX_AGE_S - 1),
        (STAMP, sign(STAMP, BODY, "another secret"), BODY, NOW),
    ],
)
def test_any_other_request_is_refused(stamp, signature, body, now):
    assert SlackSignatures(SECRET).accept(stamp, signature, body, now) != ""


def test_a_request_is_accepted_once():
    signatures = SlackSignatures(SECRET)
    assert signatures.accept(STAMP, SIGNATURE, BODY, NOW) == ""
    assert signatures.accept(STAMP, SIGNATURE, BODY, NOW + 1) == "this request was sent before"


def test_the_signatures_are_bounded_and_forgotten(monkeypatch):
    monkeypatch.setattr(slack_signature, "MAX_SEEN", 3)
    signatures = SlackSignatures(SECRET)

    def ask(number: int, at: float) -> str:
        stamp, body = str(int(at)), b"text=%d" % number
        return signatures.accept(stamp, sign(stamp, body), body, at)

    assert [ask(number, NOW) for number in range(3)] == ["", "", ""]
    assert ask(3, NOW) == "too many requests"
    assert ask(4, NOW + 2 * MAX_AGE_S + 1) == ""
