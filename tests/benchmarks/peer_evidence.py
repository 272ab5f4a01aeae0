"""Evidence of small hung jobs, as the accuracy benchmark hands it to the peers."""

from __future__ import annotations

from typing import Any

from benchmarks.accuracy.evidence import Evidence
from tests.diagnosis.builders import IN_TORCH_ALL_REDUCE, ranks_in
from tests.diagnosis.recording import a_recorded_case, calls
from watchtower.evidence.case import Case

PAIRS = {"tp01": (0, 1), "tp23": (2, 3), "dp02": (0, 2), "dp13": (1, 3)}


def evidence_of(case: Case, **more: Any) -> Evidence:
    return Evidence(backend="torch", case=case, **more)


def cascade() -> Case:
    """Rank 3 sleeps on a grid of 2 x 2. Rank 2 waits for rank 3, rank 0 for 2, rank 1 for 3."""
    ahead, behind = calls("all_reduce", before=5, open=1), calls("", before=5)
    made = {
        0: {"tp01": behind, "dp02": ahead},
        1: {"tp01": behind, "dp13": ahead},
        2: {"tp23": ahead, "dp02": behind},
        3: {"tp23": behind, "dp13": behind},
    }
    return a_recorded_case(ranks_in(4, IN_TORCH_ALL_REDUCE), PAIRS, made)


def an_entry(name: str, number: int, record: int, operation: str = "all_reduce") -> dict[str, Any]:
    """An entry as gloo's recorder writes it, torch 2.13."""
    return {
        "record_id": record,
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "pg_id": 1,
        "process_group": [name, "undefined"],
        "profiling_name": f"gloo:{operation}",
        "input_sizes": [[8]],
        "output_sizes": [[8]],
        "input_dtypes": ["Float"],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "retired": True,
        "is_p2p": False,
        "time_created_ns": 1000 + record,
        "time_discovered_started_ns": 0,
        "time_discovered_completed_ns": 0,
        "timeout_ms": 1_800_000,
    }


def a_recorder(*made: tuple[str, int]) -> dict[str, Any]:
    entries = [an_entry(name, number, record) for record, (name, number) in enumerate(made)]
    config = {"": {"name": "", "desc": "", "ranks": "[]"}}
    return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}


def recorded_cascade() -> Evidence:
    """The same with answers of the recorders. Each rank names its own groups "1" and "2"."""
    both = (("1", 1), ("2", 1))
    return evidence_of(
        cascade(),
        recorders={
            0: a_recorder(*both, ("1", 2), ("2", 2)),
            1: a_recorder(*both, ("1", 2), ("2", 2)),
            2: a_recorder(*both, ("1", 2)),
            3: a_recorder(*both),
        },
        groups={
            0: [("1", (0, 1)), ("2", (0, 2))],
            1: [("1", (0, 1)), ("2", (1, 3))],
            2: [("1", (2, 3)), ("2", (0, 2))],
            3: [("1", (2, 3)), ("2", (1, 3))],
        },
    )
