"""Puts the sentences of the chosen accusations together; it decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from watchtower.diagnosis.accusation import Accusation
from watchtower.diagnosis.advice import Step, write_advice
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position
from watchtower.diagnosis.words import name_rank, where_of, write_likewise, write_others
from watchtower.wire.observations import Observation
from watchtower.wire.verdict import Cause, Doubt, Evidence, Suspect
from watchtower.writing.cause_names import format_cause
from watchtower.writing.ranksets import format_ranks, name_ranks
from watchtower.writing.text import capitalise, clean, join_sentences

MAX_DOUBTS = 4
"""Doubts of one verdict, those that limit the confidence most."""

MAX_RANKS = 60
"""Most characters of a rank set in a doubt."""


@dataclass(frozen=True, slots=True)
class Written:
    """An accusation in words."""

    suspects: tuple[Suspect, ...]
    summary: str
    evidence: tuple[Evidence, ...]
    next_steps: tuple[Step, ...]
    quoted: tuple[Observation, ...] = ()
    """Observations that the sentences contain."""


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
    return Written(
        suspects=tuple(_name_suspect(picture, accusation, each) for each in accusation.suspects),
        summary=f"{capitalise(accusation.summary or _summarise(picture, accusation))}.",
        evidence=tuple(
            Evidence(
                source=each.source,
                text=each.text,
                ranks=format_ranks(each.ranks),
                weight=each.weight,
            )
            for each in accusation.reasons
        ),
        next_steps=write_advice(picture, accusation),
        quoted=accusation.quoted,
    )


def _summarise(picture: Picture, accusation: Accusation) -> str:
    """Return a summary about the first suspect, those like it, and the ranks that wait."""
    first = accusation.suspects[0]
    return join_sentences(
        f"{name_rank(first)} {accusation.why(first)}",
        write_likewise(accusation.suspects),
        write_others(picture, accusation.suspects),
    )


def _name_suspect(picture: Picture, accusation: Accusation, position: Position) -> Suspect:
    where = accusation.where(position) if accusation.where else None
    use = picture.gpu_use(position.rank)
    return Suspect(
        rank=position.rank,
        node=clean(position.evidence.node, 64),
        cause=accusation.cause,
        why=f"{capitalise(accusation.why(position))}.",
        pid=position.evidence.pid,
        gpu=use.index if use is not None else None,
        where=where or where_of(position),
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
        quoted=tuple(o for each in (first, *others) for o in each.quoted),
    )


def write_doubts(picture: Picture, accusation: Accusation) -> tuple[Doubt, ...]:
    """Return the doubts that limit the confidence, the lowest ceiling first."""
    unseen = [item.rank for item in picture.unseen]
    names = {
        "suspects": clean(name_ranks(accusation.ranks), MAX_RANKS) if accusation.suspects else "",
        "unseen": clean(name_ranks(unseen), MAX_RANKS) if unseen else "",
    }
    return tuple(
        Doubt(kind=each.kind, text=each.text.format_map(names))
        for each in accusation.limits[:MAX_DOUBTS]
    )
