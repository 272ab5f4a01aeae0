"""Silences: jobs, nodes and users whose alerts do not fire for a while.

A silenced incident is monitored, diagnosed and stored as before. Metrics mark it, alert rules
exclude it, and direct destinations receive nothing about it.
"""

from __future__ import annotations

from collections.abc import Iterable

from watchtower.incidents.incident import Silence, SilenceKind
from watchtower.tower.clock import Clock
from watchtower.tower.recording import Record, Silenced, Unsilenced
from watchtower.tower.request_checks import RequestRefusedError, check_texts
from watchtower.tower.store_writer import StoreWriter
from watchtower.views.people import Subject
from watchtower.wire.bounds import MAX_NAME, MAX_SILENCE_S, MAX_TEXT
from watchtower.writing.text import format_duration

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
        await self._store_writer.save_silence(silence)
        self._known[kind, name] = silence
        self.changes += 1
        return silence

    async def remove(self, ident: str) -> Silence | None:
        """End a silence and return it; None if the id is unknown. Raises StoreFailedError."""
        self._record(Unsilenced(at=self._clock.now(), silence=ident))
        found = next((silence for silence in self.all() if silence.id == ident), None)
        if found is None:
            return None
        await self._store_writer.remove_silence(ident)
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
