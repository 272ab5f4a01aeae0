"""Answers one request, with a traceback if the diagnosis fails."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from watchtower.diagnoser.messages import decode_case, write_failure, write_success

MAX_ERROR = 8192
"""Characters sent from the end of a traceback, which contains the error."""


def answer(frames: Sequence[bytes]) -> list[bytes]:
    """Return the frames of the answer to a request. Raises only MemoryError."""
    case = None
    try:
        case = decode_case(frames)
        return write_success(case)
    except Exception:
        return write_failure(case, traceback.format_exc()[-MAX_ERROR:])
