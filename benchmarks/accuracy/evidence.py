"""The evidence of one hung job, in a folder: watchtower's input, and raw flight recorder dumps.

* incident.json: the incident as `watchtower export` writes it, with its case
* records_3.json: the answer of rank 3's torch to `fr_trace_json`
* groups_3.json: rank 3's process groups: [name in the records, global ranks]
* missing.json: {"3": why there is no dump of rank 3}
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from watchtower.evidence.case import Case

INCIDENT = "incident.json"
MISSING = "missing.json"

NO_SOCKET = "it has no record socket"
"""The rank cannot be asked from outside: its program lacks the client, or has not loaded it yet."""

Groups = list[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The input of every peer, collected while the job hung, after the verdict was final."""

    backend: str
    case: Case
    """Watchtower's input: stacks and collective logs of every rank, process states, nodes."""
    recorders: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The flight recorder of each rank that answered, as torch writes it."""
    groups: dict[int, Groups] = field(default_factory=dict)
    """The true members of each process group, by rank and by the name in its records."""
    missing: dict[int, str] = field(default_factory=dict)
    """Why there is no dump of a rank."""


def read_evidence(folder: Path, backend: str) -> Evidence | None:
    """Read a folder; None without an incident."""
    incident = folder / INCIDENT
    if not incident.exists():
        return None
    case = json.loads(incident.read_bytes())["case"]
    missing = folder / MISSING
    return Evidence(
        backend=backend,
        case=msgspec.convert(case, Case, strict=True),
        # The pickle always has this key, the JSON only with entries.
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
