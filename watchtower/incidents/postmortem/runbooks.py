"""How each cause is fixed and prevented: the pages of `docs/runbooks/causes`, as the release has
them. `make docs` copies them into `runbooks.toml`, because an installed tower has no `docs`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from watchtower.service.toml_tables import read_table
from watchtower.wire.verdict import Cause
from watchtower.writing.documents import Code, Paragraph, Part
from watchtower.writing.text import quote_name

_WORD = re.compile(r"\b[A-Z]+\b")
"""A word in capital letters: it may stand for a name."""

_PAGES: dict[str, dict[str, str]] = read_table("watchtower.incidents.postmortem", "runbooks")

Names = Mapping[str, str]
"""Names by the word that stands for them in a command: `NODE`, `JOB`. Empty: not known."""

SIMILAR_DRILLS = {
    Cause.BEHIND_COLLECTIVE: "kernel_without_end",
    Cause.BUSY_LOOP: "busy_loop",
    Cause.CHECKPOINT_STALL: "checkpoint_fifo",
    Cause.COLLECTIVE_CYCLE: "collective_cycle",
    Cause.CONDITIONAL_COLLECTIVE: "conditional_collective",
    Cause.DATALOADER_STALL: "dataloader_sleep",
    Cause.EXCEPTION: "exception",
    Cause.EXITED_EARLY: "exit_zero",
    Cause.GPU_DRIVER_STUCK: "nvml_hang",
    Cause.GPU_FAULT: "xid_79",
    Cause.INIT_STUCK: "init_sleep",
    Cause.LOCK_DEADLOCK: "lock_deadlock",
    Cause.MISMATCHED_COLLECTIVE: "order_swap",
    Cause.MISSING_SEND: "missing_send",
    Cause.NEVER_STARTED: "never_started",
    Cause.NODE_LOST: "node_lost",
    Cause.OOM_KILLED: "cgroup_oom",
    Cause.PROCESS_DIED: "sigkill",
    Cause.PROCESS_FROZEN: "frozen",
    Cause.PROCESS_STOPPED: "sigstop",
    Cause.PROCESS_TRACED: "debugger",
    Cause.STRAGGLER: "straggler",
    Cause.SYMMETRIC_HANG: "device_stuck",
    Cause.UNEVEN_INPUTS: "uneven_inputs",
    Cause.UNINTERRUPTIBLE_IO: "d_state",
}
"""The drill that hangs a job in a similar way, by cause. Other causes have no drill."""


def explain_fix(cause: Cause, names: Names) -> tuple[Part, ...]:
    """Return how a cause is fixed."""
    return _read(cause, "fix", names)


def explain_prevention(cause: Cause, names: Names) -> tuple[Part, ...]:
    """Return how a cause is prevented."""
    return _read(cause, "prevent", names)


def _read(cause: Cause, part: str, names: Names) -> tuple[Part, ...]:
    """Return the text and the commands of one part of a page."""
    text, _, rest = _PAGES[cause.value][part].partition("```console\n")
    commands = _fill(rest.partition("```")[0].strip("\n"), names)
    after = rest.partition("```")[2].strip()
    parts: list[Part] = [Paragraph(" ".join(text.split()))]
    parts += [Code(tuple(commands.split("\n")))] if commands else []
    parts += [Paragraph(" ".join(after.split()))] if after else []
    return tuple(parts)


def _fill(commands: str, names: Names) -> str:
    """Put names into commands. A word stays if its name is not known, or makes no command."""
    return _WORD.sub(lambda word: quote_name(names.get(word[0], "")) or word[0], commands)
