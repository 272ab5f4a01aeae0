"""Apprise: e-mail, Teams, Discord, ntfy and about a hundred other services, by one URL.

https://github.com/caronc/apprise is an optional extra. Its services are the code of many authors,
so each message is sent by a child process: it has a deadline, it has no other secret of the tower,
and what it writes reaches no log. The URL, which may be a secret, is on its standard input.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.util import find_spec
from urllib.parse import unquote

import msgspec

from watchtower.alerts.alert import Alert
from watchtower.alerts.destination import LEAST_SECRET, MAX_REASON, DeliveryError
from watchtower.alerts.destinations.slack import summarize
from watchtower.alerts.settings import AlertSettings, read_secret
from watchtower.service.interpreter import module_command, with_parent
from watchtower.service.settings import ConfigError
from watchtower.writing.printable import printable

DEADLINE_S = 25.0
"""Seconds for a message, with the start of the child, which takes about one."""

MAX_ANSWER = 4096
"""Characters of the child's answer that are read."""

EXTRA = "pip install 'gpu-watchtower[apprise]'"

UNKNOWN_REASON = "the service cannot be reached, or refused the message"

_SCHEME = re.compile(r"[a-z0-9]{2,32}://[!-~]+", re.IGNORECASE)

_PARTS = re.compile(r"[^A-Za-z0-9_.%-]+")
"""Between the parts of a URL, each of which may be the secret."""


class _Answer(msgspec.Struct, frozen=True):
    sent: bool = False
    error: str = ""


_ANSWERS = msgspec.json.Decoder(_Answer)


@dataclass(frozen=True, slots=True)
class Apprise:
    """Sends a message for the opening, each corrected verdict and the end."""

    url: str = field(repr=False)
    deadline_s: float = DEADLINE_S
    name: str = "apprise"
    repeat_s: float | None = None
    end_delay_s: float = 0.0
    joins_outages: bool = True

    def deliver(self, alert: Alert, receipt: str) -> str:
        """Send a message if the change matters. Most services have no key against duplicates."""
        said = summarize(alert)
        if said != receipt:
            self._send(make_message(alert))
        return said

    def _send(self, message: dict[str, str]) -> None:
        sent = json.dumps({"url": self.url, **message})
        kept = {name: text for name, text in os.environ.items() if "WATCHTOWER" not in name}
        try:
            done = subprocess.run(
                [*with_parent(), *module_command(__name__)],
                input=sent,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=self.deadline_s,
                check=False,
                text=True,
                env=kept,
            )
            answer = _ANSWERS.decode(done.stdout[:MAX_ANSWER])
        except subprocess.TimeoutExpired:
            raise DeliveryError(f"not sent within {self.deadline_s:g} s") from None
        except (OSError, msgspec.MsgspecError):
            raise DeliveryError("the process that sends it ended without an answer") from None
        if not answer.sent:
            raise DeliveryError(hide(answer.error, self.url) or UNKNOWN_REASON)


def make_apprise(settings: AlertSettings) -> Apprise | None:
    """Return the service of the URL if one is configured. Raises ConfigError."""
    url = read_secret("apprise_url_file", settings.apprise_url_file)
    if not url:
        return None
    if find_spec("apprise") is None:
        raise ConfigError(f"`apprise_url_file` needs a package that is not installed: {EXTRA}")
    if not _SCHEME.fullmatch(url):
        raise ConfigError("`apprise_url_file` does not contain a URL such as mailto://...")
    return Apprise(url)


def make_message(alert: Alert) -> dict[str, str]:
    """Return title, text and kind of the message, in which no name is a mention or a link."""
    title, *lines = (defuse(line) for line in alert.lines)
    lines += [f"{text}: {url}" for text, url in alert.facts.links.items()]
    return {
        "title": title,
        "body": "\n".join(lines) or title,
        "notify_type": "success" if alert.is_over else "failure",
    }


def defuse(text: str) -> str:
    """Return text in which `@name` mentions no person, and `[a](b)` is not a link."""
    return text.replace("@", "@\u200b").replace("](", "] (").replace("<", "‹").replace(">", "›")


def hide(text: str, url: str) -> str:
    """Return the reason of a failure for one line; empty if it has a part of the URL."""
    parts = _PARTS.split(url.partition("://")[2])
    words = {word for part in parts for word in (part, unquote(part)) if len(word) >= LEAST_SECRET}
    return "" if any(word in text for word in words) else printable(text, MAX_REASON)


class _LastWarning(logging.Handler):
    """Keeps the last warning that a service has logged: Apprise itself only answers yes or no."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


def _send_message() -> None:
    """The child: send the message of standard input, and write an answer to standard output."""
    from apprise import Apprise as Services  # noqa: PLC0415 - only the child imports it
    from apprise import AppriseAsset  # noqa: PLC0415

    last, sent = _LastWarning(logging.WARNING), json.load(sys.stdin)
    log = logging.getLogger("apprise")
    log.addHandler(last)
    log.propagate = False
    asset = AppriseAsset(app_id="watchtower", storage_mode="memory", http_redirects=False)
    services = Services(asset=asset)
    error = "Apprise knows no service with such a URL"
    if services.add(sent.pop("url")):
        is_sent = bool(services.notify(**sent, body_format="text"))
        error = "" if is_sent else last.text
    print(json.dumps({"sent": not error, "error": error[:MAX_REASON]}))


if __name__ == "__main__":
    _send_message()
