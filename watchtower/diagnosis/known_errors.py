"""What the known text of an error adds to an accusation: its meaning, its advice, and what
collectors observed of the same fault on the node or the GPU of the rank. All of it is one fault."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from watchtower.diagnosis.accusation import Reason, Source
from watchtower.diagnosis.deaths import Death
from watchtower.evidence.error_texts import ERROR_TEXTS, Blames, ErrorText, Strength
from watchtower.evidence.observed import GPU_SUBJECTS
from watchtower.wire.observations import NODE, Observation
from watchtower.writing.text import clean

BESIDE_WEIGHT = 0.8
"""That a collector shows the same fault as the text."""

MAX_BESIDE = 2
"""Observations that are named beside one error."""


def explain_error(death: Death) -> Iterator[str]:
    """Yield sentences: what the error means, and what was observed beside it."""
    row = _find_row(death)
    if row.names_fault:
        yield row.means
    yield from (_write(death, each) for each in death.beside[:MAX_BESIDE])


def beside_reasons(death: Death) -> Iterator[Reason]:
    """Yield a reason for each observation beside the error."""
    for each in death.beside[:MAX_BESIDE]:
        text = f"rank {death.rank} reports the same fault as its node: {_write(death, each)}"
        yield Reason(_source_of(each), BESIDE_WEIGHT, (death.rank,), text)


def advise_on_error(death: Death, usual: Sequence[str]) -> tuple[str, ...]:
    """Return what helps. To read the traceback helps only if the program is to blame."""
    row = _find_row(death)
    if not row.names_fault or not row.advice:
        return tuple(usual)
    return (row.advice, *(usual if row.blames is Blames.RANK else usual[-1:]))


def _find_row(death: Death) -> ErrorText:
    """Return what the text shows. What is beside a general text chooses a special row."""
    row = death.error
    if row.strength is not Strength.SUPPORTS or not death.beside:
        return row
    special = (
        each
        for each in ERROR_TEXTS
        if each.strength is Strength.DECIDES and each.is_beside(death.beside[0].name)
    )
    return next(special, row)


def _write(death: Death, observation: Observation) -> str:
    """Return "on gpu-01, /dev/shm is full" or "GPU 0000:3b:00 of gpu-01: 2 uncorrected errors"."""
    node, text = clean(death.node, 64), clean(observation.text, 160)
    if _is_about_gpu(observation):
        return f"GPU {clean(observation.subject.partition(':')[2], 32)} of {node}: {text}"
    return f"on {node}, {text}"


def _is_about_gpu(observation: Observation) -> bool:
    return observation.subject.startswith(GPU_SUBJECTS)


def _source_of(observation: Observation) -> Source:
    if observation.subject == NODE:
        return "node"
    return "gpu" if _is_about_gpu(observation) else "network"
