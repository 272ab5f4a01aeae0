"""Receives the bodies of agents' messages, within the limits of size, time and cost per address."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from watchtower.api.allowances import HeldBytes, WasteAllowance
from watchtower.api.connections import MAX_LENGTH_DIGITS
from watchtower.api.fair_turns import FairTurns
from watchtower.api.security import Refusals, client_of
from watchtower.service.calls import timeout
from watchtower.wire import PROTOCOL_VERSION

MAX_DIRECT_BYTES = 64 * 1024
"""Bytes of a report that a connection may answer directly: a hundred ranks. A longer one takes so
long that it should have a turn of the loop."""

BODY_S = 30.0
"""Seconds from the headers to the last byte of a body: 16 MB at 5 Mbit/s."""

_Result = TypeVar("_Result")


class Message(Protocol):
    """A message of agents, or a part of it."""

    @property
    def version(self) -> int:
        """Version of the protocol."""


_Message = TypeVar("_Message", bound=Message)


class _Envelope(msgspec.Struct):
    version: int


class _Named(msgspec.Struct):
    node: str = ""


RETRY_AFTER_S = 5.0
"""Seconds until a temporary refusal may be over, if that is not known."""


class RefusedError(Exception):
    """A body is refused, with this HTTP status and explanation."""

    def __init__(self, status: int, detail: str, retry_after_s: float = RETRY_AFTER_S) -> None:
        """`retry_after_s`: when to send it again, if the refusal is temporary."""
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Received(Generic[_Result]):
    """One message that has its turn of the event loop."""

    message: _Result
    """What the function returned that has read the body."""
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
        longest_wait_s: float = math.inf,
    ) -> None:
        """Messages of an address that used less than `light_s` seconds of the loop never wait.

        With `longest_wait_s`, a message that would wait longer is refused.
        """
        self._longest_wait_s = longest_wait_s
        self._refusals, self._waste, self._held = refusals, waste, held
        self._turns = FairTurns(light_s)

    def hold(self, address: str, size: int) -> bool:
        """Count a body that an address sends. Return False if the route must receive it."""
        is_refused = self._is_refused(address, size, time.monotonic())
        return not is_refused and self._held.take(address, size)

    def _is_refused(self, address: str, size: int, now: float) -> bool:
        return size > MAX_DIRECT_BYTES or self._waste.is_spent(address, now)

    def release(self, address: str, size: int) -> None:
        """Subtract a body that `hold` counted."""
        self._held.give_back(address, size)

    def read_now(
        self, address: str, body: bytes, read: Callable[[bytes], _Result]
    ) -> _Result | None:
        """Return what `read` returns for a body. None if it must wait for its turn, or is refused:
        the route finds out the same, and explains it. Raises all other errors of `read`."""
        began = time.monotonic()
        if self._is_refused(address, len(body), began) or not self._turns.may_begin(
            address, len(body), began
        ):
            return None
        try:
            return read(body)
        except RefusedError:
            return None
        finally:
            self._charge(address, began)

    @contextlib.asynccontextmanager
    async def receive(
        self, request: Request, read: Callable[[bytes], _Result], limit: int
    ) -> AsyncIterator[Received[_Result]]:
        """Yield what `read` returns for the body of a request, which counts as held until the block
        ends.

        Its turn of the event loop lasts until the next `await`. Raises RefusedError.
        """
        address, held = client_of(request.scope), [0]

        def hold(count: int) -> None:
            if not self._held.take(address, count):
                raise RefusedError(503, "the tower is receiving too many bodies: send it later")
            held[0] += count

        try:
            yield await self._received(request, read, limit, hold)
        except RefusedError as error:
            reason = {429: "too_much_waste", 503: "busy"}.get(error.status, "bad_message")
            self._refusals.add(reason, address, time.monotonic())
            raise
        finally:
            self._held.give_back(address, held[0])

    async def _received(
        self,
        request: Request,
        read: Callable[[bytes], _Result],
        limit: int,
        hold: Callable[[int], None],
    ) -> Received[_Result]:
        address = client_of(request.scope)
        if self._waste.is_spent(address, time.monotonic()):
            raise RefusedError(
                429, "too many messages of this address were refused: see the log of its agent"
            )
        body = await read_body(request, limit, hold)
        await self._wait_for_turn(address, body)
        began = time.monotonic()
        try:
            return Received(read(body), partial(self._charge, address, began))
        except RefusedError:
            now = time.monotonic()
            self._waste.charge(address, now - began, now)
            raise

    async def _wait_for_turn(self, address: str, body: bytes) -> None:
        """Wait. Raises RefusedError if that would take too long: the sender would give up."""
        now, longest_s = time.monotonic(), self._longest_wait_s
        node = _find_node(body) if longest_s < math.inf else ""
        again_s = self._turns.find_appointment(address, len(body), now, node, longest_s)
        if again_s is not None:
            raise RefusedError(503, "too many messages wait: send it later", again_s)
        await self._turns.wait(address, len(body), now, node)

    def _charge(self, address: str, began: float) -> None:
        now = time.monotonic()
        self._turns.charge(address, now - began, now)


def _find_node(body: bytes) -> str:
    """Return the node that a message names. Its other fields are not decoded."""
    try:
        return _nodes.decode(body).node
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""  # it is refused later, with the reason


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


_nodes = msgspec.json.Decoder(_Named)
_envelopes = msgspec.json.Decoder(_Envelope)
