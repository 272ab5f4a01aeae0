"""Settings of direct destinations: the table `[alerts]`. Without settings nothing is sent.

An address with a secret in it is in a file or in the environment, never in the configuration.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta

from watchtower.service.settings import ConfigError
from watchtower.wire.verdict import Cause

NAMES = ("webhook", "alertmanager", "slack", "pagerduty", "apprise")
"""The destinations, by their names in logs, metrics and commands."""

MAX_SECRET = 4096
"""Bytes of a file with a secret."""

PATH_STARTS = ("/", "./", "../")
"""Starts of a path. Anything else that is not a file may be the secret itself, so no error quotes
it."""


Causes = Annotated[
    tuple[Cause, ...],
    Meta(description='a list of causes (docs/verdicts.md), such as ["straggler"]'),
]

SlackUser = Annotated[str, Meta(pattern=r"^[UW][A-Z0-9]{2,30}\Z")]
SlackUsers = Annotated[
    tuple[SlackUser, ...], Meta(description='a list of ids of Slack, such as ["U0123ABCD"]')
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertSettings:
    """Which incidents have alerts, and where the tower itself sends them, in addition to
    Prometheus."""

    shadow: bool = False
    """List and count incidents, and send no alert: neither to the destinations of this table nor by
    the rules of Prometheus."""
    shadow_causes: Causes = ()
    """The same for incidents with these causes only."""

    runbooks_url: str = ""
    """Address of the published folder docs/runbooks, for links in the alerts of this table."""
    grafana_url: str = ""
    """Address of a Grafana with the dashboards of watchtower, for links in these alerts."""

    webhook_url_file: str = ""
    """File with the URL of a webhook. Without it: the variable WATCHTOWER_WEBHOOK_URL."""
    alertmanager_url: str = ""
    """Address of an Alertmanager, such as http://alertmanager:9093."""
    alertmanager_url_file: str = ""
    """File with this address, if it contains a password."""
    slack_webhook_file: str = ""
    """File with the URL of an incoming webhook of Slack."""
    slack_token_file: str = ""
    """File with the token of a Slack bot."""
    slack_channel: str = ""
    """Id of the channel for the messages of the bot."""
    slack_signing_secret_file: str = ""
    """File with the signing secret of a Slack app whose slash command asks the tower."""
    slack_ack_users: SlackUsers = ()
    """Slack's ids of the people who may acknowledge incidents with the slash command."""
    pagerduty_key_file: str = ""
    """File with the integration key (routing key) of a PagerDuty service."""
    pagerduty_url: str = "https://events.pagerduty.com/v2/enqueue"
    apprise_url_file: str = ""
    """File with the URL of a service of Apprise: e-mail, Teams, Discord, ntfy and others."""
    drill: bool = False
    """Mark every alert as a drill. `watchtower drill --notify` sets it for the drill's tower."""


def read_secret(key: str, path: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the secret of a setting `..._file`; empty if it is not configured.

    Without a file, the secret is the variable WATCHTOWER_... without `_FILE`. Raises ConfigError.
    """
    if not path:
        return environment.get(_variable(key), "").strip()
    if not path.startswith(PATH_STARTS) and not Path(path).exists():
        raise ConfigError(f"`{key}` must be the path of a file that contains the secret")
    try:
        text = Path(path).read_bytes()[: MAX_SECRET + 1].decode("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"`{key}`: cannot read {path}: {reason}") from None
    if not text or len(text) > MAX_SECRET or "\n" in text:
        raise ConfigError(f"`{key}`: {path} must contain one line")
    return text


def _variable(key: str) -> str:
    return f"WATCHTOWER_{key.removesuffix('_file').upper()}"


ALERT_SECRETS = tuple(
    _variable(each.name) for each in fields(AlertSettings) if each.name.endswith("_file")
)
"""Environment variables with secrets of destinations."""


def check_url(key: str, url: str) -> str:
    """Return the URL of a destination. Raises ConfigError, whose text does not contain the URL.

    Only a URL from a file or the environment may have a password: `key` ends in `_file`.
    """
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if is_valid and parts.username is not None and not key.endswith("_file"):
        hint = ""
        if f"{key}_file" in AlertSettings.__slots__:
            hint = (
                f": write the URL to a file and set `{key}_file`, or set WATCHTOWER_{key.upper()}"
            )
        raise ConfigError(f"`{key}` must not contain a user or a password{hint}")
    if not is_valid or any(not "!" <= character <= "~" for character in url):
        raise ConfigError(f"`{key}` does not contain a URL such as https://chat.example/hook")
    return url
