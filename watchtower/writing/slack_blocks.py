"""Slack's messages: escaping, the blocks that we send, and their limits.

Text of processes, nodes and schedulers is escaped, so that Slack finds no link, mention or command
in it. Links are only in buttons. https://docs.slack.dev/reference/block-kit
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from typing import Any

Block = dict[str, Any]

MAX_BLOCKS = 50
"""Blocks that Slack accepts in one message."""

MAX_TEXT, MAX_URL = 3000, 3000
"""Characters that Slack accepts in the text of a block and in the URL of a button."""

MAX_BUTTONS = 25
"""Buttons that Slack accepts in one block."""

MAX_BUTTON_TEXT = 75
"""Characters that Slack accepts on a button."""

EMPTY = "-"
"""Instead of an empty text, which Slack refuses together with the message."""

_HALF_ESCAPE = re.compile(r"&[a-z]{0,3}\Z")


def escape(text: str) -> str:
    """Return text in which Slack finds no link and no mention. This is enough in code."""
    return html.escape(text, quote=False)


def section(text: str) -> Block:
    """Return a block of plain text, in which nothing is markup."""
    return {"type": "section", "text": _plain(cut(escape(text)))}


def markup(text: str) -> Block:
    """Return a block of Slack's markup. `text` is escaped already."""
    return {"type": "section", "text": _markup(cut(text))}


def code(lines: Sequence[str]) -> Block:
    """Return lines as a code block. Whole lines are left out from the end if there are too many."""
    shown: list[str] = []
    room = MAX_TEXT - len("```\n\n```")
    for line in lines:
        escaped = escape(line.replace("`", ""))
        room -= len(escaped) + 1
        if room < 0:
            break
        shown.append(escaped)
    body = "\n".join(shown)
    return {"type": "section", "text": _markup(f"```\n{body}\n```")}


def context(text: str) -> Block:
    """Return a block of small plain text, for what is known besides the answer."""
    return {"type": "context", "elements": [_plain(cut(escape(text)))]}


def buttons(links: Mapping[str, str]) -> list[Block]:
    """Return a block with a button for each link; no block without links."""
    elements = [
        {"type": "button", "text": _plain(text[:MAX_BUTTON_TEXT]), "url": url}
        for text, url in links.items()
        if len(url) <= MAX_URL
    ]
    return [{"type": "actions", "elements": elements[:MAX_BUTTONS]}] if elements else []


def message(text: str, blocks: Sequence[Block]) -> Block:
    """Return a message. `text` is escaped; a notification and a reader without blocks show it.

    Slack reads no markup in it and opens no link of it.
    """
    quiet = dict.fromkeys(("mrkdwn", "link_names", "unfurl_links", "unfurl_media"), False)
    return {"text": text, "parse": "none", **quiet, "blocks": list(blocks[:MAX_BLOCKS])}


def cut(escaped: str) -> str:
    """Return escaped text of at most `MAX_TEXT` characters, without half of an escape."""
    if len(escaped) <= MAX_TEXT:
        return escaped
    return _HALF_ESCAPE.sub("", escaped[: MAX_TEXT - 1]) + "…"


def _plain(text: str) -> Block:
    return {"type": "plain_text", "text": text or EMPTY, "emoji": False}


def _markup(text: str) -> Block:
    return {"type": "mrkdwn", "text": text or EMPTY, "verbatim": True}
