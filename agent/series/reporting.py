"""Sends series when the tower orders them, with the suspects' last lines if that is allowed."""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import msgspec

from agent.children import ChildRunner, Program
from agent.clocks import Moment, read_moment
from agent.collectors.collector import Measured
from agent.delivery.dump_queue import SERIES_PATH, WaitingDump
from agent.procfs import Proc
from agent.ranks.found_rank import FoundRank, JobKey
from agent.series.history import History
from agent.series.output_child import BOTH, STREAMS
from watchtower.service.sharing import TokenBuckets
from watchtower.wire import PROTOCOL_VERSION
from watchtower.wire.bounds import MAX_AGE_S
from watchtower.wire.report import RankVitals
from watchtower.wire.series import (
    MAX_SERIES,
    MAX_SERIES_BYTES,
    MAX_TRACED,
    RankOutput,
    SeriesBatch,
    SeriesOrder,
)

log = logging.getLogger(__name__)

OUTPUT_DEADLINE_S = 3.0
"""Seconds for the files of one rank. Reading takes 50 ms; a hanging file system never answers."""

MAX_OUTPUT_BYTES = 1 << 20
"""Bytes that the child may print: two streams of 100 lines of 400 characters have up to 0.5 MB."""


class _Stream(msgspec.Struct):
    stream: str
    lines: list[str]
    age_s: float


OUTPUT_CHILD = Program(
    name="agent.series.output_child",
    answers=msgspec.json.Decoder(list[_Stream]),
    purpose="the output of a rank cannot be read",
    max_output_bytes=MAX_OUTPUT_BYTES,
)


def read_rank_output(
    proc: Proc, runner: ChildRunner, rank: int, key: tuple[int, int], count: int, owner: str
) -> list[RankOutput]:
    """Return the last `count` lines of standard output and error of a rank's process.

    Empty if these are no files that the process may read, or if they cannot be read in time.
    """
    pid, start_time = key
    stat = proc.stat(pid)
    if stat is None or stat.start_time != start_time:
        return []
    question = json.dumps({"process": f"{proc.path}/{pid}", "lines": count})
    answers = runner.ask(OUTPUT_CHILD, [question], OUTPUT_DEADLINE_S, owner)
    return [
        RankOutput(
            rank=rank,
            pid=pid,
            start_time=start_time,
            stream=each.stream,
            lines=tuple(each.lines),
            age_s=min(max(0.0, each.age_s), MAX_AGE_S),
        )
        for streams in answers.found
        for each in streams
        if each.stream in (*STREAMS.values(), BOTH)
    ]


ORDERS, ORDERS_PER_S, OWNERS = 6.0, 0.1, 256
"""Orders of one owner at once and per second. A tower sends two or three for an incident. Owners
that are remembered: a node has a few."""

REMEMBERED_ORDERS = 256
"""Ids of orders that were carried out."""

HEAD_BYTES = 64
"""Space for `held_s`, which is inserted when the message is sent."""


class SeriesReporter:
    """Records every rank, and carries out orders. Its methods are called by the agent's loop."""

    def __init__(
        self,
        *,
        node: str,
        proc: Proc,
        deliver: Callable[[WaitingDump], None],
        output_lines: int,
        runner: ChildRunner,
    ) -> None:
        """`output_lines`: lines of a suspect's output to send; 0: none is read."""
        self._node, self._proc = node, proc
        self._runner = runner
        self._deliver, self._output_lines = deliver, output_lines
        self._history = History()
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._allowed = TokenBuckets[str](ORDERS, ORDERS_PER_S, OWNERS)

    def record(
        self, vitals: Iterable[RankVitals], measured: Iterable[Measured], now: float
    ) -> None:
        """Add the state of now to the series. An error in it does not stop the report."""
        try:
            self._history.record(vitals, measured, now)
        except Exception:
            log.exception("series were not recorded")

    def carry_out(
        self, orders: Iterable[SeriesOrder], found: Sequence[FoundRank], now: float
    ) -> None:
        """Send the series of each order that is new. `found` are the ranks of this node, also ended
        ones."""
        for order in orders:
            if order.id in self._seen:
                continue
            self._seen[order.id] = None
            while len(self._seen) > REMEMBERED_ORDERS:
                self._seen.popitem(last=False)
            if not self._allowed.use(order.owner).take(now):
                log.warning("order %s for series is refused: too many orders", order.id)
                continue
            self._begin(order, found)

    def _begin(self, order: SeriesOrder, found: Sequence[FoundRank]) -> None:
        """Collect the series now, and read the output and send them in a thread."""
        meant = [
            each
            for each in found
            if each.claim.rank in order.ranks and each.job == JobKey.named_by(order)
        ][:MAX_TRACED]
        series = [
            one for each in meant for one in self._history.series(each.claim.rank, _key_of(each))
        ][:MAX_SERIES]
        if not series:
            log.warning("order %s for series is refused: no such rank has series", order.id)
            return
        batch = SeriesBatch(
            version=PROTOCOL_VERSION,
            id=uuid.uuid4().hex,
            node=self._node,
            job=order.job,
            owner=order.owner,
            launch=order.launch,
            incident=order.incident,
            held_s=0.0,
            series=tuple(series),
        )
        suspects = [each for each in meant if each.claim.rank in order.suspects]
        arguments = (batch, suspects, read_moment())
        threading.Thread(target=self._send, args=arguments, name="series", daemon=True).start()

    def _send(self, batch: SeriesBatch, suspects: Sequence[FoundRank], taken: Moment) -> None:
        try:
            if self._output_lines:
                batch = replace(batch, outputs=tuple(self._read_outputs(suspects)))
            self._deliver(
                WaitingDump(
                    id=batch.id,
                    job=batch.job,
                    taken=taken,
                    body=encode_series(batch),
                    memory_only=True,
                    owner=batch.owner,
                    path=SERIES_PATH,
                )
            )
        except Exception:
            log.exception("series for incident %s were not sent", batch.incident)

    def _read_outputs(self, suspects: Sequence[FoundRank]) -> list[RankOutput]:
        return [
            output
            for each in suspects
            for output in read_rank_output(
                self._proc,
                self._runner,
                each.claim.rank,
                _key_of(each),
                self._output_lines,
                each.job.owner,
            )
        ]


def encode_series(batch: SeriesBatch, limit: int = MAX_SERIES_BYTES - HEAD_BYTES) -> bytes:
    """Return the batch as JSON of at most `limit` bytes. The last series are dropped first."""
    body = msgspec.json.encode(batch)
    while len(body) > limit and (batch.series or batch.outputs):
        if batch.series:
            batch = replace(batch, series=batch.series[: len(batch.series) // 2])
        else:
            batch = replace(batch, outputs=())
        body = msgspec.json.encode(batch)
    return body


def _key_of(found: FoundRank) -> tuple[int, int]:
    return found.process.pid, found.process.start_time
