"""A verdict as a message of Slack's Block Kit: the same lines as the other formats for chats."""

from __future__ import annotations

from collections.abc import Mapping

from watchtower.wire.verdict import Verdict
from watchtower.writing import slack_blocks
from watchtower.writing.verdict_text import (
    FENCES,
    MAX_LINES,
    About,
    escape_slack,
    outline_verdict,
)


def make_blocks(
    verdict: Verdict, about: About, links: Mapping[str, str]
) -> list[slack_blocks.Block]:
    """Return the blocks of a verdict. `links` are the addresses of its buttons, by their text."""
    outline = outline_verdict(verdict, about, MAX_LINES - 2 - FENCES)
    origin = [line for line in outline.about if line != about.link]
    prose = "\n".join(map(escape_slack, outline.prose))
    return [
        slack_blocks.markup(f"*{escape_slack(outline.headline)}*"),
        slack_blocks.markup(escape_slack(outline.summary)),
        *([slack_blocks.code(outline.block)] if outline.block else []),
        *([slack_blocks.markup(prose)] if prose else []),
        *map(slack_blocks.context, origin),
        *slack_blocks.buttons(links),
    ]


def make_message(verdict: Verdict, about: About, links: Mapping[str, str]) -> slack_blocks.Block:
    """Return the message: its blocks, and a text for notifications."""
    outline = outline_verdict(verdict, None, 0)
    text = slack_blocks.escape(f"{outline.headline}\n{outline.summary}")
    return slack_blocks.message(text, make_blocks(verdict, about, links))
