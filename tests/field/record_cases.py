"""Cases with dumps of torch's flight recorder."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from tests.field.field_case import FieldCase, watchdog

GLOO = {path.name: path.read_bytes() for path in Path(__file__).parent.glob("gloo_records/*.json")}
"""Written by torch 2.13: four ranks of gloo, rank 2 sleeps before the sixth all_reduce."""


def entry(number: int, state: str = "completed", name: str = "all_reduce", **more: Any) -> Any:
    """Return an entry of NCCL's recorder."""
    return {
        "record_id": number - 1,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": 1_700_000_000_000_000_000 + number,
        "input_sizes": ((256,),),
        "input_dtypes": ("Float",),
        "output_sizes": ((256,),),
        "output_dtypes": ("Float",),
        "state": state,
        "timeout_ms": 600_000,
        "is_p2p": False,
        "retired": state == "completed",
        "frames": [{"name": "step", "filename": "train.py", "line": 52}],
        **more,
    }


def dump(world: int, last: int, *, is_open: bool = True, **more: Any) -> bytes:
    """Return the pickle of a rank that is in its call `last`."""
    calls = [entry(number) for number in range(1, last)]
    last_state = more.pop("state", "scheduled" if is_open else "completed")
    calls.append(entry(last, last_state, **more))
    ranks = str(list(range(world)))
    value = {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
        "pg_status": {"0": {"last_enqueued_collective": last}},
        "entries": calls,
    }
    return pickle.dumps(value, protocol=2)


def old_dump(last: int, *, is_open: bool = True) -> bytes:
    """Return a dump of the first format: a list of entries."""
    return pickle.dumps(
        [
            {
                "pg_id": 0,
                "seq_id": number,
                "profiling_name": "nccl:all_reduce",
                "time_created_us": number,
                "input_sizes": ((256,),),
                "state": "scheduled" if is_open and number == last else "completed",
            }
            for number in range(1, last + 1)
        ],
        protocol=2,
    )


RECORD_CASES = (
    FieldCase(
        name="gloo_json",
        report="JSON of torch's recorder for gloo",
        files=GLOO,
        suspects=frozenset({2}),
        cause="behind_collective",
    ),
    FieldCase(
        name="gloo_json_without_the_rank",
        report="a missing file is evidence, and no proof",
        files={name: raw for name, raw in GLOO.items() if "rank_2" not in name},
        candidates=frozenset({2}),
    ),
    FieldCase(
        name="pickles",
        report="nccl_trace_rank_R of each rank",
        files={
            f"nccl_trace_rank_{rank}": dump(4, 9 if rank != 1 else 8, is_open=rank != 1)
            for rank in range(4)
        },
        suspects=frozenset({1}),
        cause="behind_collective",
    ),
    FieldCase(
        name="pickles_with_hosts",
        report="pytorch#140879: names with a host, which torch's own script does not read",
        files={
            f"nccl_trace_rank_gpu-{rank // 2}_{rank}": dump(4, 9 if rank else 8, is_open=rank > 0)
            for rank in range(4)
        },
        suspects=frozenset({0}),
        cause="behind_collective",
    ),
    FieldCase(
        name="pickles_and_the_guilty_has_none",
        report="pytorch#196968: the guilty rank hangs in teardown, and wrote no dump",
        files={f"comm_lib_trace_rank_{rank}": dump(4, 9) for rank in range(4) if rank != 3},
        candidates=frozenset({3}),
    ),
    FieldCase(
        name="pickles_of_a_mismatch",
        report="one rank calls another operation under the same number",
        files={
            f"trace_{rank}.pkl": dump(4, 9, profiling_name=f"nccl:{name}")
            for rank, name in enumerate(["all_reduce", "all_reduce", "broadcast", "all_reduce"])
        },
        suspects=frozenset({2}),
        cause="conditional_collective",
    ),
    FieldCase(
        name="pickles_of_a_symmetric_hang",
        report="all ranks are in the same call, and none is missing",
        files={f"nccl_trace_rank_{rank}": dump(4, 9, state="started") for rank in range(4)},
        cause="symmetric_hang",
    ),
    FieldCase(
        name="pickles_that_do_not_show_the_start",
        report="enqueued is not started: without timing, one rank may not have begun the call",
        files={f"nccl_trace_rank_{rank}": dump(4, 9) for rank in range(4)},
        cause="unknown",
        words=("may not have begun the call",),
    ),
    FieldCase(
        name="pickles_of_the_first_format",
        report="format 1: a list of entries, without members of groups",
        files={
            f"nccl_trace_rank_{rank}": old_dump(9 if rank != 1 else 8, is_open=rank != 1)
            for rank in range(4)
        },
        suspects=frozenset({1}),
    ),
    FieldCase(
        name="pickles_and_logs_without_a_watchdog",
        report="the output of a rank says nothing of a call that only dumps of the others show",
        files={
            **{f"nccl_trace_rank_{rank}": dump(4, 9) for rank in range(3)},
            **{f"rank{rank}.log": "step 8\n" for rank in range(4)},
        },
        candidates=frozenset({3}),
    ),
    FieldCase(
        name="pickles_and_logs",
        report="the recorder says more than the watchdog: rank 1 is behind",
        files={
            **{
                f"fr/nccl_trace_rank_{rank}": dump(4, 9 if rank != 1 else 8, is_open=rank != 1)
                for rank in range(4)
            },
            **{f"rank{rank}.log": watchdog(rank, 9, numel=256) for rank in (0, 2, 3)},
            "rank1.log": "loading shard 12\n",
        },
        suspects=frozenset({1}),
    ),
)
