"""Ranks that share a GPU by mistake: the node has others for them that no process uses.

NCCL refuses such ranks or waits for ever, and their memory does not fit. A job that has made steps
works with a shared GPU: then only a lack of its memory is explained by that.
"""

from __future__ import annotations

from dataclasses import replace

from watchtower.diagnosis.accusation import Accusation, Reason, Tier
from watchtower.diagnosis.blame import has_begun
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.reasons import same_call_reason
from watchtower.diagnosis.separation import do_all_wait
from watchtower.evidence.shared_gpus import SharedGpu
from watchtower.wire.verdict import Cause
from watchtower.writing.ranksets import name_ranks
from watchtower.writing.text import join_sentences

SHARES_WEIGHT = 0.85
"""Ranks that share a GPU while others are free. Only a program that means to do so goes on."""

WAIT_WEIGHT = 0.5

OF_SHARED = frozenset(
    {"cuda_memory", "cuda_memory_shared", "nccl_same_gpu", "nccl_invalid_argument"}
)
"""Errors that follow from a shared GPU (`error_texts.toml`)."""

GIVE_EACH_ITS_OWN = (
    "give each rank a GPU of its own: `torch.cuda.set_device(LOCAL_RANK)` before "
    "`init_process_group` and before anything that uses CUDA"
)
CHECK_VISIBLE = (
    "compare CUDA_VISIBLE_DEVICES and LOCAL_RANK of the ranks on {node} with `nvidia-smi`, which "
    "shows the processes of each GPU"
)


def find_waiting(picture: Picture) -> Accusation | None:
    """Accuse ranks that share a GPU, if all ranks wait before their first step."""
    if not picture.shared_gpus or has_begun(picture) or not do_all_wait(picture):
        return None
    shared = picture.shared_gpus[0]
    return Accusation(
        cause=Cause.MISCONFIGURED,
        tier=Tier.NEVER_CAME,
        suspects=tuple(picture.by_rank[rank] for rank in shared.ranks),
        reasons=(_reason(shared), same_call_reason(picture, WAIT_WEIGHT)),
        why=lambda _: _write(shared),
        summary=_write(shared),
        advice=(GIVE_EACH_ITS_OWN, CHECK_VISIBLE),
    )


def find_reason_of_end(picture: Picture) -> SharedGpu | None:
    """Return the GPU whose memory was too small for all that share it, or that NCCL refused to
    share, if a rank ended because of that."""
    deaths = picture.first_hand.deaths if picture.shared_gpus else ()
    ended = {death.rank for death in deaths if death.error.name in OF_SHARED}
    return next((each for each in picture.shared_gpus if ended & set(each.ranks)), None)


def explain_end(found: Accusation, shared: SharedGpu) -> Accusation:
    """Return the accusation of ranks that ended, with the reason why they did."""
    return replace(
        found,
        cause=Cause.MISCONFIGURED,
        reasons=(_reason(shared), *found.reasons),
        summary=join_sentences(found.summary, _write(shared)),
        advice=(GIVE_EACH_ITS_OWN, CHECK_VISIBLE),
    )


def _write(shared: SharedGpu) -> str:
    return f"{name_ranks(shared.ranks)} use {shared.describe()}"


def _reason(shared: SharedGpu) -> Reason:
    return Reason("gpu", SHARES_WEIGHT, shared.ranks, _write(shared))
