"""The evidence of one hung job, in a folder: what watchtower had, and raw flight recorder dumps.

incident.json       the incident as `watchtower export` writes it, its case among it
records_3.json      what rank 3's torch answers to `fr_trace_json`
groups_3.json       rank 3's process groups: [name in the records, global ranks]
missing.json        {"3": why there is no dump of rank 3}
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from watchtower.core.case import Case

INCIDENT = "incident.json"
MISSING = "missing.json"

NO_SOCKET = "it has no record socket"
"""Nobody outside can ask it: its program lacks the client, or is not that far yet."""

Groups = list[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What every peer is given. It was taken while the job hung, after the verdict was final."""

    backend: str
    case: Case
    """What watchtower had: stacks and collective records of every rank, process states, nodes."""
    recorders: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The flight recorder of each rank that answered, as torch writes it."""
    groups: dict[int, Groups] = field(default_factory=dict)
    """The true members of each process group, by rank and by the name in its records."""
    missing: dict[int, str] = field(default_factory=dict)
    """Why there is no dump of a rank."""


def read_evidence(folder: Path, backend: str) -> Evidence | None:
    """Read a folder; None when there was no incident whose evidence could have been judged."""
    incident = folder / INCIDENT
    if not incident.exists():
        return None
    case = json.loads(incident.read_bytes())["case"]
    missing = folder / MISSING
    return Evidence(
        backend=backend,
        case=msgspec.convert(case, Case, strict=True),
        # The pickle has the key also when there is no entry, the JSON has not.
        recorders={
            rank: {"entries": [], **recorder}
            for rank, recorder in _read_ranks(folder, "records").items()
        },
        groups={
            rank: [(name, tuple(members)) for name, members in groups]
            for rank, groups in _read_ranks(folder, "groups").items()
        },
        missing={int(rank): why for rank, why in _read(missing).items()},
    )


def _read_ranks(folder: Path, kind: str) -> dict[int, Any]:
    found = {int(path.stem.rpartition("_")[2]): path for path in folder.glob(f"{kind}_*.json")}
    return {rank: _read(found[rank]) for rank in sorted(found)}


def _read(path: Path) -> Any:
    return json.loads(path.read_bytes()) if path.exists() else {}
