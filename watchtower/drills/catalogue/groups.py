"""Jobs with several process groups, in which one rank delays groups of which it is not a member."""

from __future__ import annotations

from watchtower.drills.catalogue.stalls import event, happen
from watchtower.drills.drill import Drill
from watchtower.drills.setup import TORCH_BACKENDS, names


def _pair_of(rank: int) -> tuple[int, int]:
    first = rank - rank % 2
    return first, first + 1


TP_DP_CASCADE = Drill(
    name="tp_dp_cascade",
    shows="one rank sleeps while it fetches a batch: its tensor-parallel partner waits for it, and"
    " data-parallel groups for both",
    expected=names("dataloader_stall", domain="data"),
    plan=event("slow_storage"),
    parallelism="grid",
    least_ranks=4,
    whole_pairs=True,
    act=happen,
)

COLLECTIVE_CYCLE = Drill(
    name="collective_cycle",
    shows="two ranks enter the collectives of two groups of theirs in opposite order",
    expected=names("collective_cycle", domain="user_code"),
    plan=event("reverse_exchanges", exchanges=["share_norm", "share_scale"]),
    parallelism="grid",
    blames=_pair_of,
    least_ranks=4,
    whole_pairs=True,
    # Only collective logs show that the two wait for each other; the ring has none.
    backends=TORCH_BACKENDS,
    act=happen,
)

MISSING_SEND = Drill(
    name="missing_send",
    shows="one stage of a pipeline skips a send, and its neighbour and it wait for each other",
    expected=names("missing_send", domain="user_code"),
    plan=event("silence_output"),
    parallelism="pipeline",
    backends=TORCH_BACKENDS,
    act=happen,
)

PIPELINE_STAGE_SLEEP = Drill(
    name="pipeline_stage_sleep",
    shows="one stage of a pipeline sleeps while it fetches a batch",
    expected=names("dataloader_stall", domain="data"),
    plan=event("slow_storage"),
    parallelism="pipeline",
    backends=TORCH_BACKENDS,
    act=happen,
)
