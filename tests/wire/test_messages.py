"""Recorded messages are understood for ever; messages of newer releases are too."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchtower.cli import main
from watchtower.wire import bounds
from watchtower.wire.dumps import DumpBatch, FailureKind
from watchtower.wire.orders import ReportReply
from watchtower.wire.report import (
    MAX_UNWATCHED,
    MAX_UNWATCHED_PIDS,
    Beat,
    Ending,
    EndingKind,
    Movement,
    ProcessState,
    RankVitals,
    Report,
)
from watchtower.wire.series import MAX_OUTPUT_LINE, MAX_POINTS, SeriesBatch
from watchtower.wire.stacks import Frame, make_stack
from watchtower.wire.verdict import Domain, Verdict

MESSAGES = Path(__file__).parent / "messages"

KINDS = {
    "report.json": Report,
    "reply.json": ReportReply,
    "dumps.json": DumpBatch,
    "series.json": SeriesBatch,
    "verdict.json": Verdict,
}


def recorded(name: str) -> dict:
    return json.loads((MESSAGES / name).read_text())


def read(name: str, message: dict | None = None):
    body = json.dumps(message if message is not None else recorded(name))
    return msgspec.json.decode(body, type=KINDS[name])


@pytest.mark.parametrize("name", KINDS)
def test_a_recorded_message_is_read_and_says_the_same_when_written_again(name):
    value = read(name)
    again = json.loads(msgspec.json.encode(value))
    if name == "report.json":  # an empty object stands for the defaults
        again["ranks"][1]["movement"] = {}
    if name == "dumps.json":
        again["ranks"][0]["children"][0]["kernel"] = {"state": "T"}
    assert again == recorded(name)


@pytest.mark.parametrize("name", KINDS)
def test_every_recorded_file_names_every_field(name):
    value = json.loads(msgspec.json.encode(read(name)))
    assert set(recorded(name)) == set(value)


@pytest.mark.parametrize("name", KINDS)
def test_a_field_of_a_newer_release_is_ignored(name):
    assert read(name, recorded(name) | {"weather": {"is": "fine"}}) == read(name)


def test_enum_values_of_a_newer_release_are_other():
    message = recorded("report.json")
    message["ranks"][0]["state"] = "P"
    message["ranks"][1]["ended"]["kind"] = "evaporated"
    report = read("report.json", message)
    assert report.ranks[0].state is ProcessState.OTHER
    assert report.ranks[1].ended.kind is EndingKind.OTHER
    assert FailureKind("bored") is FailureKind.OTHER
    verdict = read("verdict.json", recorded("verdict.json") | {"domain": "cooling"})
    assert verdict.domain is Domain.UNKNOWN


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("rank", -1, r"`rank` is -1, allowed is 0 to .* - at `\$.ranks\[0\]`"),
        ("job", "x" * 300, r"`job` has 300 characters, at most 256 are allowed"),
        ("job", "", r"`job` is empty"),
        ("world_size", 2**40, r"`world_size` is 1099511627776, allowed is 1 to 262144"),
        ("found_age_s", -1.0, r"`found_age_s` is -1.0, allowed is 0 to 1e\+10 seconds"),
        ("pid", "many", r"Expected `int`, got `str` - at `\$.ranks\[0\].pid`"),
    ],
)
def test_a_value_out_of_bounds_is_refused_with_its_path(field, value, text):
    message = recorded("report.json")
    message["ranks"][0][field] = value
    with pytest.raises(msgspec.ValidationError, match=text):
        read("report.json", message)


@pytest.mark.parametrize("name", [each.name for each in fields(Movement) if each.type == "float"])
@pytest.mark.parametrize("value", [-1.0, 2 * bounds.MAX_RATE])
def test_every_rate_is_bounded(name, value):
    message = recorded("report.json")
    message["ranks"][0]["movement"] = {name: value}
    with pytest.raises(msgspec.ValidationError, match=f"`{name}` is {re.escape(str(value))}"):
        read("report.json", message)


def test_lists_are_bounded():
    message = recorded("report.json")
    message["ranks"] = [message["ranks"][0]] * (bounds.MAX_RANKS_PER_NODE + 1)
    with pytest.raises(msgspec.ValidationError, match="`ranks` has 1025 entries"):
        read("report.json", message)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("pids", list(range(MAX_UNWATCHED_PIDS + 1)), "`pids` has 9 entries, at most 8"),
        ("pids", [-1], "`pids` is out of range"),
        ("count", 0, "`count` is out of range, allowed is 1"),
        ("text", "x" * (bounds.MAX_TEXT + 1), "`text` has 1025 characters"),
    ],
)
def test_processes_that_are_not_watched_are_bounded(field, value, text):
    message = recorded("report.json")
    message["unwatched"][0][field] = value
    with pytest.raises(msgspec.ValidationError, match=text):
        read("report.json", message)
    message["unwatched"] = recorded("report.json")["unwatched"] * (MAX_UNWATCHED + 1)
    with pytest.raises(msgspec.ValidationError, match="`unwatched` has 33 entries"):
        read("report.json", message)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("values", [0] * (MAX_POINTS + 1), "`values` has 901 entries"),
        ("values", [2**63], "out of range"),
        ("values", [1.5], "Expected `int | null`"),
        ("scale", 0, "`scale` is 0"),
        ("unit", "x" * 17, "`unit` has 17 characters"),
    ],
)
def test_a_lane_is_bounded(field, value, text):
    message = recorded("series.json")
    message["series"][0]["lanes"][0][field] = value
    with pytest.raises(msgspec.ValidationError, match=re.escape(text)):
        read("series.json", message)


def test_a_lane_of_a_newer_release_is_read_as_a_name_and_numbers():
    message = recorded("series.json")
    message["series"][0]["lanes"][0] |= {"name": "temperature", "unit": "K", "sensor": 3}
    assert read("series.json", message).series[0].lanes[0].points() == [
        1231,
        1232,
        None,
        1233,
        1233,
    ]


def test_lines_of_output_are_bounded():
    message = recorded("series.json")
    message["outputs"][0]["lines"] = ["x" * (MAX_OUTPUT_LINE + 1)]
    with pytest.raises(msgspec.ValidationError, match="`lines` has 401 characters"):
        read("series.json", message)


def test_a_report_needs_the_name_of_its_node():
    with pytest.raises(msgspec.ValidationError, match="`node` is empty"):
        read("report.json", recorded("report.json") | {"node": ""})
    with pytest.raises(msgspec.ValidationError, match="`interval_s` is 0"):
        read("report.json", recorded("report.json") | {"interval_s": 0})


def test_stacks_differ_by_function_file_or_line_and_by_nothing_else():
    frame = Frame(function="f", file="a.py", line=1)
    same = make_stack((Frame(function="f", file="a.py", line=1, library=True),))
    assert make_stack((frame,)).digest == same.digest
    assert make_stack((Frame(function="f", file="a.py", line=2),)).digest != same.digest
    assert make_stack((frame, frame)).digest != same.digest


ages = st.floats(0, 1e9)
vitals = st.builds(
    RankVitals,
    job=st.text(min_size=1, max_size=256),
    rank=st.integers(0, bounds.MAX_RANK),
    pid=st.integers(1, 2**22),
    start_time=st.integers(0, 2**53),
    beat=st.none() | st.builds(Beat, step=st.integers(-1, 2**53), age_s=ages),
    state=st.sampled_from(ProcessState),
    ended=st.none() | st.builds(Ending, kind=st.sampled_from(EndingKind), age_s=ages),
)


@given(st.lists(vitals, max_size=4))
def test_a_report_survives_the_network(ranks):
    report = Report(version=1, node="n", agent_id="a", interval_s=1.0, ranks=tuple(ranks))
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


@given(st.binary(max_size=200))
def test_any_bytes_are_a_report_or_a_named_error(body):
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
        msgspec.json.decode(body, type=Report)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("report.json", ("ranks", 0)),
        ("reply.json", ("deadlines", 0)),
        ("reply.json", ("orders", 0)),
        ("dumps.json", ()),
    ],
)
def test_an_owner_is_optional_and_bounded(name, place):
    """A message of a release without owners is read; one with an endless owner is refused."""
    message = recorded(name)
    part = message
    for key in place:
        part = part[key]
    del part["owner"]
    read(name, message)
    part["owner"] = "u" * 257
    with pytest.raises(msgspec.ValidationError, match="`owner` has 257 characters"):
        read(name, message)


RECORDED = sorted((Path(__file__).parent / "snapshots").glob("1-*.json"))


def test_recorded_files_have_the_verdict_of_their_day(capsys: pytest.CaptureFixture[str]):
    assert main(["diagnose", *map(str, RECORDED), "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["job"], verdict["status"], verdict["cause"]) == (
        "star",
        "suspect",
        "dataloader_stall",
    )
    assert [suspect["rank"] for suspect in verdict["suspects"]] == [1]
    assert verdict["waiting"] == "0,2-3"
