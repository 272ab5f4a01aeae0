"""Routes for agents' messages. `intake.py` limits size, time and cost before one is parsed.

These are Starlette routes with msgspec decoders. Most requests are of this kind, and FastAPI's body
parsing would cost 2.8 times as much. Most reports do not even use their route: a connection answers
them with `Reports.answer_at_once`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from watchtower.api.allowances import (
    MAX_HELD_DUMPS_BYTES,
    MAX_HELD_REPORTS_BYTES,
    HeldBytes,
    WasteAllowance,
)
from watchtower.api.intake import Intake, RefusedError, decode
from watchtower.api.problems import problem
from watchtower.api.security import AccessRules, client_of, is_usual_agent
from watchtower.fleet.fleet import MAX_NODES, FleetFullError
from watchtower.fleet.report_interval import ReportPaces, report_interval_s
from watchtower.tower.counters import Durations
from watchtower.tower.dispatcher import Agent
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

LONGEST_DUMP_WAIT_S = 2.0
"""Seconds that a batch of dumps may wait for its turn, as estimated when it arrives. A sender that
gives up after 5 s still gets its receipt. Later ones are refused with an appointment."""

REPORT_PATH, DUMPS_PATH, SERIES_PATH = PATHS = (
    "/ingest/v1/report",
    "/ingest/v1/dumps",
    "/ingest/v1/series",
)

REPLY_BOUNDS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Bounds of the counted durations of replies to agents."""

MAX_REPLIES_BYTES = 64 * 1024 * 1024
"""Bytes of stored replies to reports. Those to 16,384 nodes of 8 ranks have 20 MB."""

MAX_STORED_BATCHES = 8192
"""Batches of dumps that are known to be stored: two rounds of 4,096 nodes, about 2 MB."""

REPLY_BYTES = 1024
"""Bytes of memory of a stored reply, except its JSON."""


class _Sender(msgspec.Struct):
    """The parts of a report by which it is processed or not. Its ranks are not decoded."""

    version: int
    node: str
    agent_id: str
    stopping: bool = False


class _SentId(msgspec.Struct):
    """What names a batch of dumps. Its ranks are not decoded."""

    node: str = ""
    id: str = ""


class StoredBatches:
    """The batches of dumps that were stored last, so that a copy of one costs little.

    A sender that has given up sends its batch again. When thousands of nodes did so, decoding the
    copies took all time of the tower, and their receipts were late again.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[tuple[str, str, str], None] = {}
        """By address of the sender, node and id; the oldest first."""

    def find(self, address: str, body: bytes) -> str | None:
        """Return the id of the batch in a body if it was stored; None for another one."""
        try:
            sent = _sent_ids.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None  # it is refused later, with the reason
        return sent.id if (address, sent.node, sent.id) in self._known else None

    def note(self, address: str, node: str, ident: str) -> None:
        """Record a batch that was stored."""
        self._known[address, node, ident] = None
        if len(self._known) > self._most:
            del self._known[next(iter(self._known))]


class LastReplies:
    """The last replies to reports, as JSON. Most of them are equal to the one before."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._bytes = max_bytes, 0
        self._known: dict[Agent, tuple[ReportReply, bytes]] = {}
        """By agent, the most recent last."""

    def find(self, agent: Agent) -> tuple[ReportReply, bytes] | None:
        """Return the last reply to an agent without its orders, as a value and as JSON."""
        return self._known.get(agent)

    def encode(self, agent: Agent, reply: ReportReply) -> bytes:
        """Return a reply as JSON."""
        known = self._known.pop(agent, None)
        if known is not None and known[0] == reply:
            self._known[agent] = known
            return known[1]
        encoded = plain = _encode(reply)
        if reply.orders or reply.series:
            reply = replace(reply, orders=(), series=())
            plain = _encode(reply)
        self._known[agent] = reply, plain
        self._bytes += len(plain) - (len(known[1]) if known is not None else -REPLY_BYTES)
        while self._bytes > self._max_bytes:
            _, oldest = self._known.pop(next(iter(self._known)))
            self._bytes -= len(oldest) + REPLY_BYTES
        return encoded


class Reports:
    """Answers reports, also for connections: see `DirectAnswers`."""

    path = REPORT_PATH.encode()

    def __init__(self, tower: Tower, intake: Intake, rules: AccessRules, took: Durations) -> None:
        """Durations of direct replies are added to `took`."""
        self._tower, self._intake, self._took = tower, intake, took
        self._replies = LastReplies(MAX_REPLIES_BYTES)
        self._paces = ReportPaces(MAX_NODES)
        self.is_usual = partial(is_usual_agent, rules=rules)
        self.rights = partial(getattr, rules.visitors.book, "known")
        self.hold, self.release = intake.hold, intake.release

    def answer(self, client: str, body: bytes) -> bytes | None:
        """Return the reply to a usual request; None if its route must answer it.

        Raises what fails after the report was processed, so that it is not processed again.
        """
        began = time.monotonic()
        try:
            reply = self._intake.read_now(client, body, self.take)
        except FleetFullError:
            return None  # before anything was processed: its route explains it
        if reply is not None:
            self._took.observe(time.monotonic() - began)
        return reply

    async def post(self, request: Request) -> bytes:
        """Answer a request when it is the turn of its address."""
        async with self._intake.receive(request, self.take, MAX_REPORT_BYTES) as received:
            received.charge()
        return received.message

    def take(self, body: bytes) -> bytes:
        """Process a report and return the reply. Raises RefusedError or FleetFullError.

        A report that comes too early is not processed. It gets the last reply again, which is still
        right: the agent's deadlines, without orders.
        """
        sender = decode(body, _senders)
        agent = sender.node, sender.agent_id
        last = self._replies.find(agent)
        if last is not None and not self._may_report(agent, sender.stopping):
            self._tower.counters.early_reports += 1
            return last[1]
        report = decode(body, _reports)
        reply = self._tower.take_report(report)
        return self._replies.encode(agent, reply)

    def _may_report(self, agent: Agent, is_last: bool) -> bool:
        asked_s = report_interval_s(len(self._tower.fleet.nodes))
        return self._paces.may_report(agent, asked_s, time.monotonic(), is_last=is_last)


class Ingest:
    """The routes of agents, and what connections need to answer reports directly."""

    def __init__(self, tower: Tower, rules: AccessRules) -> None:
        refusals, waste = rules.refusals, WasteAllowance()
        reports = Intake(refusals, waste, HeldBytes(MAX_HELD_REPORTS_BYTES), LIGHT_REPORTS_S)
        self._tower = tower
        held = HeldBytes(MAX_HELD_DUMPS_BYTES)
        self._dumps = Intake(refusals, waste, held, longest_wait_s=LONGEST_DUMP_WAIT_S)
        self.durations = {path: Durations(REPLY_BOUNDS_S) for path in PATHS}
        """Durations of replies by path."""
        self._stored = StoredBatches(MAX_STORED_BATCHES)
        self.reports = Reports(tower, reports, rules, self.durations[REPORT_PATH])
        self.routes = [
            Route(REPORT_PATH, _answering(self._get_report), methods=["GET"]),
            Route(REPORT_PATH, _answering(self.reports.post), methods=["POST"]),
            Route(DUMPS_PATH, _answering(self._post_dumps), methods=["POST"]),
            Route(SERIES_PATH, _answering(self._post_series), methods=["POST"]),
        ]

    async def _get_report(self, _: Request) -> bytes:
        """Confirm to `watchtower-agent --check` that the agent's token is valid."""
        return _encode(ReportReply(version=PROTOCOL_VERSION))

    async def _post_dumps(self, request: Request) -> bytes:
        address = client_of(request.scope)

        def read(body: bytes) -> SentBatch | str:
            return self._stored.find(address, body) or _read_dumps(body)

        async with self._dumps.receive(request, read, MAX_DUMPS_BYTES) as received:
            if isinstance(sent := received.message, str):
                received.charge()
                return _encode(DumpReceipt(id=sent))
            node, ident = sent.batch.node, sent.batch.id
            taking = self._tower.take_dumps(sent)
            received.charge()
            del received, sent  # free its memory before waiting for the disk
            receipt = await taking
        self._stored.note(address, node, ident)
        return _encode(receipt)

    async def _post_series(self, request: Request) -> bytes:
        async with self._dumps.receive(request, _read_series, MAX_SERIES_BYTES) as received:
            taking = self._tower.take_series(*received.message)
            received.charge()
            del received
            return _encode(await taking)


def _answering(
    handle: Callable[[Request], Awaitable[bytes]],
) -> Callable[[Request], Awaitable[Response]]:
    """Return a route that sends the JSON that `handle` returns, or why the message is refused."""

    async def respond(request: Request) -> Response:
        try:
            answer = await handle(request)
        except RefusedError as error:
            return _refuse(error)
        except (FleetFullError, StoreFailedError) as error:
            return problem(503, str(error))
        return Response(answer, media_type="application/json")

    return respond


def _read_dumps(body: bytes) -> SentBatch:
    return SentBatch(decode(body, _dumps), body)


def _read_series(body: bytes) -> tuple[SeriesBatch, bytes]:
    return decode(body, _series), body


def _refuse(error: RefusedError) -> Response:
    response = problem(error.status, error.detail)
    if error.status in (429, 503):
        response.headers["Retry-After"] = str(math.ceil(error.retry_after_s))
    return response


_encode = msgspec.json.Encoder().encode
_senders = msgspec.json.Decoder(_Sender)
_reports, _dumps = msgspec.json.Decoder(Report), msgspec.json.Decoder(DumpBatch)
_sent_ids = msgspec.json.Decoder(_SentId)
_series = msgspec.json.Decoder(SeriesBatch)
