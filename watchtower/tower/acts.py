"""What people do: acknowledge incidents, silence jobs, nodes and users, and judge verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from watchtower.incidents.incident import Ack, Feedback, Incident, Silence, SilenceKind
from watchtower.jobs.keeper import Keeper
from watchtower.store.values import MAX_RECALLED
from watchtower.tower.clock import Clock
from watchtower.tower.incident_events import Change, IncidentFeed
from watchtower.tower.recording import Acknowledged, Answered, Record, Silenced, Unsilenced
from watchtower.tower.store_writer import StoreFailedError, StoreWriter
from watchtower.views.people import Calibration, Subject, count_answers, view_calibration
from watchtower.wire.bounds import MAX_NAME, MAX_RANK, MAX_SILENCE_S, MAX_TEXT, check_text
from watchtower.wire.drills import is_drill
from watchtower.wire.verdict import Cause, Verdict
from watchtower.writing.text import format_duration


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


class Acks:
    """Stores acknowledgements."""

    def __init__(
        self,
        store_writer: StoreWriter,
        feed: IncidentFeed,
        keepers: Mapping[str, Keeper],
        clock: Clock,
        record: Record,
    ) -> None:
        self._store_writer, self._feed, self._keepers = store_writer, feed, keepers
        self._clock, self._record = clock, record
        self.changes = 0
        """Number of acknowledgements so far."""

    async def ack(self, incident: str, by: str, note: str) -> Ack | None:
        """Store an acknowledgement and return it; None if no incident has this id.

        Raises RequestRefusedError, StoreFailedError.
        """
        self._record(Acknowledged(at=self._clock.now(), incident=incident, by=by, note=note))
        check_texts(by=(by, MAX_NAME), note=(note, MAX_TEXT))
        writer = self._store_writer
        ack = Ack(at=self._clock.wall(), by=by.strip(), note=note.strip())
        is_there = await writer.wait(writer.store.save_ack(incident, ack), "the ack")
        known = [one for one in writer.unsaved(None) if one.id == incident]
        if known and not is_there:
            raise StoreFailedError(
                "the incident is not stored yet, so it cannot be acknowledged: try again"
            )
        if not is_there:
            return None
        self.changes += 1
        for keeper in self._keepers.values():
            if (acked := keeper.take_ack(incident, ack)) is not None:
                known = [acked]
        for one in known:
            self._feed.publish(Change.ACKNOWLEDGED, replace(one, ack=ack))
        return ack


MAX_SILENCES = 1000
"""Silences at one time. For more, change the alert rules instead."""


class Silences:
    """The silences in force."""

    def __init__(
        self,
        store_writer: StoreWriter,
        silences: Iterable[Silence],
        clock: Clock,
        record: Record,
    ) -> None:
        self._store_writer = store_writer
        self._clock, self._record = clock, record
        self._known = {(silence.kind, silence.name): silence for silence in silences}
        self.changes = 0
        """Number of silences that were set or removed so far."""

    def find(self, subject: Subject) -> Silence | None:
        """Return the silence of a subject that lasts longest; None if it is not silenced."""
        now = self._clock.wall()
        found = (self._known.get((kind, getattr(subject, kind.value))) for kind in SilenceKind)
        current = [silence for silence in found if silence is not None and now < silence.until]
        return max(current, key=lambda silence: silence.until, default=None)

    def all(self) -> list[Silence]:
        """Return all current silences, by kind and name."""
        now = self._clock.wall()
        current = (silence for silence in self._known.values() if now < silence.until)
        return sorted(current, key=lambda silence: (silence.kind.value, silence.name))

    async def add(self, named: Subject, for_s: float, reason: str = "", by: str = "") -> Silence:
        """Silence a job, node or user, in place of an earlier silence of it.

        It need not be known yet: a silence may be set before maintenance begins. Raises
        RequestRefusedError, StoreFailedError.
        """
        self._record(
            Silenced(
                at=self._clock.now(),
                job=named.job,
                node=named.node,
                user=named.user,
                for_s=for_s,
                reason=reason,
                by=by,
            )
        )
        kind, name = _find_named(named)
        if not 1 <= for_s <= MAX_SILENCE_S:
            most = format_duration(MAX_SILENCE_S)
            raise RequestRefusedError(
                f"`for_s` is {for_s:g}, allowed is 1 to {MAX_SILENCE_S:g} ({most})"
            )
        check_texts(reason=(reason, MAX_TEXT), by=(by, MAX_NAME), **{kind.value: (name, MAX_NAME)})
        self._known = {(silence.kind, silence.name): silence for silence in self.all()}
        earlier = self._known.get((kind, name))
        if earlier is None and len(self._known) >= MAX_SILENCES:
            raise RequestRefusedError(
                f"there are {MAX_SILENCES} silences already: remove one of them first"
            )
        now = self._clock.wall()
        silence = Silence(
            id=earlier.id if earlier else self._clock.new_id(f"silence of {name}"),
            kind=kind,
            name=name,
            since=now,
            until=now + for_s,
            reason=reason.strip(),
            by=by.strip(),
        )
        writer = self._store_writer
        await writer.wait(writer.store.save_silence(silence), "the silence")
        self._known[kind, name] = silence
        self.changes += 1
        return silence

    async def remove(self, ident: str) -> Silence | None:
        """End a silence and return it; None if the id is unknown. Raises StoreFailedError."""
        self._record(Unsilenced(at=self._clock.now(), silence=ident))
        found = next((silence for silence in self.all() if silence.id == ident), None)
        if found is None:
            return None
        writer = self._store_writer
        await writer.wait(writer.store.remove_silence(ident), "the end of the silence")
        self._known.pop((found.kind, found.name), None)
        self.changes += 1
        return found


def _find_named(named: Subject) -> tuple[SilenceKind, str]:
    """Return the one thing that is named. Raises RequestRefusedError."""
    given = [(kind, name) for kind in SilenceKind if (name := getattr(named, kind.value))]
    if len(given) != 1:
        raise RequestRefusedError("exactly one of `job`, `node` and `user` is needed")
    kind, name = given[0]
    if not name.strip():
        raise RequestRefusedError(
            f"`{kind.value}` has only spaces: give the name of a {kind.value}"
        )
    return kind, name


MAX_ANSWERS = MAX_RECALLED
"""Answers in memory. Above it the oldest is forgotten. The store has it as long as its incident."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer, as a person gives it."""

    right: bool
    rank: int | None = None
    cause: Cause | None = None
    by: str = ""
    note: str = ""


class Feedbacks:
    """The newest answer about each incident."""

    def __init__(
        self, writer: StoreWriter, stored: Iterable[Feedback], clock: Clock, record: Record
    ) -> None:
        """`stored` are the answers of earlier runs, oldest first."""
        self._writer, self._clock, self._record = writer, clock, record
        self._given = {given.incident: given for given in stored}
        self.changes = 0
        """Number of answers that this run of the tower got."""

    def find(self, incident: str) -> Feedback | None:
        """Return the answer about an incident; None if there is none."""
        return self._given.get(incident)

    async def give(self, incident: Incident, verdict: Verdict, answer: Answer) -> Feedback:
        """Store an answer about an incident with this verdict, in place of an earlier answer.

        Raises RequestRefusedError, StoreFailedError.
        """
        self._record(
            Answered(
                at=self._clock.now(),
                incident=incident.id,
                right=answer.right,
                rank=answer.rank,
                cause=answer.cause,
                by=answer.by,
                note=answer.note,
            )
        )
        _check(answer, verdict, incident.facts.ranks)
        given = Feedback(
            incident=incident.id,
            job=verdict.job,
            at=self._clock.wall(),
            right=answer.right,
            rank=answer.rank,
            cause=answer.cause,
            by=answer.by.strip(),
            note=answer.note.strip(),
            verdict_cause=verdict.cause or Cause.UNKNOWN,
            confidence=verdict.confidence,
        )
        await self._writer.wait(self._writer.store.save_feedback(given), "the answer")
        self.changes += 1
        self._given.pop(incident.id, None)  # the order of the answers is that of their times
        self._given[incident.id] = given
        if len(self._given) > MAX_ANSWERS:
            del self._given[next(iter(self._given))]
        return given

    def count(self) -> Counter[tuple[Cause, bool]]:
        """Return the number of answers by cause of the verdict, and by whether it was right.

        Incidents of drills do not count.
        """
        return count_answers(self._counted())

    def calibrate(self) -> Calibration:
        """Return how often verdicts were right. Incidents of drills do not count."""
        return view_calibration(self._counted())

    def _counted(self) -> list[Feedback]:
        return [each for each in self._given.values() if not is_drill(each.job)]


def _check(answer: Answer, verdict: Verdict, ranks: int | None) -> None:
    """`ranks` is the number of ranks of the job. Raises RequestRefusedError."""
    check_texts(by=(answer.by, MAX_NAME), note=(answer.note, MAX_TEXT))
    if answer.rank is not None and not 0 <= answer.rank <= MAX_RANK:
        raise RequestRefusedError(f"`rank` is {answer.rank}, allowed is 0 to {MAX_RANK}")
    if answer.right and (answer.rank is not None or answer.cause is not None):
        raise RequestRefusedError(
            "`rank` and `cause` correct a wrong verdict: give them only if `right` is false"
        )
    if answer.rank is not None and ranks is not None and answer.rank >= ranks:
        raise RequestRefusedError(
            f"`rank` is {answer.rank}, but the job has ranks 0 to {ranks - 1}"
        )
    named = {(each.rank, each.cause) for each in verdict.suspects}
    if answer.cause is not None and (answer.rank, answer.cause) in named:
        raise RequestRefusedError(
            f"the verdict names rank {answer.rank} and {answer.cause.value} itself: "
            "give another rank or cause, or the answer that the verdict is right"
        )
