"""Example of a bot: it posts the text of each new incident to a webhook.

It needs Python and nothing else. It asks the tower's REST API, so that it can run anywhere:

    WATCHTOWER_URL=https://tower:19660 WATCHTOWER_TOKEN_FILE=reader-token \
        python3 incident_bot.py https://chat.example/hook

For Slack, change FORMAT to "slack-blocks" and post the answer of the tower as it is.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

TOWER = os.environ.get("WATCHTOWER_URL", "http://127.0.0.1:19660")
TOKEN_FILE = os.environ.get("WATCHTOWER_TOKEN_FILE", "")
EVERY_S = float(os.environ.get("EVERY_S", "10"))
FORMAT = "markdown"
TIMEOUT_S = 10
MAX_POSTED = 1000
"""Incidents that are remembered: more than one answer of the tower lists."""


def ask(path: str) -> bytes:
    """Return the answer of the tower."""
    headers = {}
    if TOKEN_FILE:
        token = Path(TOKEN_FILE).read_text("utf-8").split()[0]
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(f"{TOWER}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        return bytes(answer.read())


def list_incidents() -> list[dict[str, Any]]:
    """Return the open incidents, oldest first."""
    items = json.loads(ask("/api/v1/incidents?limit=100"))["items"]
    return [each for each in reversed(items) if each["closed_at"] is None]


def post(webhook: str, text: str) -> None:
    """Send a text to the webhook."""
    body = json.dumps({"text": text}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(webhook, body, headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S):
        pass


def post_new(webhook: str, posted: dict[str, None]) -> None:
    """Post the incidents that were not posted yet. `posted` are their ids, oldest first."""
    for incident in list_incidents():
        ident = incident["id"]
        if ident in posted:
            continue
        text = ask(f"/api/v1/incidents/{ident}?format={FORMAT}").decode("utf-8")
        post(webhook, text)
        posted[ident] = None  # only now: after an error it is tried again
        if len(posted) > MAX_POSTED:
            del posted[next(iter(posted))]


def main() -> None:
    """Ask for ever. The tower or the webhook may be away for a while."""
    webhook = sys.argv[1]
    posted: dict[str, None] = {}
    while True:
        try:
            post_new(webhook, posted)
        except (OSError, ValueError, urllib.error.HTTPError) as error:
            print(f"not posted: {error}", file=sys.stderr, flush=True)
        time.sleep(EVERY_S)


if __name__ == "__main__":
    main()
