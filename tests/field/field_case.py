"""A case of the field: files as people have them, and the right answer.

The texts are written for these tests from the shapes that torch, NCCL and launchers print.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from watchtower.commands.evidence_files import find_files, read_files
from watchtower.diagnosis.diagnosed import Diagnosis
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.fleet.found_case import make_case
from watchtower.fleet.found_files import sort_findings


@dataclass(frozen=True)
class FieldCase:
    """Files by name, and the answer that the people in the thread found, or what is missing."""

    name: str
    report: str
    """The public report that has this form, or what the case is for."""
    files: Mapping[str, str | bytes]
    suspects: frozenset[int] = field(default_factory=frozenset)
    """The ranks that a right verdict names. Empty: no rank may be named."""
    cause: str = ""
    """The cause; empty if any is right."""
    candidates: frozenset[int] = field(default_factory=frozenset)
    """Ranks of which one must be among the candidates of an uncertain verdict."""
    words: tuple[str, ...] = ()
    """Words that the text must have."""


def write(case: FieldCase, folder: Path) -> Path:
    """Write the files of a case into a folder."""
    for name, content in case.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def diagnose_folder(folder: Path) -> Diagnosis:
    """Return the verdict on the files of a folder."""
    files = list(read_files(find_files([folder]), root=folder))
    return diagnose(make_case("job", sort_findings(files)))


def watchdog(
    rank: int,
    number: int,
    operation: str = "ALLREDUCE",
    numel: int = 1000,
    *,
    group: str = "",
    group_rank: int | None = None,
    prefix: str | None = None,
) -> str:
    """Return the line of torch's watchdog about a collective that did not end."""
    who = f"Rank {rank if group_rank is None else group_rank}"
    who = f"PG ID 1 PG GUID {group} {who}" if group else who
    head = (
        f"[rank{rank}]:[E626 06:24:44.903881910 ProcessGroupNCCL.cpp:616] "
        if prefix is None
        else prefix
    )
    return (
        f"{head}[{who}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number}, "
        f"OpType={operation}, NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000) "
        "ran for 600020 milliseconds before timing out.\n"
    )


def enqueued(rank: int, at: int, last: int, completed: int) -> str:
    """Return the line of torch 2.5 and newer about where the watchdog found an error."""
    return (
        f"[rank{rank}]:[E626 06:24:45.1 ProcessGroupNCCL.cpp:1834] [PG ID 0 PG GUID 0(default_pg) "
        f"Rank {rank}] Exception (either an error or timeout) detected by watchdog at work: {at}, "
        f"last enqueued NCCL work: {last}, last completed NCCL work: {completed}.\n"
    )
