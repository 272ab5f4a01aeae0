"""The forms of the incident page: acknowledge, silence, and answer whether it was right.

They work without JavaScript: the answer leads back to the page. The body of every form is read
here, also that of the login, and must come from a page of the tower.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from watchtower.api.answers import find_known_id, known
from watchtower.api.browsers import redirect
from watchtower.api.intake import RefusedError, read_body
from watchtower.api.security import STALE_FORM
from watchtower.api.visitors import visitor_of
from watchtower.tower.acts import Answer, RequestRefusedError
from watchtower.tower.store_writer import StoreFailedError
from watchtower.tower.stored_incidents import AmbiguousIdError, read_incident
from watchtower.tower.tower import Tower
from watchtower.ui.pages import Pages, describe_error
from watchtower.ui.templates import quote_segment
from watchtower.views.people import Subject, subject_of
from watchtower.views.verdict import verdict_of
from watchtower.wire.verdict import Cause

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


ERRORS = (HTTPException, AmbiguousIdError, RequestRefusedError, StoreFailedError)

CAUSES = {cause.value: cause for cause in Cause}

Choice = TypeVar("Choice")
Fields = Mapping[str, str]
Act = Callable[[str, str, Fields], Awaitable[None]]
"""Gets the id of an incident, the name of the person and the fields of the form."""


class Actions:
    """The forms of one tower."""

    def __init__(self, tower: Tower, pages: Pages) -> None:
        self._tower, self._pages = tower, pages

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            self._route("ack", self._acknowledge),
            self._route("silence", self._silence),
            self._route("feedback", self._judge),
        ]

    def _route(self, name: str, act: Act) -> Route:
        async def answer(request: Request) -> Response:
            try:
                ident = await self._act(request, act)
            except ERRORS as error:
                return self._pages.show_error(request.scope, *describe_error(error))
            return redirect(request.scope, f"/incidents/{quote_segment(ident)}")

        return Route(f"/incidents/{{incident}}/{name}", answer, methods=["POST"])

    async def _act(self, request: Request, act: Act) -> str:
        """Do what a form asks for, and return the id of its incident."""
        fields = await read_form(request)
        ident = await find_known_id(self._tower, request.path_params["incident"])
        await act(ident, visitor_of(request.scope).name or _read_person(fields), fields)
        return ident

    async def _acknowledge(self, incident: str, by: str, fields: Fields) -> None:
        if not by and "by" in fields:
            raise RequestRefusedError("your name is missing: write it")
        note = fields.get("note", "")
        known(await self._tower.acks.ack(incident, by, note), incident)

    async def _judge(self, incident: str, by: str, fields: Fields) -> None:
        found = known(await read_incident(self._tower, incident), incident)
        rank, cause = fields.get("rank"), fields.get("cause")
        answer = Answer(
            right=_read_choice("right", fields.get("right", ""), {"true": True, "false": False}),
            rank=_read_number("rank", rank, "at most 9 digits") if rank else None,
            cause=_read_choice("cause", cause, CAUSES) if cause else None,
            by=by,
            note=fields.get("note", ""),
        )
        await self._tower.feedback.give(found, verdict_of(self._tower.moment(), found), answer)

    async def _silence(self, incident: str, by: str, fields: Fields) -> None:
        found = known(await read_incident(self._tower, incident), incident)
        seconds = float(_read_number("for_s", fields.get("for_s", ""), "seconds"))
        named = _find_subject(subject_of(found), fields.get("what", "job"))
        await self._tower.silences.add(named, seconds, fields.get("reason", ""), by)


def _find_subject(subject: Subject, what: str) -> Subject:
    """Return the job, the node or the user of an incident. Raises RequestRefusedError."""
    name = {"job": subject.job, "node": subject.node, "user": subject.user}.get(what, "")
    if not name:
        raise RequestRefusedError(f"the incident has no {what[:16]!r} that can be silenced")
    return Subject(**{what: name})


def _read_person(fields: Fields) -> str:
    """Return the name of the person; empty if it was left out. Raises RequestRefusedError."""
    name = fields.get("by", "")
    if name and not name.strip():
        raise RequestRefusedError("your name has only spaces: write it")
    return name


def _read_number(field: str, text: str, unit: str) -> int:
    """Return a number of at most nine digits. Raises RequestRefusedError."""
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise RequestRefusedError(f"`{field}` must be a whole number of {unit}")
    return int(text)


def _read_choice(field: str, text: str, choices: Mapping[str, Choice]) -> Choice:
    """Return what one of several texts means. Raises RequestRefusedError."""
    if text not in choices:
        raise RequestRefusedError(f"`{field}` must be one of {', '.join(choices)}")
    return choices[text]
