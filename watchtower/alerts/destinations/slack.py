"""Slack: an incoming webhook, or a bot with one message for each incident.

All text is escaped and in blocks of plain text, so that no name can contain markup or a mention.
Links are buttons. https://docs.slack.dev/messaging/formatting-message-text
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field

import msgspec

from watchtower.alerts.alert import Alert
from watchtower.alerts.destination import DeliveryError, Destination, post
from watchtower.alerts.settings import AlertSettings, check_url, read_secret
from watchtower.service.settings import ConfigError
from watchtower.writing import slack_blocks

API = "https://slack.com/api"

TEMPORARY = frozenset(
    {"ratelimited", "rate_limited", "internal_error", "fatal_error", "service_unavailable"}
    | {"request_timeout", "team_added_to_org"}
)
"""Errors after which the same request may succeed."""

GONE = frozenset({"message_not_found", "cant_update_message", "edit_window_closed"})
"""Errors about a message that a person has deleted, or that can no longer be edited."""

RATE_LIMITED_S = 30.0
"""Seconds to wait after an error about the rate that names no time."""


class _MessageGoneError(DeliveryError):
    """The message of the bot was deleted, or it is too old to be edited."""


class _Receipt(msgspec.Struct, frozen=True):
    """The message that was sent last. `said` identifies what a reader must know of it."""

    said: str = ""
    channel: str = ""
    ts: str = ""


class _Reply(msgspec.Struct, frozen=True):
    ok: bool = False
    error: str = ""
    channel: str = ""
    ts: str = ""


_RECEIPTS = msgspec.json.Decoder(_Receipt)
_REPLIES = msgspec.json.Decoder(_Reply)


@dataclass(frozen=True, slots=True)
class SlackWebhook:
    """Sends a message for the opening, each corrected verdict and the end."""

    url: str = field(repr=False)
    name: str = "slack"
    repeat_s: float | None = None
    end_delay_s: float = 0.0
    joins_outages: bool = True

    def deliver(self, alert: Alert, receipt: str) -> str:
        """Send a message if the change matters. Slack has no key against duplicates."""
        said = summarize(alert)
        if said != _read(receipt).said:
            post(self.url, json.dumps(make_message(alert)).encode(), {})
        return _write(_Receipt(said))


@dataclass(frozen=True, slots=True)
class SlackBot:
    """Sends one message for an incident, edits it in place, and adds changes as replies to it."""

    token: str = field(repr=False)
    channel: str
    api: str = API
    name: str = "slack"
    repeat_s: float | None = None
    end_delay_s: float = 0.0
    joins_outages: bool = True

    def deliver(self, alert: Alert, receipt: str) -> str:
        """Bring the message to the state of the alert."""
        before, said, message = _read(receipt), summarize(alert), make_message(alert)
        if not before.ts or not self._edit(before, message):
            sent = self._call("chat.postMessage", message | {"channel": self.channel})
            return _write(_Receipt(said, sent.channel or self.channel, sent.ts))
        if said != before.said:
            reply = {"channel": before.channel, "thread_ts": before.ts, **make_reply(alert)}
            self._call("chat.postMessage", reply)
        return _write(_Receipt(said, before.channel, before.ts))

    def _edit(self, before: _Receipt, message: dict[str, object]) -> bool:
        """Edit the message. Return whether it exists and can be edited."""
        try:
            self._call("chat.update", message | {"channel": before.channel, "ts": before.ts})
        except _MessageGoneError:
            return False
        return True

    def _call(self, method: str, body: dict[str, object]) -> _Reply:
        headers = {"Authorization": f"Bearer {self.token}"}
        answer = post(f"{self.api}/{method}", json.dumps(body).encode(), headers)
        try:
            reply = _REPLIES.decode(answer)
        except msgspec.MsgspecError:
            raise DeliveryError(f"Slack's reply to {method} is not valid") from None
        if reply.ok:
            return reply
        is_word = reply.error.replace("_", "").isalpha() and len(reply.error) <= 64
        error = reply.error if is_word else "an unknown error"
        kind = _MessageGoneError if error in GONE else DeliveryError
        raise kind(
            f"Slack refused {method}: {error}",
            is_permanent=error not in TEMPORARY,
            retry_after_s=RATE_LIMITED_S if error.startswith("rate") else None,
        )


def make_slack(settings: AlertSettings) -> Destination | None:
    """Return Slack if it is configured. Raises ConfigError."""
    url = read_secret("slack_webhook_file", settings.slack_webhook_file)
    token = read_secret("slack_token_file", settings.slack_token_file)
    if url and token:
        raise ConfigError("`slack_webhook_file` and `slack_token_file` exclude each other")
    if bool(token) != bool(settings.slack_channel):
        raise ConfigError("`slack_token_file` and `slack_channel` belong together: give both")
    if token:
        return SlackBot(token, settings.slack_channel)
    return SlackWebhook(check_url("slack_webhook_file", url)) if url else None


def summarize(alert: Alert) -> str:
    """Return a short text that changes with the verdict and with the end."""
    facts = alert.facts
    parts = [alert.is_over, facts.rank, facts.node, alert.cause, facts.domain]
    if alert.members:
        parts.append(len(alert.members))
    return hashlib.sha256(repr(tuple(parts)).encode("utf-8", "replace")).hexdigest()[:16]


def make_message(alert: Alert) -> dict[str, object]:
    """Return the message: a block for each line, and a button for each link."""
    blocks = [slack_blocks.section(line) for line in alert.lines]
    text = slack_blocks.escape("\n".join(alert.lines))
    return slack_blocks.message(text, [*blocks, *slack_blocks.buttons(alert.facts.links)])


def make_reply(alert: Alert) -> dict[str, object]:
    """Return the short message for the thread."""
    line = alert.lines[0]
    return slack_blocks.message(slack_blocks.escape(line), [slack_blocks.section(line)])


def _write(receipt: _Receipt) -> str:
    return msgspec.json.encode(receipt).decode()


def _read(receipt: str) -> _Receipt:
    try:
        return _RECEIPTS.decode(receipt) if receipt else _Receipt()
    except msgspec.MsgspecError:
        return _Receipt()
