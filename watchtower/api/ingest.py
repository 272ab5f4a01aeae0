"""Routes for agents' messages. Size, time and cost of a message are limited before it is parsed.

These are Starlette routes with msgspec decoders. Most requests are of this kind, and FastAPI's body
parsing would cost 2.8 times as much.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from watchtower.api.allowances import (
    MAX_HELD_DUMPS_BYTES,
    MAX_HELD_REPORTS_BYTES,
    HeldBytes,
    WasteAllowance,
)
from watchtower.api.fair_turns import FairTurns
from watchtower.api.problems import problem
from watchtower.api.security import Refusals, client_of
from watchtower.core.fleet.fleet import FleetFullError
from watchtower.tower.clock import timeout
from watchtower.tower.job_labels import note_labels
from watchtower.tower.store_writer import StoreFailedError
from watchtower.tower.tower import Tower
from watchtower.wire import PROTOCOL_VERSION
from watchtower.wire.bounds import MAX_DUMPS_BYTES, MAX_REPORT_BYTES
from watchtower.wire.dumps import DumpBatch, DumpReceipt, SentBatch
from watchtower.wire.orders import ReportReply
from watchtower.wire.report import Report
from watchtower.wire.series import MAX_SERIES_BYTES, SeriesBatch

LIGHT_REPORTS_S = 0.1
"""The reports of an address that used less time of the loop than this never wait for their turns,
so that they go before dumps, too. The reports of 8 ranks use 0.01 to 0.02 s by the measure of
`FairUse`. When all reports waited, one reply of a hundred to 2,048 nodes came after 0.6 s instead
of 0.6 ms."""

BODY_S = 30.0
"""Seconds from the headers to the last byte of a body: 16 MB at 5 Mbit/s."""

MAX_LENGTH_DIGITS = 18
"""Digits of Content-Length. More digits are not a valid length, and int() of thousands of digits is
slow."""

RETRY_AFTER_S = 5
"""Seconds in the Retry-After header of a temporary refusal."""

_Message = TypeVar("_Message", Report, DumpBatch, SeriesBatch)


class _Envelope(msgspec.Struct):
    version: int


class RefusedError(Exception):
    """A body is refused, with this HTTP status and explanation."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Received(Generic[_Message]):
    """One message that has its turn of the event loop."""

    message: _Message
    body: bytes
    charge: Callable[[], None]
    """Records the time since the turn began. Call it before the next `await`."""


class Intake:
    """Receives and decodes bodies of one kind, within the limits of their address."""

    def __init__(
        self,
        refusals: Refusals,
        waste: WasteAllowance,
        held: HeldBytes,
        light_s: float = 0.0,
    ) -> None:
        """Messages of an address that used less than `light_s` seconds of the loop never wait."""
        self._refusals, self._waste, self._held = refusals, waste, held
        self._turns = FairTurns(light_s)

    @contextlib.asynccontextmanager
    async def receive(
        self, request: Request, decoder: msgspec.json.Decoder[_Message], limit: int
    ) -> AsyncIterator[Received[_Message]]:
        """Yield the message of a request. Its body counts as held until the block ends.

        Its turn of the event loop lasts until the next `await`. Raises RefusedError.
        """
        address, held = client_of(request.scope), [0]

        def hold(count: int) -> None:
            if not self._held.take(address, count):
                raise RefusedError(503, "the tower is receiving too many bodies: send it later")
            held[0] += count

        try:
            yield await self._decoded(request, decoder, limit, hold)
        except RefusedError as error:
            reason = {429: "too_much_waste", 503: "busy"}.get(error.status, "bad_message")
            self._refusals.add(reason, address, time.monotonic())
            raise
        finally:
            self._held.give_back(address, held[0])

    async def _decoded(
        self,
        request: Request,
        decoder: msgspec.json.Decoder[_Message],
        limit: int,
        hold: Callable[[int], None],
    ) -> Received[_Message]:
        address = client_of(request.scope)
        if self._waste.is_spent(address, time.monotonic()):
            raise RefusedError(
                429, "too many messages of this address were refused: see the log of its agent"
            )
        body = await read_body(request, limit, hold)
        await self._turns.wait(address, len(body), time.monotonic())
        began = time.monotonic()
        try:
            return Received(decode(body, decoder), body, partial(self._charge, address, began))
        except RefusedError:
            now = time.monotonic()
            self._waste.charge(address, now - began, now)
            raise

    def _charge(self, address: str, began: float) -> None:
        now = time.monotonic()
        self._turns.charge(address, now - began, now)


def ingest_routes(tower: Tower, refusals: Refusals) -> list[Route]:
    """Routes for agents."""
    reports, dumps = msgspec.json.Decoder(Report), msgspec.json.Decoder(DumpBatch)
    series = msgspec.json.Decoder(SeriesBatch)
    waste = WasteAllowance()
    report_intake = Intake(refusals, waste, HeldBytes(MAX_HELD_REPORTS_BYTES), LIGHT_REPORTS_S)
    dump_intake = Intake(refusals, waste, HeldBytes(MAX_HELD_DUMPS_BYTES))

    async def get_report(_: Request) -> ReportReply:
        """Confirm to `watchtower-agent --check` that the agent's token is valid."""
        return ReportReply(version=PROTOCOL_VERSION, tower_id=tower.id)

    async def post_report(request: Request) -> ReportReply:
        async with report_intake.receive(request, reports, MAX_REPORT_BYTES) as received:
            reply = tower.take_report(received.message)
            note_labels(tower, received.message)
            received.charge()
        return reply

    async def post_dumps(request: Request) -> DumpReceipt:
        async with dump_intake.receive(request, dumps, MAX_DUMPS_BYTES) as received:
            batch, body = received.message, received.body
            taking = tower.take_dumps(SentBatch(batch, _without_arguments(batch, body)))
            received.charge()
            del batch, body, received  # free their memory before waiting for the disk
            return await taking

    async def post_series(request: Request) -> DumpReceipt:
        async with dump_intake.receive(request, series, MAX_SERIES_BYTES) as received:
            taking = tower.traces.take(received.message, received.body)
            received.charge()
            del received
            return await taking

    return [
        Route("/ingest/v1/report", _answering(get_report), methods=["GET"]),
        Route("/ingest/v1/report", _answering(post_report), methods=["POST"]),
        Route("/ingest/v1/dumps", _answering(post_dumps), methods=["POST"]),
        Route("/ingest/v1/series", _answering(post_series), methods=["POST"]),
    ]


def _answering(
    handle: Callable[[Request], Awaitable[ReportReply | DumpReceipt]],
) -> Callable[[Request], Awaitable[Response]]:
    """Return a route that sends what `handle` returns as JSON, or why the message is refused."""

    async def respond(request: Request) -> Response:
        try:
            answer = await handle(request)
        except RefusedError as error:
            return _refuse(error)
        except (FleetFullError, StoreFailedError) as error:
            return problem(503, str(error))
        return Response(_encode(answer), media_type="application/json")

    return respond


def _without_arguments(batch: DumpBatch, body: bytes) -> bytes:
    """Return the body without arguments of child processes, which older agents send."""
    if any(child.command for dump in batch.ranks for child in dump.children):
        return _encode(batch)
    return body


def _refuse(error: RefusedError) -> Response:
    response = problem(error.status, error.detail)
    if error.status in (429, 503):
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
    return response


async def read_body(request: Request, limit: int, hold: Callable[[int], None]) -> bytes:
    """Return a body of at most `limit` bytes. Call `hold` with the size of each piece first.

    Raises RefusedError as soon as the body is too large or too late.
    """
    detail = f"the body is larger than {limit} bytes, the limit of this address"
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or len(length) > MAX_LENGTH_DIGITS or int(length) > limit:
        raise RefusedError(413, detail)
    if request.headers.get("content-encoding", "identity") != "identity":
        raise RefusedError(415, "the body is compressed: send it as plain JSON")
    body = bytearray()
    try:
        async with timeout(BODY_S):
            async for chunk in request.stream():
                if len(body) + len(chunk) > limit:
                    raise RefusedError(413, detail)
                hold(len(chunk))
                body += chunk
    except ClientDisconnect:
        raise RefusedError(400, "the connection ended before the end of the body") from None
    except asyncio.TimeoutError:
        raise RefusedError(408, f"the body did not arrive within {BODY_S:g} s") from None
    return bytes(body)


def decode(body: bytes, decoder: msgspec.json.Decoder[_Message]) -> _Message:
    """Return a message of this protocol version. Raises RefusedError, which names the invalid
    field."""
    try:
        try:
            message = decoder.decode(body)
            version = message.version
        except msgspec.ValidationError:
            # A message of another version may have another shape.
            version = _envelopes.decode(body).version
            if version == PROTOCOL_VERSION:
                raise
        if version != PROTOCOL_VERSION:
            raise RefusedError(
                400,
                f"the protocol `version` is {version}, and this tower needs {PROTOCOL_VERSION}: "
                "install the same release of watchtower on agent and tower",
            )
        return message
    except msgspec.ValidationError as error:
        raise RefusedError(422, f"the message is not valid: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedError(400, f"the body is not JSON: {error}") from None


_encode = msgspec.json.Encoder().encode
_envelopes = msgspec.json.Decoder(_Envelope)
