"""The sentences of an accusation: its summary, why each suspect is one, evidence and advice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from watchtower.diagnosis.accusation import Accusation
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position
from watchtower.diagnosis.subjects import GilOwners, expect
from watchtower.diagnosis.writer.advice import Step, write_advice
from watchtower.diagnosis.writer.causes import ELSEWHERE, NO_RANK, TEXTS
from watchtower.diagnosis.writer.evidence import write_evidence
from watchtower.diagnosis.writer.words import (
    owner_place,
    where_of,
)
from watchtower.wire.verdict import Cause, Evidence, Suspect
from watchtower.writing.cause_names import format_cause
from watchtower.writing.ranksets import name_ranks
from watchtower.writing.text import (
    capitalise,
    clean,
)


@dataclass(frozen=True, slots=True)
class Written:
    """An accusation in words."""

    suspects: tuple[Suspect, ...]
    summary: str
    evidence: tuple[Evidence, ...]
    next_steps: tuple[Step, ...]


class NotWrittenError(Exception):
    """The sentences of an accusation could not be made: they fit its data no more."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.value)
        self.cause = cause


def write_accusation(picture: Picture, accusation: Accusation) -> Written:
    """Make the sentences of one accusation. Raises `NotWrittenError` if they cannot be made."""
    try:
        return _write(picture, accusation)
    except Exception as error:
        raise NotWrittenError(accusation.cause) from error


def _write(picture: Picture, accusation: Accusation) -> Written:
    text = TEXTS.get(accusation.cause, ELSEWHERE if accusation.suspects else NO_RANK)
    return Written(
        suspects=tuple(
            _name_suspect(picture, accusation, item, text.why) for item in accusation.suspects
        ),
        summary=f"{capitalise(text.summary(picture, accusation))}.",
        evidence=tuple(write_evidence(picture, reason) for reason in accusation.reasons),
        next_steps=write_advice(picture, accusation),
    )


def write_together(picture: Picture, accusations: Sequence[Accusation]) -> Written:
    """Make the sentences of several faults: each suspect keeps its own cause."""
    first, *others = (write_accusation(picture, each) for each in accusations)
    also = "".join(
        f" Also {name_ranks(each.ranks)}: {format_cause(each.cause)}." for each in accusations[1:]
    )
    return Written(
        suspects=tuple(each for one in (first, *others) for each in one.suspects),
        summary=f"{first.summary}{also}",
        evidence=tuple(e for each in (first, *others) for e in each.evidence),
        next_steps=(*first.next_steps, *(step for each in others for step in each.next_steps[:1])),
    )


def _name_suspect(
    picture: Picture,
    accusation: Accusation,
    position: Position,
    why: Callable[[Picture, Accusation, Position], str],
) -> Suspect:
    where = where_of(position)
    if accusation.cause is Cause.GIL_HELD:
        owners = expect(accusation.about, GilOwners).by_rank
        where = owner_place(picture, owners[position.rank]) or where
    use = picture.gpu_use(position.rank)
    return Suspect(
        rank=position.rank,
        node=clean(position.evidence.node, 64),
        cause=accusation.cause,
        why=f"{capitalise(why(picture, accusation, position))}.",
        pid=position.evidence.pid,
        gpu=use.index if use is not None else None,
        where=where,
    )
