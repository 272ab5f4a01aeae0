"""Checks the texts of requests by people: silences and acknowledgements."""

from __future__ import annotations

from watchtower.wire.bounds import check_text


class RequestRefusedError(Exception):
    """A value of a request that is not accepted; the message says why and what is allowed."""


def check_texts(**texts: tuple[str, int]) -> None:
    """Check texts by the name of their field, each with its limit. Raises RequestRefusedError."""
    for field, (text, limit) in texts.items():
        try:
            check_text(field, text, limit)
        except ValueError as error:
            raise RequestRefusedError(str(error)) from None
