"""All rules, one cause a file, in the order that has meaning.

First by tier: what cannot answer at all explains every wait, so it comes before set-up, and set-up
before what stacks say. Inside a tier a finding with more confidence wins; between equals the order
below decides, from the reason that excludes the most to the one that says the least:

1. how a process ended, the kernel's own word (OOM) before an exception before a bare exit code,
   and an exit with 0 last, because only the others' waiting makes it a fault;
2. a node that is gone with all its ranks: nothing of it can be asked;
3. what keeps a living process from running, the deliberate ones (stop, trace) first, then a frozen
   cgroup, which looks like state D, then D itself;
4. who never came, before who came and stays outside of set-up;
5. what the user's code is in: named work (data, checkpoint) before unnamed waits (lock, busy,
   network), and last the bare fact of being elsewhere;
6. ranks that all wait: a message left out, calls that do not fit together, and last that nobody is
   to blame.
"""

from __future__ import annotations

from collections.abc import Callable

from watchtower.core.diagnosis.finding import Finding
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.rules import (
    behind_collective,
    busy_loop,
    checkpoint_stall,
    collective_cycle,
    conditional_collective,
    dataloader_stall,
    exception,
    exited_early,
    gil_held,
    init_stuck,
    lock_deadlock,
    mismatched_collective,
    missing_send,
    network_wait,
    never_started,
    node_lost,
    oom_killed,
    process_died,
    process_frozen,
    process_stopped,
    process_traced,
    straggler,
    symmetric_hang,
    uneven_inputs,
    uninterruptible_io,
)

Rule = Callable[[Picture], Finding | None]

RULES: tuple[tuple[str, Rule], ...] = (
    ("oom_killed", oom_killed.find),
    ("exception", exception.find),
    ("process_died", process_died.find),
    ("exited_early", exited_early.find),
    ("node_lost", node_lost.find),
    ("process_stopped", process_stopped.find),
    ("process_traced", process_traced.find),
    ("process_frozen", process_frozen.find),
    ("uninterruptible_io", uninterruptible_io.find),
    ("never_started", never_started.find),
    ("init_stuck", init_stuck.find),
    ("dataloader_stall", dataloader_stall.find),
    ("checkpoint_stall", checkpoint_stall.find),
    ("gil_held", gil_held.find),
    ("lock_deadlock", lock_deadlock.find),
    ("busy_loop", busy_loop.find),
    ("network_wait", network_wait.find),
    ("behind_collective", behind_collective.find),
    ("missing_send", missing_send.find),
    ("collective_cycle", collective_cycle.find),
    ("mismatched_collective", mismatched_collective.find),
    ("uneven_inputs", uneven_inputs.find),
    ("conditional_collective", conditional_collective.find),
    ("symmetric_hang", symmetric_hang.find),
)
"""For jobs whose steps do not come."""

SLOW_RULES: tuple[tuple[str, Rule], ...] = (("straggler", straggler.find),)
"""For jobs whose steps come late."""
