"""Answers one request, with a traceback if the diagnosis fails."""

from __future__ import annotations

from collections.abc import Sequence

from watchtower.diagnoser.messages import (
    decode_case,
    write_failure,
    write_success,
    write_traceback,
)


def answer(frames: Sequence[bytes]) -> list[bytes]:
    """Return the frames of the answer to a request. Raises only MemoryError."""
    case = None
    try:
        case = decode_case(frames)
        return write_success(case)
    except Exception:
        return write_failure(case, write_traceback())
