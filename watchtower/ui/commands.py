"""Commands to copy, for the scheduler of the job. watchtower itself never runs one.

The names in them come from the environment of the job, so each is quoted for the shell. A name with
characters that a terminal might interpret makes no command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from watchtower.store.values import JobFacts
from watchtower.wire.verdict import Domain

_PLAIN = re.compile(r"[ -~]{1,128}")
"""Printable ASCII: neither a line end nor an escape sequence, and no letter that imitates another
one."""

_OF_THE_NODE = (Domain.NODE, Domain.GPU, Domain.NETWORK)
"""Domains in which the node should get no new job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command, and what it does."""

    purpose: str
    text: str


def _slurm(job: str, node: str) -> list[Command]:
    commands = [
        Command(purpose="Requeue the job", text=f"scontrol requeue {job}"),
        Command(purpose="Cancel the job", text=f"scancel {job}"),
    ]
    if node:
        drain = f"scontrol update NodeName={node} State=DRAIN Reason=watchtower"
        return [Command(purpose="Drain the node", text=drain), *commands]
    return commands


def _pbs(job: str, node: str) -> list[Command]:
    commands = [
        Command(purpose="Requeue the job", text=f"qrerun {job}"),
        Command(purpose="Cancel the job", text=f"qdel {job}"),
    ]
    if node:
        return [Command(purpose="Take the node offline", text=f"pbsnodes -o {node}"), *commands]
    return commands


def _lsf(job: str, node: str) -> list[Command]:
    commands = [
        Command(purpose="Requeue the job", text=f"brequeue {job}"),
        Command(purpose="Cancel the job", text=f"bkill {job}"),
    ]
    if node:
        return [Command(purpose="Close the node", text=f"badmin hclose {node}"), *commands]
    return commands


def _flux(job: str, node: str) -> list[Command]:
    commands = [Command(purpose="Cancel the job", text=f"flux cancel {job}")]
    if node:
        return [Command(purpose="Drain the node", text=f"flux resource drain {node}"), *commands]
    return commands


_SCHEDULERS: dict[str, Callable[[str, str], list[Command]]] = {
    "slurm": _slurm,
    "pbs": _pbs,
    "lsf": _lsf,
    "flux": _flux,
}


def write_commands(facts: JobFacts, domain: Domain | None, node: str) -> list[Command]:
    """Return the commands for the scheduler of a job; none if it is not known here.

    `node` is the one node of all suspects; empty if there is none.
    """
    write = _SCHEDULERS.get(facts.scheduler)
    job = _quote(facts.scheduler_id)
    if write is None or not job:
        return []
    return write(job, _quote(node) if domain in _OF_THE_NODE else "")


def _quote(name: str) -> str:
    """Return a name for the shell; empty for a name that makes no command.

    A name that begins with a dash would be an option.
    """
    is_usable = _PLAIN.fullmatch(name) is not None and not name.startswith("-")
    return shlex.quote(name) if is_usable else ""
