"""Reads the body of a form of the pages, and checks that it comes from a page of the tower."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request

from watchtower.api.intake import RefusedError, read_body
from watchtower.api.security import STALE_FORM
from watchtower.api.visitors import visitor_of

MAX_FORM_BYTES = 16 * 1024
"""Bytes of the body of a form. The longest has a note of 1024 characters, encoded as 12 kB."""

MAX_FIELDS = 32
"""Fields of one form. The largest has a fifth of that."""

FORM_TOKEN = "form_token"
"""Name of the hidden field with the form token."""

_KIND = "application/x-www-form-urlencoded"


async def read_form(request: Request, *, has_token: bool = True) -> Mapping[str, str]:
    """Return the fields of a form. The last value of a field counts.

    `has_token`: the form must contain the form token of the visitor. Raises HTTPException.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _KIND:
        raise HTTPException(415, f"the body must be a form: `Content-Type: {_KIND}`")
    try:
        body = await read_body(request, MAX_FORM_BYTES, hold=lambda _: None)
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS
        )
    except RefusedError as error:
        raise HTTPException(error.status, error.detail) from None
    except ValueError:
        raise HTTPException(400, "the body is not a valid form in UTF-8") from None
    fields = dict(pairs)
    token = fields.pop(FORM_TOKEN, "")
    if has_token and not visitor_of(request.scope).has_form_token(token.encode()):
        raise HTTPException(403, STALE_FORM)
    return fields
