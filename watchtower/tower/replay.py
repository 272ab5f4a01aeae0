"""Replays a recording: a tower with the same inputs, in recorded time, without network, threads and
processes.

The event loop waits for nothing: when no task can go on, its clock moves to the next timer. So a
replay of ten minutes takes seconds, and two replays have the same effects. Diagnoses are made again
with the rules of this release. They take as long as they did. The store never fails, and the check
after dumps may come some milliseconds earlier or later than it did.
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
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from watchtower.diagnoser.messages import Answer, read_answer
from watchtower.diagnoser.work import answer as answer_request
from watchtower.fleet.fleet import FleetFullError
from watchtower.incidents.incident import Incident
from watchtower.jobs.verdicts import Tries
from watchtower.store.protocol import Store
from watchtower.store.values import StartupState
from watchtower.tower.acts import Answer as PersonsAnswer
from watchtower.tower.clock import Clock
from watchtower.tower.counters import Durations
from watchtower.tower.diagnosis_runner import DURATIONS_S, Freeze, NotDiagnosedError
from watchtower.tower.incident_events import IncidentEvent
from watchtower.tower.recording import (
    Acknowledged,
    Answered,
    Diagnosed,
    DiagnosisAsked,
    Drawn,
    Dumped,
    Examined,
    Header,
    Input,
    Recalled,
    Record,
    Recording,
    Reported,
    Silenced,
    Stopped,
    Ticked,
    Traced,
    Unsilenced,
)
from watchtower.tower.stored_incidents import read_incident
from watchtower.tower.tower import Tower
from watchtower.views.job import view_job
from watchtower.views.people import Subject
from watchtower.views.verdict import verdict_of
from watchtower.wire.dumps import DumpBatch, SentBatch
from watchtower.wire.orders import ReportReply
from watchtower.wire.report import Report
from watchtower.wire.series import SeriesBatch

TURNS = 100
"""Turns of the event loop at the end. An act of a person takes about ten."""

NEVER_S = 1e9
"""Longer than any recording."""

Effect = dict[str, Any]
"""`at` in seconds since the start of the tower, and one of `reply`, `incident`, `log`, `refused`,
`failed`, `examination`, `job` and `kept`, with a value for JSON."""


def replay(path: Path, store: Store, take: Callable[[Effect], None]) -> None:
    """Give the inputs of a recording to a tower. `take` gets what the tower does, in order.

    `store` is empty. Each of its calls must be done when it returns. Raises RecordingError.
    """
    recording = Recording(path)
    recorded = _Recorded(recording)
    clock = ReplayClock(recording.header, recorded.ids)
    loop, outcome = _ReplayLoop(clock), Outcome(clock, take)
    try:
        with outcome.catching_logs():
            loop.run_until_complete(_replay(recording, recorded, clock, outcome, store))
    finally:
        loop.close()


async def _replay(
    recording: Recording, recorded: _Recorded, clock: ReplayClock, outcome: Outcome, store: Store
) -> None:
    header = recording.header
    for incident in header.startup.incidents:
        store.save_incident(incident)
        outcome.add(incident="recalled", state=_shorten(incident))
    make_runner = partial(ReplayedRunner, recorded=recorded)
    listeners = (outcome,)
    tower = Tower(
        header.policy, store, header.startup, clock, make_runner, listeners, header.shadow
    )
    player = _Player(tower, outcome)
    for each in recorded.recalled:
        player.guard(partial(_save_recalled, store, each))
    try:
        # As many as were there when the ids were read: the tower may still be recording.
        for one in islice(recording.inputs(), recorded.count):
            await asyncio.sleep(max(0.0, one.at - clock.now()))
            player.play(one)
        if recorded.torn:
            outcome.add(log=f"the recording ends here: {recorded.torn}")
        player.show(tower.fleet.jobs)
    finally:
        await player.close()
        await tower.close()
    outcome.add(kept=_shorten(store.recall()))


def _save_recalled(store: Store, each: Recalled) -> None:
    store.save_dumps(each.job, _read_batch(each.batch), each.taken_at)


class ReplayClock(Clock):
    """A clock that the event loop moves. Its ids are those of the recording."""

    def __init__(self, header: Header, ids: dict[str, deque[str]]) -> None:
        self._began, self._wall, self._ids = header.now, header.wall, ids
        self.passed_s = 0.0
        """Seconds since the start of the tower. They are small, so that adding a moment to them
        changes them: the clock of a machine shows the time since it was started."""
        self._made = 0

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.passed_s += seconds

    def now(self) -> float:
        """Return recorded seconds of the monotonic clock."""
        return self._began + self.passed_s

    def wall(self) -> float:
        """Return recorded UNIX seconds."""
        return self._wall + self.passed_s

    def new_id(self, of: str) -> str:
        """Return the next id of the recording; after the last one, an id of the same form."""
        if recorded := self._ids.get(of):
            return recorded.popleft()
        self._made += 1
        return f"REPLAYED{self._made:018}"


class _Recorded:
    """What a tower uses before its line in the recording: ids, ends of diagnoses, recalled dumps.
    Read in advance."""

    def __init__(self, recording: Recording) -> None:
        self.ids: dict[str, deque[str]] = {}
        self.asked: dict[str, deque[int]] = {}
        """Numbers of the diagnoses of each job, in order."""
        self.diagnosed: dict[int, Diagnosed] = {}
        """How the diagnoses that ended did so, by number."""
        self.recalled: list[Recalled] = []
        """Dumps of the tower's last run. Those of this run arrive as they did."""
        self.count = 0
        for one in recording.inputs():
            self.count += 1
            match one:
                case Drawn(id=made, of=of):
                    self.ids.setdefault(of, deque()).append(made)
                case DiagnosisAsked(job=job, number=number):
                    self.asked.setdefault(job, deque()).append(number)
                case Diagnosed(number=number):
                    self.diagnosed[number] = one
                case Recalled(taken_at=taken_at) if taken_at < recording.header.wall:
                    self.recalled.append(one)
        self.torn = recording.torn


class _Selector(selectors.DefaultSelector):
    """Waits for nothing: it moves the clock to the next timer."""

    clock: ReplayClock

    def select(self, timeout: float | None = None) -> list[Any]:
        """Return what is ready now."""
        events = super().select(0)
        if timeout is None and not events:
            raise RuntimeError("the replay waits for something that is not in the recording")
        if timeout and not events:
            self.clock.advance(timeout)
        return events


class _ReplayLoop(asyncio.SelectorEventLoop):
    """An event loop in recorded time."""

    def __init__(self, clock: ReplayClock) -> None:
        selector = _Selector()
        selector.clock = self._recorded = clock
        super().__init__(selector)

    def time(self) -> float:
        """Return the seconds since the start of the tower."""
        return self._recorded.passed_s


class ReplayedRunner:
    """Diagnoses again what was diagnosed, when it was, and fails as it failed."""

    def __init__(self, clock: Clock, _: Record, recorded: _Recorded) -> None:
        self._clock, self._recorded = clock, recorded
        self.durations = Durations(DURATIONS_S)
        self.killed = 0

    async def run(
        self,
        job: str,
        owner: str,
        founder: str,
        tries: Tries,
        freeze: Freeze,
        *,
        again: bool = False,
    ) -> Answer:
        """Return the answer at the time of the recorded one.

        Never if that one did not end before the recording did; at once if there was none.
        """
        now, asked = self._clock.now(), self._recorded.asked.get(job)
        was = Diagnosed(at=now, number=0, frozen_at=now)
        if asked:
            ended = self._recorded.diagnosed.get(asked.popleft())
            was = ended or Diagnosed(at=now + NEVER_S, number=0, frozen_at=now)
        await self._wait_until(was.frozen_at)
        write = freeze()
        await self._wait_until(was.at)
        if was.why_not:
            raise NotDiagnosedError(was.why_not)
        answer = read_answer(answer_request(write().encode()))
        assert answer is not None, "only a brief try gives up"
        return answer

    async def _wait_until(self, at: float) -> None:
        await asyncio.sleep(max(0.0, at - self._clock.now()))

    def behind_s(self) -> float:
        """Return 0: no diagnosis waits for a process."""
        return 0.0

    def stop(self) -> None:
        """Do nothing: no process was started."""


class _Player:
    """Gives inputs to a tower. Its replies are effects."""

    def __init__(self, tower: Tower, outcome: Outcome) -> None:
        self._tower, self._outcome = tower, outcome
        self._last: dict[tuple[str, str], ReportReply] = {}
        """The last reply to each agent, without orders."""
        self._tasks: set[asyncio.Task[None]] = set()

    def play(self, one: Input) -> None:
        """Give one input to the tower. What needs time goes on in the background."""
        self.guard(partial(self._play, one))

    def guard(self, work: Callable[[], None]) -> None:
        """Do some work. An error is an effect: the tower that was recorded went on, too."""
        try:
            work()
        except Exception as error:
            self._outcome.add(failed=f"{type(error).__name__}: {error}")

    def _play(self, one: Input) -> None:
        match one:
            case Ticked():
                self._tower.tick()
                self.show(self._outcome.take_changed())
            case Reported(report=report):
                self._report(report)
            case Dumped(batch=batch):
                self._start(self._tower.take_dumps(_read_batch(batch)))
            case Traced(batch=batch):
                body = bytes(batch)
                self._start(self._tower.take_series(_series.decode(body), body))
            case Acknowledged() | Silenced() | Unsilenced() | Answered() | Examined():
                self._start(self._act(one))
            case Drawn() | DiagnosisAsked() | Diagnosed() | Recalled() | Stopped():
                pass  # see `_Recorded`

    def show(self, jobs: Iterable[str]) -> None:
        """Add what is shown of jobs, if they are live."""
        for name in sorted(jobs):
            if (shown := view_job(self._tower.moment(), name)) is not None:
                self._outcome.add(job=shown)

    async def close(self) -> None:
        """Let what needs no time come to its end, and cancel the rest."""
        for _ in range(TURNS):
            await asyncio.sleep(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[None, None, object]) -> None:
        async def finish() -> None:
            try:
                await work
            except Exception as error:
                self._outcome.add(refused=f"{type(error).__name__}: {error}")

        task = asyncio.get_running_loop().create_task(finish())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _report(self, report: Report) -> None:
        agent = report.node, report.agent_id
        last = self._last.get(agent)
        try:
            reply = self._tower.take_report(report)
        except FleetFullError as error:
            self._outcome.add(refused=str(error))
            return
        self._last[agent] = replace(reply, orders=(), series=())
        if reply != last:
            self._outcome.add(reply=reply, to=report.node)

    async def _act(self, one: Acknowledged | Silenced | Unsilenced | Answered | Examined) -> None:
        tower = self._tower
        match one:
            case Acknowledged(incident=incident, by=by, note=note):
                await tower.acks.ack(incident, by, note)
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
                    await tower.feedback.give(judged, verdict_of(tower.moment(), judged), answer)
            case Examined(job=job, rank=rank):
                if found := await tower.examinations.examine(job, rank):
                    self._outcome.add(examination=found.verdict)


class Outcome:
    """Hands on the effects of a replay."""

    def __init__(self, clock: ReplayClock, take: Callable[[Effect], None]) -> None:
        self._clock, self._take = clock, take
        self._changed: set[str] = set()
        """Jobs whose incidents have changed since they were last shown."""

    def add(self, **effect: object) -> None:
        """Hand on an effect that happens now."""
        at = round(self._clock.passed_s, 3)
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
    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self._outcome = outcome

    def emit(self, record: logging.LogRecord) -> None:
        self._outcome.add(log=record.getMessage())


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
