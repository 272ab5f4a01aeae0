"""All rules in the order that has meaning; each is named after the cause that it gives.

First by tier: what cannot answer at all explains every wait, so it comes before set-up, and set-up
before what stacks say. Inside a tier an accusation with more confidence wins; between equals the
order below decides, from the reason that excludes the most to the one that says the least:

1. how a process ended, the kernel's own word (OOM) before an exception before a bare exit code,
   and an exit with 0 last, because only the others' waiting makes it a fault;
2. a node that is gone with all its ranks: nothing of it can be asked; then a driver that does not
   answer, and a GPU with an error;
3. what keeps a living process from running, the deliberate ones (stop, trace) first, then a frozen
   cgroup, which looks like state D, then D itself;
4. ranks that never came, before those that came and stay outside of set-up;
5. what the user's code is in: named work (data, checkpoint) before unnamed waits (lock, busy,
   network), and last the bare fact of being elsewhere;
6. ranks that all wait: a message left out, calls that do not fit together, and last that no rank is
   to blame: a link that failed, then no known reason.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from watchtower.diagnosis.accusation import Accusation
from watchtower.diagnosis.causes import (
    behind_collective,
    collective_cycle,
    fabric_fault,
    gil_held,
    gpu_driver_stuck,
    gpu_fault,
    missing_send,
    node_lost,
    odd_gpu,
    straggler,
    symmetric_hang,
)
from watchtower.diagnosis.causes.activities import find_activity
from watchtower.diagnosis.causes.ended import find_ended, find_exited_early
from watchtower.diagnosis.causes.held import find_held
from watchtower.diagnosis.causes.set_up import find_init_stuck, find_never_started
from watchtower.diagnosis.causes.splits import find_split
from watchtower.diagnosis.picture import Picture
from watchtower.wire.verdict import Cause

Rule = Callable[[Picture], Accusation | None]


def find_gpu_fault(picture: Picture) -> Accusation | None:
    """Accuse a GPU that reported an error, else one that has no work while all others wait, else
    one that something else separates from the others."""
    return (
        gpu_fault.find(picture)
        or odd_gpu.find_failed(picture)
        or symmetric_hang.find_separated(picture, Cause.GPU_FAULT)
    )


def find_behind(picture: Picture) -> Accusation | None:
    """Accuse ranks that are elsewhere, else one whose GPU still works, else one that something
    else separates from the others."""
    return (
        behind_collective.find(picture)
        or odd_gpu.find_working(picture)
        or symmetric_hang.find_separated(picture, Cause.BEHIND_COLLECTIVE)
    )


RULES: tuple[tuple[str, Rule], ...] = (
    ("oom_killed", partial(find_ended, Cause.OOM_KILLED)),
    ("exception", partial(find_ended, Cause.EXCEPTION)),
    ("process_died", partial(find_ended, Cause.PROCESS_DIED)),
    ("exited_early", find_exited_early),
    ("node_lost", node_lost.find),
    ("gpu_driver_stuck", gpu_driver_stuck.find),
    ("gpu_fault", find_gpu_fault),
    ("process_stopped", partial(find_held, Cause.PROCESS_STOPPED)),
    ("process_traced", partial(find_held, Cause.PROCESS_TRACED)),
    ("process_frozen", partial(find_held, Cause.PROCESS_FROZEN)),
    ("uninterruptible_io", partial(find_held, Cause.UNINTERRUPTIBLE_IO)),
    ("never_started", find_never_started),
    ("init_stuck", find_init_stuck),
    ("dataloader_stall", partial(find_activity, Cause.DATALOADER_STALL)),
    ("checkpoint_stall", partial(find_activity, Cause.CHECKPOINT_STALL)),
    ("gil_held", gil_held.find),
    ("lock_deadlock", partial(find_activity, Cause.LOCK_DEADLOCK)),
    ("busy_loop", partial(find_activity, Cause.BUSY_LOOP)),
    ("network_wait", partial(find_activity, Cause.NETWORK_WAIT)),
    ("behind_collective", find_behind),
    ("missing_send", missing_send.find),
    ("collective_cycle", collective_cycle.find),
    ("mismatched_collective", partial(find_split, Cause.MISMATCHED_COLLECTIVE)),
    ("uneven_inputs", partial(find_split, Cause.UNEVEN_INPUTS)),
    ("conditional_collective", partial(find_split, Cause.CONDITIONAL_COLLECTIVE)),
    ("fabric_fault", fabric_fault.find),
    ("symmetric_hang", symmetric_hang.find),
)
"""For jobs whose steps do not come."""

SLOW_RULES: tuple[tuple[str, Rule], ...] = (("straggler", straggler.find),)
"""For jobs whose steps come late."""
