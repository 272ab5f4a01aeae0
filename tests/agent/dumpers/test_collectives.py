"""From what torch says of its collectives to the words of the wire, by value and by property."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from watchtower_heartbeat.layout import GROUPS_MAGIC, GROUPS_TEXT_AT
from watchtower_heartbeat.page import Transfers

from agent.dumpers.collectives import read_collectives
from agent.dumpers.dumper import RankRecords
from agent.dumpers.process_groups import BadGroups, parse_groups
from agent.dumps.contents import GroupSet
from agent.procfs import Proc
from tests.agent.agent_scene import a_view
from watchtower.readers.collective_calls import Membership, Trimmed, number_groups, trim
from watchtower.readers.torch_records import MAX_ENTRIES, BadRecords, TorchRecords, parse_records
from watchtower.wire.bounds import MAX_TEXT
from watchtower.wire.collectives import GroupLog, PeerTransfers, RankCollectives, name_group
from watchtower.wire.dumps import DumpBatch, KernelWait

RECORDED = Path(__file__).parent / "records"
GROUPS = number_groups([("0", "world", "0-3"), ("1", "1", "0-1"), ("3", "unused", "0-3")])
"""Of the job whose replies are recorded."""


def recorded(name: str) -> TorchRecords:
    return parse_records((RECORDED / f"{name}.json").read_bytes())


def logs_of(
    recorder: str, records: TorchRecords, groups: tuple[Membership, ...] = GROUPS
) -> dict[str, GroupLog]:
    """Logs by the name of their group."""
    trimmed = trim(recorder, records, groups)
    assert trimmed.missing == ""
    return {group.name: log for group, log in trimmed.logs}


def an_entry(number: int, *, over: bool = True, **more: Any) -> dict[str, Any]:
    entry = {"process_group": ["0", "default_pg"], "collective_seq_id": number, "retired": over}
    return {**entry, "profiling_name": "gloo:all_reduce", **more}


def a_reply(*entries: dict[str, Any], **more: Any) -> TorchRecords:
    return parse_records(json.dumps({"entries": entries, **more}).encode())


def calls(*over: bool, first: int = 1) -> TorchRecords:
    return a_reply(*(an_entry(first + at, over=each) for at, each in enumerate(over)))


# gloo, as it answered


def test_a_rank_that_waits_has_called_one_more_than_it_completed() -> None:
    world = logs_of("gloo", recorded("gloo_rank0_waits"))["world"]
    assert (world.called, world.entered, world.completed, world.timeout_s) == (10, 10, 9, 1800)
    last = world.records[-1]
    assert (last.number, last.operation) == (10, "all_reduce")
    assert last.signature == "bfloat16[5] -> bfloat16[5]"
    assert [each.number for each in world.records] == list(range(3, 11))
    assert world.records[2].operation == "barrier"
    assert world.records[2].signature == ""
    assert world.records[5].signature == "int64[2] -> int64[4,2]"


def test_the_rank_behind_has_not_called_what_the_other_waits_in() -> None:
    world = logs_of("gloo", recorded("gloo_rank1_is_behind"))["world"]
    assert (world.called, world.entered, world.completed) == (9, 9, 9)


def test_a_group_never_used_has_a_log_that_says_so() -> None:
    unused = logs_of("gloo", recorded("gloo_rank0_waits"))["unused"]
    assert (unused.called, unused.entered, unused.completed, unused.timeout_s) == (0, 0, 0, 0)
    assert unused.group == name_group("0-3", 1)


def test_every_member_names_a_group_alike_whatever_its_process_calls_it() -> None:
    logs = trim("gloo", recorded("gloo_rank0_waits"), GROUPS).logs
    assert [group.id for group, _ in logs] == [
        name_group("0-3", 0),
        name_group("0-1", 0),
        name_group("0-3", 1),
    ]


def test_a_group_whose_members_nobody_knows_is_left_out_and_said() -> None:
    trimmed = trim("gloo", recorded("gloo_rank0_waits"), GROUPS[:1])
    assert [group.name for group, _ in trimmed.logs] == ["world"]
    assert "1 process groups (1)" in trimmed.missing


def test_groups_that_the_ring_may_have_forgotten_are_left_out_and_said() -> None:
    groups = number_groups([("0", "world", "0-1"), ("1", "early", "0-1"), ("2", "no", "0-1")])
    trimmed = trim("gloo", recorded("gloo_ring_overwritten"), groups)
    ((group, log),) = trimmed.logs
    assert (group.name, log.called, log.completed) == ("world", 12, 12)
    assert "2 process groups" in trimmed.missing
    assert "TORCH_FR_BUFFER_SIZE" in trimmed.missing


AGAIN = number_groups([("0", "world", "0-3"), ("0", "world", "0-3")])
"""Of a process that has left its groups and joined anew: torch uses the name again."""


def test_after_joining_anew_only_the_new_groups_calls_count() -> None:
    old = [an_entry(number, pg_id=0, record_id=number - 1) for number in range(1, 6)]
    new = [an_entry(number, pg_id=1, record_id=number + 4) for number in (1, 2)]
    hangs = an_entry(3, over=False, pg_id=1, record_id=7)
    behind, waits = a_reply(*old, *new), a_reply(*old, *new, hangs)
    logs = [logs_of("gloo", reply, AGAIN)["world"] for reply in (behind, waits)]
    assert [(log.called, log.entered, log.completed) for log in logs] == [(2, 2, 2), (3, 3, 2)]


def test_calls_that_may_be_an_earlier_groups_are_left_out_and_said() -> None:
    trimmed = trim("gloo", a_reply(an_entry(5, pg_id=0)), AGAIN)
    assert trimmed.logs == ()
    assert "1 process groups have the name of an earlier one" in trimmed.missing


def test_a_recorder_that_is_off_does_not_say_that_nothing_was_called() -> None:
    """As torch 2.13 answers with TORCH_FR_BUFFER_SIZE=0; with it on, `pg_config` has a key."""
    off = {"comm_lib_version": "", "nccl_comm_state": {}, "pg_config": {}, "pg_status": {}}
    unused = {**off, "pg_config": {"": {"desc": "", "name": "", "ranks": "[0]"}}}
    assert trim("gloo", parse_records(json.dumps(off).encode()), GROUPS) == Trimmed()
    logs = logs_of("gloo", parse_records(json.dumps(unused).encode()))
    assert {log.called for log in logs.values()} == {0}


# What is said of NCCL is from documentation


def test_on_nccl_a_scheduled_call_is_not_entered() -> None:
    logs = logs_of("nccl", recorded("nccl_from_documentation"), ())
    world = logs["default_pg"]
    assert (world.called, world.entered, world.completed) == (4, 3, 2)
    assert [each.operation for each in world.records] == ["all_reduce", "all_gather"] + [
        "all_reduce"
    ] * 2
    assert (logs["tensor_parallel"].called, logs["tensor_parallel"].completed) == (1, 1)


def test_nccl_knows_the_members_of_its_groups_itself() -> None:
    logs = trim("nccl", recorded("nccl_from_documentation"), ()).logs
    groups = {group.name: group for group, _ in logs}
    assert {name: (each.members, each.order) for name, each in groups.items()} == {
        "default_pg": ("0-3", 0),
        "tensor_parallel": ("0-1", 0),
        "2": ("0-1", 1),
    }


def test_without_a_known_start_nobody_says_how_far_it_entered() -> None:
    reply = a_reply(an_entry(7, over=False, state="scheduled"))
    assert logs_of("nccl", reply, GROUPS[:1])["world"].entered == -1


def test_one_group_used_by_two_libraries_is_two_groups() -> None:
    reply = calls(True)
    ids = {trim(recorder, reply, GROUPS).logs[0][0].id for recorder in ("gloo", "nccl")}
    assert len(ids) == 2


def test_ranks_at_the_same_place_share_a_log() -> None:
    groups = GroupSet()
    logs = trim("gloo", recorded("gloo_rank0_waits"), GROUPS).logs
    first, second = (groups.add(RankRecords(logs=logs)) for _ in range(2))
    assert first is not None
    assert first == second
    assert len(first.logs) == len(groups.logs()) == 3


def test_what_does_not_fit_into_a_batch_is_left_out_and_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agent.dumps.contents.MAX_GROUPS", 2)
    groups = GroupSet()
    logs = trim("gloo", recorded("gloo_rank0_waits"), GROUPS).logs
    known = groups.add(RankRecords(logs=logs))
    assert known is not None
    assert len(known.logs) == len(groups.logs()) == len(groups.groups()) == 2
    assert known.failure == "1 process groups were dropped: there are too many"


def test_a_batch_that_grows_too_large_keeps_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.dumps.contents.MAX_BATCH_LOG_BYTES", 450)
    groups = GroupSet()
    logs = trim("gloo", recorded("gloo_rank0_waits"), GROUPS).logs
    first, second = (groups.add(RankRecords(logs=logs)) for _ in range(2))
    assert first is not None
    assert first == second
    assert first.failure == ""
    assert [(log.called, log.records) for log in groups.logs()] == [(10, ()), (2, ()), (0, ())]


def test_a_rank_with_too_many_groups_keeps_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watchtower.readers.collective_calls.MAX_RANK_RECORDS", 9)
    logs = logs_of("gloo", recorded("gloo_rank0_waits"))
    assert [len(log.records) for log in logs.values()] == [8, 1, 0]
    assert logs["1"].called == 2


def test_a_signature_that_is_too_long_still_tells_two_apart() -> None:
    def signature(last: int) -> str:
        sizes = [[4096]] * 500 + [[last]]
        entry = an_entry(1, input_sizes=sizes, input_dtypes=["Float"] * 501)
        return logs_of("gloo", a_reply(entry), GROUPS[:1])["world"].records[0].signature

    assert len(signature(1)) <= MAX_TEXT
    assert signature(1).startswith("float32[4096], float32[4096]")
    assert signature(1) != signature(2)


# Transfers


def a_transfer(**words: Any) -> Transfers:
    begun = {"sends_begun": 0, "sends_done": 0, "receives_begun": 0, "receives_done": 0}
    return Transfers(**{"peer": 3, "opened_by_send": True, **begun, **words})


def read(**words: Any) -> RankCollectives | None:
    found = read_collectives(Proc(), 1, a_view(**words), KernelWait(), 0.0)
    return GroupSet().add(found)


def test_transfers_go_as_they_stand_on_the_page() -> None:
    known = read(transfers=(a_transfer(sends_begun=4, sends_done=3), a_transfer(peer=-1)))
    assert known is not None
    assert known.failure == ""
    assert known.peers == (
        PeerTransfers(peer=3, sends_begun=4, sends_done=3),
        PeerTransfers(peer=-1),
    )


def test_a_page_that_lies_about_transfers_is_still_within_bounds() -> None:
    low = -(2**63)
    known = read(transfers=(a_transfer(peer=low, sends_begun=low),), transfers_left_out=7)
    assert known is not None
    assert known.peers == (PeerTransfers(peer=-1),)
    assert known.failure == "7 calls with further peers are not counted"


def test_a_rank_without_records_says_nothing() -> None:
    assert read() is None
    assert read_collectives(Proc(), 1, None, KernelWait(), 0.0) is None


# What a process may say


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
FIELD_NAMES = """process_group collective_seq_id record_id pg_id profiling_name state retired is_p2p
input_sizes input_dtypes output_sizes output_dtypes"""
FIELDS = st.dictionaries(st.sampled_from(FIELD_NAMES.split()), JSON, max_size=3)
ENTRIES = st.builds(lambda number, more: an_entry(number, **more), st.integers(-1, 9), FIELDS)
REPLIES = st.fixed_dictionaries(
    {"entries": JSON | st.lists(ENTRIES, max_size=4)},
    optional={"pg_config": JSON, "pg_status": JSON},
)


@given(reply=REPLIES | JSON, recorder=st.sampled_from(("gloo", "nccl")), known=st.booleans())
def test_any_reply_gives_an_error_with_a_name_or_words_of_the_wire(
    reply: Any, recorder: str, known: bool
) -> None:
    try:
        records = parse_records(json.dumps(reply).encode("utf-8", "surrogatepass"))
    except BadRecords:
        return
    trimmed = trim(recorder, records, GROUPS if known else ())
    groups = GroupSet()
    text = groups.add(RankRecords(logs=trimmed.logs, failures=(trimmed.missing,)))
    assert text is not None
    empty = msgspec.json.encode({"groups": groups.groups(), "group_logs": groups.logs()})
    fields = {"version": 1, "id": "x", "node": "n", "job": "j", "round": 1, "reason": "deadline"}
    words = {**fields, "held_s": 0.0, "ranks": [], "stacks": [], **json.loads(empty)}
    msgspec.json.decode(json.dumps(words), type=DumpBatch)


@given(st.binary(max_size=300))
def test_any_bytes_are_records_or_an_error_with_a_name(raw: bytes) -> None:
    with contextlib.suppress(BadRecords):
        parse_records(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"entries":' + b"[" * 100_000,
        b'{"entries":[' + b"{}," * 60_000 + b"{}]}",
        json.dumps({"entries": [an_entry(2**64)]}).encode(),
        json.dumps({"entries": [an_entry(1)] * (MAX_ENTRIES + 1)}).encode(),
        b'{"pg_config":' + b'{"a":' * 5000,
        b'{"entries":[{"input_sizes":[[' + b"9," * 400_000 + b"9]]}]}",
    ],
    ids=["deep", "many", "huge number", "too many entries", "deep objects", "many sizes"],
)
def test_replies_made_to_harm_are_refused(raw: bytes) -> None:
    with pytest.raises(BadRecords):
        parse_records(raw)


# The list of groups


def a_list(text: str, length: int | None = None) -> bytes:
    claimed = len(text.encode()) if length is None else length
    numbers = b"".join(each.to_bytes(8, "little", signed=True) for each in (1, claimed))
    return (GROUPS_MAGIC + numbers).ljust(GROUPS_TEXT_AT, b"\0") + text.encode()


def test_groups_are_read_in_the_order_they_were_made() -> None:
    text = "0\tdefault_pg\t0-3\n1\tundefined\t0,2\n2\tpipe\x1b\t0-3\n"
    assert parse_groups(a_list(text)) == (
        Membership(name="0", title="default_pg", members="0-3", order=0),
        Membership(name="1", title="1", members="0,2", order=0),
        Membership(name="2", title="pipe", members="0-3", order=1),
    )


def test_a_list_of_huge_groups_ends_before_it_costs_the_agent_minutes() -> None:
    lines = [f"{at}\td\t0-{262_143 - at}" for at in range(1000)]
    assert len(parse_groups(a_list("\n".join(["n\td\t0-3"] * 9 + lines) + "\n"))) == 5
    again = parse_groups(a_list("".join(f"{at}\td\t0-262143\n" for at in range(100))))
    assert [group.order for group in again] == list(range(100))


def test_a_line_that_is_being_written_does_not_count() -> None:
    text = "0\tdefault_pg\t0-3\n1\tx\t0-1\n"
    assert len(parse_groups(a_list(text, length=len("0\tdefault_pg\t0-3\n")))) == 1
    assert parse_groups(a_list(text, length=0)) == parse_groups(a_list("", length=-5)) == ()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"WTGROUP\0",
        a_list("").replace(b"WTGROUP", b"XTGROUP"),
        a_list("0\tx\n"),
        a_list("0\tx\t3-1\n"),
        a_list("0\tx\t0,1\n"),
        a_list("0\tx\t\n"),
        a_list("0\tx\t0-999999999\n"),
    ],
)
def test_a_list_that_no_client_writes_is_refused(raw: bytes) -> None:
    with pytest.raises(BadGroups):
        parse_groups(raw)


@given(st.binary(max_size=200) | st.text(max_size=60).map(a_list))
def test_any_bytes_are_groups_or_an_error_with_a_name(raw: bytes) -> None:
    with contextlib.suppress(BadGroups):
        assert all(group.members for group in parse_groups(raw))
