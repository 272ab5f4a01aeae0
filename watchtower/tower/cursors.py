"""Cursors of lists of incidents: where the next page begins.

A cursor is the position of the last incident of a page. New incidents come before it, so that they
neither repeat nor hide an incident of a later page.
"""

from __future__ import annotations

import math
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode

from watchtower.incidents.incident_filter import Position
from watchtower.tower.request_checks import RequestRefusedError

MAX_CURSOR = 128
"""Characters of a cursor. Ours have about 60."""

_CURSOR = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_CURSOR}}}")
_POSITION = re.compile(r"(0x[01]\.[0-9a-f]{1,13}p[+-][0-9]{1,4}) ([0-9A-Za-z-]{1,64})")


def write_cursor(position: Position) -> str:
    """Return a position as text without a meaning to the reader."""
    text = f"{position.opened_at.hex()} {position.id}"
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(text: str) -> Position:
    """Return the position of a cursor. Raises RequestRefusedError."""
    try:
        if not _CURSOR.fullmatch(text):
            raise ValueError
        raw = urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode("ascii")
        found = _POSITION.fullmatch(raw)
        opened_at = float.fromhex(found[1]) if found else math.nan
        if not found or not math.isfinite(opened_at):
            raise ValueError
    except (ValueError, OverflowError):
        raise RequestRefusedError(
            "`cursor` is not valid: use `next_cursor` of the last answer, or leave it out"
        ) from None
    return Position(opened_at=opened_at, id=found[2])
