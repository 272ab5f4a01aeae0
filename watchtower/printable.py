"""Text that other people's programs chose, made fit for one line of a terminal or a log."""

from __future__ import annotations


def printable(text: str, limit: int) -> str:
    """Cut a text, and replace what would play tricks on a terminal by spaces.

    These are control and direction characters, line breaks, and halves of characters.
    """
    # As the heartbeat page does it: the same name from both must stay the same name.
    return "".join(char if char.isprintable() else " " for char in text[:limit]).strip()
