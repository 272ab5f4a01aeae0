"""Commands for the scheduler of the job. Pages show them; `watchtower requeue` runs those of Slurm.

The names in them come from the environment of the job, so each is quoted for the shell. A name with
characters that a terminal might interpret makes no command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from watchtower.incidents.incident import JobFacts
from watchtower.wire.verdict import Domain
from watchtower.writing.text import quote_name

NAMESPACE = "NAMESPACE"
"""Stands in a command for a namespace that is not known. No namespace of Kubernetes has capital
letters, so the command fails until it is replaced."""

OF_THE_NODE = frozenset({Domain.NODE, Domain.GPU, Domain.NETWORK})
"""Domains in which the node should get no new job."""

ELSEWHERE = OF_THE_NODE | {Domain.STORAGE}
"""Domains in which the job may work on other nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command, and what it does."""

    purpose: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    """Names for the shell. Empty: not known, or not usable."""

    job: str
    namespace: str
    avoided: str
    """The node without which the job should start again."""
    drained: str
    """The node that should get no new job."""


def requeue_without(job: str, nodes: str) -> tuple[tuple[str, ...], ...]:
    """Return the three commands that start a job of Slurm again without nodes, as words.

    A job must be pending while its list of excluded nodes changes. It becomes so when its last
    process has ended, which may take minutes: in one line, the second step would fail.
    """
    return (
        ("scontrol", "requeuehold", job),
        ("scontrol", "update", f"JobId={job}", f"ExcNodeList={nodes}"),
        ("scontrol", "release", job),
    )


def _slurm(names: _Names) -> Iterator[Command]:
    job, node = names.job, names.avoided
    if names.drained:
        drain = f"scontrol update NodeName={names.drained} State=DRAIN Reason=watchtower"
        yield Command(purpose=f"Drain {names.drained} (operators only)", text=drain)
    if node:
        purposes = (
            f"Requeue the job without {node}, in three steps: requeue and hold it",
            f"Once it is pending, exclude {node} (replaces the list of excluded nodes)",
            "Release the job (it stays held until then)",
        )
        for purpose, words in zip(purposes, requeue_without(job, node), strict=True):
            yield Command(purpose=purpose, text=" ".join(words))
    else:
        yield Command(purpose="Requeue the job", text=f"scontrol requeue {job}")
    yield Command(purpose="Cancel the job", text=f"scancel {job}")


def _pbs(names: _Names) -> Iterator[Command]:
    if names.avoided:
        offline = f"pbsnodes -o {names.avoided}"
        yield Command(purpose=f"Take {names.avoided} offline first (operators only)", text=offline)
    yield Command(purpose="Requeue the job (operators only)", text=f"qrerun {names.job}")
    yield Command(purpose="Cancel the job", text=f"qdel {names.job}")


def _lsf(names: _Names) -> Iterator[Command]:
    if names.avoided:
        close = f"badmin hclose {names.avoided}"
        yield Command(purpose=f"Close {names.avoided} first (administrators only)", text=close)
    yield Command(purpose="Requeue the job", text=f"brequeue {names.job}")
    yield Command(purpose="Cancel the job", text=f"bkill {names.job}")


def _flux(names: _Names) -> Iterator[Command]:
    if names.avoided:
        drain = f"flux resource drain {names.avoided}"
        yield Command(purpose=f"Drain {names.avoided} first (operators only)", text=drain)
    yield Command(purpose="Cancel the job", text=f"flux cancel {names.job}")


def _ray(names: _Names) -> Iterator[Command]:
    purpose = "Stop the job (only if it was started with `ray job submit`)"
    yield Command(purpose=purpose, text=f"ray job stop {names.job}")


def _jobset(names: _Names) -> Iterator[Command]:
    yield from _cordon(names)
    # Without a namespace, the same name may mean another JobSet.
    job = f"jobset {names.job} -n {names.namespace or NAMESPACE}"
    note = "" if names.namespace else f" (replace {NAMESPACE}: it is not known)"
    patch = f"kubectl patch {job} --type=merge -p"
    end, start = (f"""{patch} '{{"spec":{{"suspend":{value}}}}}'""" for value in ("true", "false"))
    yield Command(purpose=f"End its pods{note}", text=end)
    yield Command(purpose=f"Start them again{note}", text=start)
    yield Command(purpose=f"Delete the JobSet{note}", text=f"kubectl delete {job}")


def _kubernetes(names: _Names) -> Iterator[Command]:
    """Commands for pods of which no controller is known."""
    yield from _cordon(names)
    if names.avoided:
        find = (
            f"kubectl get pods -n {names.namespace} --field-selector spec.nodeName={names.avoided}"
        )
        yield Command(purpose=f"Find its pods on {names.avoided}", text=find)


def _cordon(names: _Names) -> Iterator[Command]:
    if names.avoided:
        purpose = f"Keep new pods off {names.avoided} first (administrators only)"
        yield Command(purpose=purpose, text=f"kubectl cordon {names.avoided}")


_SCHEDULERS: dict[str, Callable[[_Names], Iterator[Command]]] = {
    "slurm": _slurm,
    "pbs": _pbs,
    "lsf": _lsf,
    "flux": _flux,
    "ray": _ray,
    "jobset": _jobset,
}


def write_commands(facts: JobFacts, domain: Domain | None, node: str) -> list[Command]:
    """Return the commands for the scheduler of a job; none if it is not known here.

    `node` is the one node of all suspects; empty if there is none.
    """
    names = _Names(
        job=quote_name(facts.scheduler_id),
        namespace=quote_name(facts.namespace),
        avoided=quote_name(node) if domain in ELSEWHERE else "",
        drained=quote_name(node) if domain in OF_THE_NODE else "",
    )
    write = _SCHEDULERS.get(facts.scheduler)
    if write is not None:
        return list(write(names)) if names.job else []
    return list(_kubernetes(names)) if names.namespace else []
