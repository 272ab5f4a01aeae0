"""Which open call of a process is its oldest: a device executes them in this order."""

from __future__ import annotations

import json

import pytest

from agent.dumpers.dumper import RankRecords
from agent.dumps.contents import GroupSet
from watchtower.readers.collective_calls import number_groups, trim
from watchtower.readers.torch_records import parse_records


@pytest.mark.parametrize(
    ("recorder", "made", "expected"),
    [
        ("nccl", {"tp": (5, False), "dp": (4, False)}, "dp"),
        ("nccl", {"tp": (5, False), "dp": (6, False)}, "tp"),
        ("nccl", {"tp": (5, True), "dp": (6, False)}, "dp"),
        ("nccl", {"tp": (5, True), "dp": (6, True)}, None),
        ("gloo", {"tp": (5, False), "dp": (4, False)}, None),
    ],
)
def test_the_oldest_open_call_of_a_device_is_that_which_was_made_first(
    recorder: str, made: dict[str, tuple[int, bool]], expected: str | None
) -> None:
    entries = [
        {
            "process_group": [name, name],
            "collective_seq_id": 1,
            "retired": over,
            "record_id": at,
            "pg_id": at,
        }
        for name, (at, over) in made.items()
    ]
    known = number_groups((name, name, "0-1" if name == "tp" else "0,2") for name in made)
    trimmed = trim(recorder, parse_records(json.dumps({"entries": entries}).encode()), known)
    ids = {group.name: group.id for group, _ in trimmed.logs}
    assert trimmed.oldest_open == (ids[expected] if expected else "")
    sent = GroupSet().add(RankRecords(logs=trimmed.logs, oldest_open=trimmed.oldest_open))
    assert sent is not None
    digests = {group.name: log.digest for group, log in trimmed.logs}
    assert sent.oldest_open == (digests[expected] if expected else "")
