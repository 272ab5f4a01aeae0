""" "Was this right?": what people answer about the verdicts of incidents.

The newest answer about an incident counts. It is about the verdict of its time: a later correction
of the verdict does not change what was judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from watchtower.incidents.calibration import Judged, calibrate
from watchtower.incidents.incident import Feedback, Incident
from watchtower.store.values import MAX_RECALLED
from watchtower.tower.clock import Clock
from watchtower.tower.recording import Answered, Record
from watchtower.tower.request_checks import RequestRefusedError, check_texts
from watchtower.tower.store_writer import StoreWriter
from watchtower.views.people import Calibration, CauseCount
from watchtower.wire.bounds import MAX_NAME, MAX_RANK, MAX_TEXT
from watchtower.wire.drills import is_drill
from watchtower.wire.verdict import Cause, Verdict

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
        await self._writer.save_feedback(given)
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
        return Counter((each.verdict_cause, each.right) for each in self._counted())

    def calibrate(self) -> Calibration:
        """Return how often verdicts were right. Incidents of drills do not count."""
        counts = self.count()
        causes = [
            CauseCount(
                cause=cause,
                right_count=counts[cause, True],
                wrong_count=counts[cause, False],
            )
            for cause in Cause
            if counts[cause, True] or counts[cause, False]
        ]
        judged = (Judged(confidence=g.confidence, is_right=g.right) for g in self._counted())
        return Calibration(
            items=calibrate(judged),
            causes=sorted(causes, key=lambda each: (-each.wrong_count, each.cause.value)),
            right_count=sum(each.right_count for each in causes),
            wrong_count=sum(each.wrong_count for each in causes),
        )

    def _counted(self) -> Iterable[Feedback]:
        return (each for each in self._given.values() if not is_drill(each.job))


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
