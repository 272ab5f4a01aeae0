"""Replays a recording: the same tower, in recorded time, without network, threads and processes.

The event loop waits for nothing: when no task can go on, its clock moves to the next timer. So a
replay of ten minutes takes seconds, and its effects are always the same. Diagnoses are made again
with the rules of this release. They take as long as they did.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import selectors
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from watchtower.core.fleet.fleet import FleetFullError
from watchtower.diagnoser.messages import Answer, Request, read_answer
from watchtower.diagnoser.work import answer as answer_request
from watchtower.store.protocol import Store
from watchtower.store.values import Incident, StartupState
from watchtower.tower.clock import Clock
from watchtower.tower.diagnosis_runner import DiagnosisRunner, Freeze, NotDiagnosedError
from watchtower.tower.feedback import Answer as PersonsAnswer
from watchtower.tower.incident_events import IncidentEvent
from watchtower.tower.incident_verdicts import verdict_of
from watchtower.tower.inputs import (
    Acknowledged,
    Answered,
    Diagnosed,
    Drawn,
    Dumped,
    Examined,
    Input,
    Recalled,
    Record,
    Reported,
    Silenced,
    Stopped,
    Ticked,
    Traced,
    Unsilenced,
)
from watchtower.tower.recording import Header, read_recording
from watchtower.tower.silences import Subject
from watchtower.tower.stored_incidents import read_incident
from watchtower.tower.tower import Tower
from watchtower.tower.views import view_job
from watchtower.wire.dumps import DumpBatch, SentBatch
from watchtower.wire.orders import ReportReply
from watchtower.wire.report import Report
from watchtower.wire.series import SeriesBatch

SETTLE_S = 5.0
"""Seconds after the last input in which what has begun may end."""

TORN = "the recording ends here: its file is torn, or its tower was killed"

Effect = dict[str, Any]
"""`at` in seconds since the start of the tower, and one of `reply`, `incident`, `log`, `refused`,
`examination`, `job` and `kept`, with a value for JSON."""


def replay(path: Path, store: Store, take: Callable[[Effect], None]) -> None:
    """Give the inputs of a recording to a tower. `take` gets what the tower does, in order.

    `store` is empty. Each of its calls must be done when it returns. Raises RecordingError.
    """
    header, inputs = read_recording(path)
    chance = _Chance(inputs)
    clock = ReplayClock(header.now, header.wall, chance.ids)
    loop = _ReplayLoop(clock)
    effects = Outcome(clock, take)
    try:
        with effects.catching_logs():
            loop.run_until_complete(
                _replay(header, read_recording(path)[1], chance, clock, effects, store)
            )
    finally:
        loop.close()


async def _replay(
    header: Header,
    inputs: Iterable[Input],
    chance: _Chance,
    clock: ReplayClock,
    effects: Outcome,
    store: Store,
) -> None:
    for incident in header.startup.incidents:
        store.save_incident(incident)
    for each in chance.recalled:
        store.save_dumps(each.job, _read_batch(each.batch), each.taken_at)
    tower = Tower(
        header.policy,
        store,
        header.startup,
        clock,
        partial(ReplayedRunner, chance=chance),
        (effects,),
        header.shadow,
    )
    player = _Player(tower, effects)
    one: Input | None = None
    for one in inputs:
        await asyncio.sleep(max(0.0, one.at - clock.now()))
        player.play(one)
    if not isinstance(one, Stopped):
        effects.add(log=TORN)
    await asyncio.sleep(SETTLE_S)
    await player.close()
    player.show(tower.live)
    await tower.close()
    effects.add(kept=_shorten(store.recall()))


class ReplayClock(Clock):
    """A clock that the event loop moves. Its ids are those of the recording."""

    def __init__(self, now: float, wall: float, ids: dict[str, deque[str]]) -> None:
        self.at, self.began, self._offset_s, self._ids = now, now, wall - now, ids
        self._made = 0

    def now(self) -> float:
        """Return recorded seconds of the monotonic clock."""
        return self.at

    def wall(self) -> float:
        """Return recorded UNIX seconds."""
        return self.at + self._offset_s

    def new_id(self, of: str) -> str:
        """Return the next id of the recording; after the last one, an id of the same form."""
        if recorded := self._ids.get(of):
            return recorded.popleft()
        self._made += 1
        return f"REPLAYED{self._made:018}"


class _Chance:
    """What a tower does not decide itself, read in advance: a tick uses ids and answers that are
    recorded after it."""

    def __init__(self, inputs: Iterable[Input]) -> None:
        self.ids: dict[str, deque[str]] = {}
        self.diagnosed: dict[str, deque[Diagnosed]] = {}
        self.recalled: list[Recalled] = []
        for one in inputs:
            match one:
                case Drawn(id=made, of=of):
                    self.ids.setdefault(of, deque()).append(made)
                case Diagnosed(job=job):
                    self.diagnosed.setdefault(job, deque()).append(one)
                case Recalled():
                    self.recalled.append(one)


class _Selector(selectors.DefaultSelector):
    """Waits for nothing: it moves the clock to the next timer."""

    clock: ReplayClock

    def select(self, timeout: float | None = None) -> list[Any]:
        """Return what is ready now."""
        events = super().select(0)
        if timeout is None and not events:
            raise RuntimeError("the replay waits for something that is not in the recording")
        if timeout and not events:
            self.clock.at += timeout
        return events


class _ReplayLoop(asyncio.SelectorEventLoop):
    """An event loop in recorded time."""

    def __init__(self, clock: ReplayClock) -> None:
        selector = _Selector()
        selector.clock = self._recorded = clock
        super().__init__(selector)

    def time(self) -> float:
        """Return recorded seconds."""
        return self._recorded.at


class _InProcess:
    """The work of a diagnosing process."""

    def ask(self, request: Request, *, brief: bool = False) -> Answer:
        """Return the answer to a request."""
        read = read_answer(answer_request(request.encode(brief=False)))
        assert read is not None, "only a brief try gives up"
        return read

    def kill(self) -> None:
        """Do nothing: there is no process."""


class ReplayedRunner(DiagnosisRunner):
    """Diagnoses again what was diagnosed, when it was, and fails as it failed."""

    def __init__(self, clock: Clock, record: Record, chance: _Chance) -> None:
        super().__init__(clock, record, _InProcess)
        self._diagnosed = chance.diagnosed

    async def run(
        self, job: str, owner: str, founder: str, freeze: Freeze, *, again: bool = False
    ) -> Answer:
        """Return the answer at the time of the recorded one; at once if there is none."""
        recorded, now = self._diagnosed.get(job), self._clock.now()
        was = recorded.popleft() if recorded else Diagnosed(at=now, job=job, frozen_at=now)
        await self._wait_until(was.frozen_at)
        request = freeze()
        await self._wait_until(was.at)
        if was.why_not:
            raise NotDiagnosedError(was.why_not)
        return _InProcess().ask(request())

    async def _wait_until(self, at: float) -> None:
        await asyncio.sleep(max(0.0, at - self._clock.now()))


class _Player:
    """Gives inputs to a tower, and what it answers to the effects."""

    def __init__(self, tower: Tower, effects: Outcome) -> None:
        self._tower, self._effects = tower, effects
        self._last: dict[tuple[str, str], ReportReply] = {}
        """The last reply to each agent, without orders."""
        self._tasks: set[asyncio.Task[None]] = set()

    def play(self, one: Input) -> None:
        """Give one input to the tower. What needs time goes on in the background."""
        match one:
            case Ticked():
                self._tower.tick()
                self.show(self._effects.take_changed())
            case Reported(report=report):
                self._report(report)
            case Dumped(batch=batch):
                self._start(self._tower.take_dumps(_read_batch(batch)))
            case Traced(batch=batch):
                body = bytes(batch)
                self._start(self._tower.traces.take(_series.decode(body), body))
            case Acknowledged() | Silenced() | Unsilenced() | Answered() | Examined():
                self._start(self._act(one))

    def show(self, jobs: Iterable[str]) -> None:
        """Add what is shown of jobs, if they are live."""
        for name in sorted(jobs):
            if (shown := view_job(self._tower, name)) is not None:
                self._effects.add(job=shown)

    async def close(self) -> None:
        """Cancel what has not ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[None, None, object]) -> None:
        async def finish() -> None:
            try:
                await work
            except Exception as error:
                self._effects.add(refused=f"{type(error).__name__}: {error}")

        task = asyncio.get_running_loop().create_task(finish())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _report(self, report: Report) -> None:
        agent = report.node, report.agent_id
        last = self._last.get(agent)
        try:
            reply = self._tower.take_report(report)
        except FleetFullError as error:
            self._effects.add(refused=str(error))
            return
        self._last[agent] = replace(reply, orders=(), series=())
        if reply != last:
            self._effects.add(reply=reply, to=report.node)

    async def _act(self, one: Acknowledged | Silenced | Unsilenced | Answered | Examined) -> None:
        tower = self._tower
        match one:
            case Acknowledged(incident=incident, by=by, note=note):
                await tower.acks.ack(incident, by, note, tower.live.values())
            case Silenced():
                named = Subject(job=one.job, node=one.node, user=one.user)
                await tower.silences.add(named, one.for_s, one.reason, one.by)
            case Unsilenced(silence=silence):
                await tower.silences.remove(silence)
            case Answered():
                answer = PersonsAnswer(
                    right=one.right, rank=one.rank, cause=one.cause, by=one.by, note=one.note
                )
                if judged := await read_incident(tower, one.incident):
                    await tower.feedback.give(judged, verdict_of(tower, judged), answer)
            case Examined(job=job, rank=rank, native=native):
                if found := await tower.examinations.examine(job, rank, native=native):
                    self._effects.add(examination=found.verdict)


class Outcome:
    """Hands on the effects of a replay."""

    def __init__(self, clock: ReplayClock, take: Callable[[Effect], None]) -> None:
        self._clock, self._take = clock, take
        self._changed: set[str] = set()
        """Jobs whose incidents have changed since they were last shown."""

    def add(self, **effect: object) -> None:
        """Hand on an effect that happens now."""
        at = round(self._clock.at - self._clock.began, 3)
        self._take({"at": at, **{key: _builtins(value) for key, value in effect.items()}})

    def take_changed(self) -> set[str]:
        """Return the jobs whose incidents have changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def note(self, event: IncidentEvent) -> None:
        """Hand on an event of an incident."""
        self._changed.add(event.incident.job)
        self.add(incident=event.change.value, state=_shorten(event.incident))

    @contextlib.contextmanager
    def catching_logs(self) -> Iterator[None]:
        """Take the lines of the log as effects, and write none."""
        logger, handler = logging.getLogger("watchtower"), _Lines(self)
        before = logger.level, logger.propagate
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(before[0])
            logger.propagate = before[1]


class _Lines(logging.Handler):
    def __init__(self, effects: Outcome) -> None:
        super().__init__()
        self._effects = effects

    def emit(self, record: logging.LogRecord) -> None:
        self._effects.add(log=record.getMessage())


def _read_batch(batch: msgspec.Raw) -> SentBatch:
    body = bytes(batch)
    return SentBatch(_dumps.decode(body), body)


def _shorten(value: Incident | StartupState) -> Any:
    """Return a value for JSON, with a digest of each case and summary instead of its bytes."""
    if isinstance(value, StartupState):
        return {**_builtins(value), "incidents": [_shorten(one) for one in value.incidents]}
    digests = {
        name: sha256(part).hexdigest()[:16] if (part := getattr(value, name)) else None
        for name in ("evidence", "summary")
    }
    return {**_builtins(replace(value, evidence=None, summary=None)), **digests}


def _builtins(value: object) -> Any:
    return msgspec.to_builtins(value, order="sorted")


_dumps, _series = msgspec.json.Decoder(DumpBatch), msgspec.json.Decoder(SeriesBatch)
