"""Imagined jobs on imagined nodes, whose agents send HTTP requests to a real tower.

No process trains and none is dumped. The content of the reports is generated here, so that hundreds
of hangs fit into minutes. The imagined agents act like real ones: a report every interval, dumps
when a deadline passes or an order comes, each sent until it is acknowledged.
"""

from __future__ import annotations

import http.client
import itertools
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from watchtower.wire.dumps import DumpBatch, DumpReceipt, KernelWait, RankDump, ThreadDump
from watchtower.wire.orders import ReportReply
from watchtower.wire.report import Beat, Ending, EndingKind, ProcessState, RankVitals, Report
from watchtower.wire.stacks import Frame, Stack, make_stack

STEP_S = 0.2
INTERVAL_S = 0.2
ROUND_GAP_S = 0.3
RANKS, NODES = 4, 2
TIMEOUT_S = 3.0

_REPLIES = msgspec.json.Decoder(ReportReply)
_RECEIPTS = msgspec.json.Decoder(DumpReceipt)


def _stack(*frames: tuple[str, str, int]) -> Stack:
    return make_stack(tuple(Frame(function=f, file=name, line=line) for f, name, line in frames))


WAITING = _stack(
    ("Ring._read", "ring.py", 131), ("Ring.all_reduce", "ring.py", 88), ("train", "train.py", 63)
)
READING = _stack(("ShardReader.read", "data.py", 31), ("ShardReader.__next__", "data.py", 88),
                 ("train", "train.py", 52))  # fmt: skip
WORKING = _stack(("train", "train.py", 70))


@dataclass
class Rank:
    """One imagined process."""

    rank: int
    pid: int
    started_at: float
    step: int = 0
    beat_at: float = 0.0
    told_step: int = 0
    ended_at: float | None = None
    state: ProcessState = ProcessState.SLEEPING
    is_known: bool = True
    """False if it has ended and its agent was restarted since then."""


@dataclass
class Job:
    """Four ranks that step together, until one of them hangs."""

    name: str
    ranks: list[Rank] = field(default_factory=list)
    culprit: int | None = None
    cause: str = ""
    stalled_at: float = 0.0

    def launch(self, pids: itertools.count[int]) -> None:
        """Start every rank as a new process."""
        now = time.monotonic()
        self.culprit = None
        self.ranks = [Rank(rank, next(pids), now, beat_at=now) for rank in range(RANKS)]

    def advance(self, now: float) -> None:
        """Make the steps that are due."""
        for rank in self.ranks if self.culprit is None else ():
            while now - rank.beat_at >= STEP_S:
                rank.step, rank.beat_at = rank.step + 1, rank.beat_at + STEP_S

    def stall(self, culprit: int, cause: str) -> None:
        """Let one rank read forever, be stopped, or die. The others wait for it."""
        self.culprit, self.cause, self.stalled_at = culprit, cause, time.monotonic()
        if cause == "process_stopped":
            self.ranks[culprit].state = ProcessState.STOPPED
        if cause == "process_died":
            self.ranks[culprit].ended_at = self.stalled_at

    def mend(self, pids: itertools.count[int]) -> None:
        """Let the job continue. After a death this needs new processes."""
        if self.cause == "process_died":
            self.launch(pids)
            return
        now = time.monotonic()
        self.culprit = None
        for rank in self.ranks:
            rank.state, rank.beat_at, rank.step = ProcessState.SLEEPING, now, rank.step + 1


class Node(threading.Thread):
    """One node's agent: reports in this thread, dumps in another."""

    def __init__(self, number: int, port: int, jobs: list[Job], lock: threading.Lock) -> None:
        super().__init__(daemon=True)
        self.node = f"n{number}"
        self.acknowledged: list[str] = []
        self.on_upload: Callable[[str], None] = lambda job: None
        self._port, self._jobs, self._lock = port, jobs, lock
        self._mine = range(number * RANKS // NODES, (number + 1) * RANKS // NODES)
        self._stopping = threading.Event()
        self._waiting: deque[tuple[DumpBatch, float]] = deque()
        self._dumped: dict[str, float] = {}
        self._second: list[tuple[float, str, str]] = []
        self._sender = threading.Thread(target=self._send_dumps, daemon=True)
        self._agent_id = ""
        self.restart()

    def restart(self) -> None:
        """Forget what a new agent would not know: ended ranks, earlier dumps."""
        with self._lock:
            self._agent_id = uuid.uuid4().hex
            self._dumped.clear()
            self._second.clear()
            for job in self._jobs:
                for rank in job.ranks:
                    rank.is_known = rank.is_known and rank.ended_at is None

    def run(self) -> None:
        """Report until stopped."""
        self._sender.start()
        connection = None
        while not self._stopping.wait(INTERVAL_S):
            now = time.monotonic()
            with self._lock:
                report = self._report(now)
            try:
                connection = connection or self._connect()
                body = _post(connection, "/ingest/v1/report", msgspec.json.encode(report))
            except (OSError, http.client.HTTPException):
                connection = None
            else:
                self._act(_REPLIES.decode(body))
            self._take_second_rounds()

    def stop(self) -> None:
        """Deliver the waiting dumps, then end."""
        self._stopping.set()
        self.join()
        self._sender.join(10 * TIMEOUT_S)

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_S)

    def _report(self, now: float) -> Report:
        ranks = []
        for job in self._jobs:
            job.advance(now)
            ranks += [_vitals(job, rank, now) for rank in self._ranks_of(job)]
        return Report(
            version=1, node=self.node, agent_id=self._agent_id, interval_s=INTERVAL_S,
            ranks=tuple(ranks),
        )  # fmt: skip

    def _ranks_of(self, job: Job) -> list[Rank]:
        return [rank for rank in job.ranks if rank.rank in self._mine and rank.is_known]

    def _act(self, reply: ReportReply) -> None:
        now = time.monotonic()
        with self._lock:
            for deadline in reply.deadlines:
                job = next(job for job in self._jobs if job.name == deadline.job)
                rank = job.ranks[deadline.rank]
                is_late = rank.ended_at is None and now - rank.beat_at > deadline.after_s
                if is_late and self._dumped.get(job.name) != job.stalled_at:
                    self._dumped[job.name] = job.stalled_at
                    self._dump(job, 1, "deadline")
            for order in reply.orders:
                job = next(job for job in self._jobs if job.name == order.job)
                self._dump(job, 1, order.id)

    def _take_second_rounds(self) -> None:
        now = time.monotonic()
        due = [second for second in self._second if second[0] <= now]
        self._second = [second for second in self._second if second[0] > now]
        with self._lock:
            for _, name, reason in due:
                self._dump(next(job for job in self._jobs if job.name == name), 2, reason)

    def _dump(self, job: Job, number: int, reason: str) -> None:
        now = time.monotonic()
        ranks = [rank for rank in self._ranks_of(job) if rank.ended_at is None]
        batch = DumpBatch(
            version=1, id=uuid.uuid4().hex, node=self.node, job=job.name, round=number,
            reason=reason, held_s=0.0, ranks=tuple(_dump_of(job, rank) for rank in ranks),
            stacks=(WAITING, READING, WORKING),
        )  # fmt: skip
        self._waiting.append((batch, now))
        if number == 1:
            self._second.append((now + ROUND_GAP_S, job.name, reason))

    def _send_dumps(self) -> None:
        while self._waiting or not self._stopping.is_set():
            if not self._waiting:
                time.sleep(0.02)
                continue
            batch, taken_at = self._waiting[0]
            held = replace(batch, held_s=time.monotonic() - taken_at)
            self.on_upload(batch.job)
            try:
                answer = _post(self._connect(), "/ingest/v1/dumps", msgspec.json.encode(held))
                receipt = _RECEIPTS.decode(answer)
            except (OSError, http.client.HTTPException, msgspec.MsgspecError):
                time.sleep(0.1)
                continue
            assert receipt.id == batch.id
            self.acknowledged.append(batch.id)
            self._waiting.popleft()


def _post(connection: http.client.HTTPConnection, path: str, body: bytes) -> bytes:
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    if response.status != 200:
        raise http.client.HTTPException(f"{response.status} {answer[:200]!r}")
    return answer


def _vitals(job: Job, rank: Rank, now: float) -> RankVitals:
    advanced, rank.told_step = rank.step - rank.told_step, rank.step
    ended = None
    if rank.ended_at is not None:
        ended = Ending(kind=EndingKind.SIGNAL, code=9, age_s=now - rank.ended_at)
    return RankVitals(
        job=job.name, rank=rank.rank, pid=rank.pid, start_time=rank.pid * 10, world_size=RANKS,
        found_age_s=now - rank.started_at, state=rank.state, ended=ended,
        beat=Beat(
            step=rank.step, age_s=max(0.0, now - rank.beat_at), advanced=max(0, advanced),
            interval_s=STEP_S if advanced > 0 else 0.0,
        ),
    )  # fmt: skip


def _dump_of(job: Job, rank: Rank) -> RankDump:
    stack = WORKING if job.culprit is None else WAITING
    if rank.rank == job.culprit:
        stack = READING
    return RankDump(
        rank=rank.rank, pid=rank.pid, start_time=rank.pid * 10, step=rank.step,
        kernel=KernelWait(state=rank.state),
        threads=(ThreadDump(name="MainThread", digest=stack.digest, main=True),),
    )  # fmt: skip
