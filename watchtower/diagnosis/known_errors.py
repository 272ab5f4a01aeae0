"""What the known text of an error adds to an accusation: its meaning, its advice, and what
collectors observed of the same fault on the node or the GPU of the rank. All of it is one fault."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from watchtower.diagnosis.accusation import Reason, Source
from watchtower.diagnosis.deaths import Death
from watchtower.diagnosis.position import Position
from watchtower.evidence.error_texts import (
    ERROR_TEXTS,
    OWN,
    Blames,
    ErrorText,
    Strength,
    read_error,
)
from watchtower.evidence.observed import GPU_SUBJECTS
from watchtower.wire.observations import NODE, Observation
from watchtower.writing.text import clean

BESIDE_WEIGHT = 0.8
"""That a collector shows the same fault as the text."""

MAX_BESIDE = 2
"""Observations that are named beside one error."""


@dataclass(frozen=True, slots=True)
class KnownError:
    """The error of one rank."""

    rank: int
    node: str
    row: ErrorText
    beside: tuple[Observation, ...] = ()
    """What collectors observed of the same fault, the latest first."""

    @property
    def sentences(self) -> Iterator[str]:
        """What the error means, and what was observed beside it."""
        if self.row.names_fault:
            yield self.row.means
        yield from map(self._write, self.beside)

    @property
    def reasons(self) -> Iterator[Reason]:
        """A reason for each observation beside the error."""
        for each in self.beside:
            text = f"rank {self.rank} reports the same fault as its node: {self._write(each)}"
            yield Reason(_source_of(each), BESIDE_WEIGHT, (self.rank,), text)

    def advise(self, usual: Sequence[str]) -> tuple[str, ...]:
        """Return what helps. To read the traceback helps only if the program is to blame."""
        if not self.row.names_fault or not self.row.advice:
            return tuple(usual)
        return (self.row.advice, *(usual if self.row.blames is Blames.RANK else usual[-1:]))

    def _write(self, observation: Observation) -> str:
        """Return "on gpu-01, /dev/shm is full" or "GPU 0000:3b:00 of gpu-01: 2 errors"."""
        node, text = clean(self.node, 64), clean(observation.text, 160)
        if _is_about_gpu(observation):
            return f"GPU {clean(observation.subject.partition(':')[2], 32)} of {node}: {text}"
        return f"on {node}, {text}"


def know_death(death: Death) -> KnownError:
    """Return the error by which a rank has ended."""
    beside = death.beside[:MAX_BESIDE]
    return KnownError(death.rank, death.node, _choose_row(death.error, beside), beside)


def know_last_words(position: Position) -> KnownError:
    """Return the error that a rank has raised whose process has not ended."""
    evidence = position.evidence
    row = OWN
    if evidence.beat is not None and evidence.beat.exception_type:
        row = read_error(evidence.beat.exception_type, evidence.beat.exception_text)
    return KnownError(position.rank, evidence.node, row)


def _choose_row(row: ErrorText, beside: Sequence[Observation]) -> ErrorText:
    """Return what the text shows. What is beside a general text, or none, chooses a special row."""
    if not beside or (row is not OWN and row.strength is not Strength.SUPPORTS):
        return row
    special = (
        each
        for each in ERROR_TEXTS
        if each.strength is Strength.DECIDES and each.is_beside(beside[0].name)
    )
    return next(special, row)


def _is_about_gpu(observation: Observation) -> bool:
    return observation.subject.startswith(GPU_SUBJECTS)


def _source_of(observation: Observation) -> Source:
    if observation.subject == NODE:
        return "node"
    return "gpu" if _is_about_gpu(observation) else "network"
