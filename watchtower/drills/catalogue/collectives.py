"""Ranks that call other collectives than their peers or delay groups of others, and a network that
fails for all of them."""

from __future__ import annotations

from watchtower.drills.catalogue.stalls import event, happen
from watchtower.drills.drill_run import Drill, DrillRun
from watchtower.drills.setup import BACKENDS, TORCH_BACKENDS, Plan, Variables, names


def _plan_uneven(variables: Variables) -> Plan:
    # Reported just before the rank would read the batch that only the others have.
    return {**event("lack_batch")(variables), "batches": variables.step + 1}


def _cut_all(run: DrillRun) -> None:
    run.launch()
    run.warm_up()
    run.cut_all()
    run.cannot_tell_links_from_devices()
    run.fault("every link is cut at once, and all ranks go into a collective that cannot end")
    run.wait_for_final()


UNEVEN_INPUTS = Drill(
    name="uneven_inputs",
    shows="one rank has a batch fewer, leaves the loop and waits at the barrier after it",
    expected=names("uneven_inputs", domain="data"),
    plan=_plan_uneven,
    act=happen,
)

CONDITIONAL_COLLECTIVE = Drill(
    name="conditional_collective",
    shows="one rank sees a bad loss and enters a barrier that only a bad loss leads to",
    expected=names("conditional_collective", domain="user_code"),
    # Two steps later the loss of every rank is NaN, so each step must read its own.
    plan=event("wrong_unit", read_every=1),
    act=happen,
)

ORDER_SWAP = Drill(
    name="order_swap",
    shows="one rank calls two collectives in the other order",
    expected=names("mismatched_collective", domain="user_code"),
    plan=event("reverse_exchanges", exchanges=["share_loss", "compare_progress"]),
    # Only collective logs distinguish it from a collective of one rank; the ring has none.
    backends=TORCH_BACKENDS,
    act=happen,
)

SHAPE_MISMATCH = Drill(
    name="shape_mismatch",
    shows="one rank sums a table twice as long as the others' (both sent in whole buffers)",
    expected=names("mismatched_collective", domain="user_code"),
    # gloo ends the job if one message is longer than expected, but it sends large tensors in
    # buffers of 1 MiB. Twice as many buffers of the same size leave one side waiting. The ring
    # raises.
    plan=event("grow_vocabulary", exchanges=["count_words"]),
    backends=TORCH_BACKENDS,
    act=happen,
)

AFTER_MONITORED_BARRIER = Drill(
    name="after_monitored_barrier",
    shows="all ranks pass a monitored_barrier once; later one rank sleeps in the user's code",
    expected=names("behind_collective", domain="user_code"),
    # gloo has no record of the barrier, so each rank's log has a hole until the next call is over.
    plan=event("wait_for_quota", checks_ranks=True),
    backends=("torch",),
    act=happen,
)

LOADER_AFTER_MONITORED_BARRIER = Drill(
    name="loader_after_monitored_barrier",
    shows="all ranks pass a monitored_barrier once; later one rank sleeps while it fetches a batch",
    expected=names("dataloader_stall", domain="data"),
    plan=event("slow_storage", checks_ranks=True),
    backends=("torch",),
    act=happen,
)

SYMMETRIC = Drill(
    name="symmetric",
    shows="every rank is in the same collective and the network is cut (needs root)",
    expected=names("symmetric_hang", domain="network"),
    networked=BACKENDS,
    blames=lambda _: (),
    act=_cut_all,
)


LOWERED_MTU = 1200
"""Bytes: the messages of a barrier and of small gradients are shorter, those of a table are not."""


def _lower_mtu(run: DrillRun) -> None:
    """Lower the MTU of one rank's interface. Its neighbour in the ring of gloo sends to it."""
    run.launch()
    run.warm_up()
    run.fault(f"the MTU of rank {run.rank} becomes {LOWERED_MTU}")
    run.ranks = tuple(sorted({run.rank, (run.rank + 1) % run.job.layout.ranks}))
    if run.job.network:
        run.job.network.lower_mtu(run.rank, LOWERED_MTU)
    run.wait_for_final()


MTU_MISMATCH = Drill(
    name="mtu_mismatch",
    shows="the network interface of one rank takes only small packets: large messages get lost",
    expected=names("misconfigured", str(LOWERED_MTU), "1500", domain="network"),
    plan=lambda _: {"exchanges": ["count_words"]},
    backends=("torch",),
    networked=("torch",),
    act=_lower_mtu,
)


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
