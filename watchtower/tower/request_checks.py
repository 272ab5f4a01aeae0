"""Checks the texts in requests for silences and acknowledgements."""

from __future__ import annotations

from watchtower.wire.bounds import check_text


class RequestRefusedError(Exception):
    """A value in a request is not valid. The message contains the reason and the allowed values."""


def check_texts(**texts: tuple[str, int]) -> None:
    """Check texts, given as field=(text, limit). Raises RequestRefusedError."""
    for field, (text, limit) in texts.items():
        try:
            check_text(field, text, limit)
            text.encode()
        except UnicodeEncodeError:  # JSON can contain it, and the store cannot
            raise RequestRefusedError(f"`{field}` contains half of a character") from None
        except ValueError as error:
            raise RequestRefusedError(str(error)) from None
