"""Agents, exports and towers of two releases understand each other: tested with recorded messages.

`tests/wire/record.py` records them, and describes how to add a release.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jsonschema
import msgspec
import pytest

from tests.diagnosers import in_thread
from tests.diagnosis.builders import as_sent
from tests.wire.record import MESSAGES, describe_messages
from watchtower.commands.replaying import diagnose_again, read_bundle
from watchtower.policy import Policy
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.clock import Clock
from watchtower.tower.tower import Tower
from watchtower.views.verdict import live_verdict
from watchtower.wire.dumps import DumpBatch
from watchtower.wire.orders import ReportReply
from watchtower.wire.report import Report
from watchtower.wire.series import SeriesBatch
from watchtower.wire.verdict import Cause, Verdict

RELEASES = sorted(
    (Path(__file__).parent.parent / "wire" / "recorded").iterdir(), key=lambda path: int(path.name)
)
NEWEST = RELEASES[-1]
JOB, RANK = "recorded-job", 2
POLICY = Policy(suspect_floor_s=2, hung_floor_s=3)
TICK_S = 0.5

each_release = pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)


def read_messages(release: Path) -> list[dict]:
    text = gzip.decompress((release / "messages.jsonl.gz").read_bytes()).decode()
    return [json.loads(line) for line in text.splitlines()]


@cache
def validator_of(release: Path, kind: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((release / "schema.json").read_text())
    return jsonschema.Draft202012Validator({"$ref": f"#/$defs/{kind}", **schema})


def without_type_names(schemas: dict[str, dict], name: str) -> object:
    """Return the form of a message. Names of types are not in it: they do not cross the network."""

    def expand(part: object) -> object:
        if isinstance(part, dict) and "$ref" in part:
            return expand(schemas[part["$ref"].rpartition("/")[2]])
        if isinstance(part, dict):
            return {key: expand(value) for key, value in part.items() if key != "title"}
        return [expand(each) for each in part] if isinstance(part, list) else part

    return expand(schemas[name])


def assert_understood_by(release: Path, kind: str, message: object) -> None:
    """Assert that a message has the form that this release reads."""
    errors = [error.message for error in validator_of(release, kind).iter_errors(message)]
    assert errors == []


@dataclass(frozen=True)
class Replayed(Clock):
    """The clock of the recording."""

    at: list[float]

    def now(self) -> float:
        return 1000.0 + self.at[0]

    def wall(self) -> float:
        return 1.7e9 + self.at[0]


KINDS = {
    "/ingest/v1/report": ("Report", "ReportReply", msgspec.json.Decoder(Report)),
    "/ingest/v1/dumps": ("DumpBatch", "DumpReceipt", msgspec.json.Decoder(DumpBatch)),
    "/ingest/v1/series": ("SeriesBatch", "DumpReceipt", msgspec.json.Decoder(SeriesBatch)),
}


async def replay(release: Path, folder: Path) -> tuple[Verdict, list[object]]:
    """Send each message to a tower of this release at its time. Returns its verdict and replies."""
    store = SqliteStore(folder / "watchtower.db")
    clock = Replayed([0.0])
    tower = Tower(POLICY, store, store.recall(), clock, in_thread)
    replies = []
    try:
        next_tick = 0.0
        for message in read_messages(release):
            while next_tick < message["at_s"]:
                clock.at[0] = next_tick
                await tick(tower)
                next_tick += TICK_S
            clock.at[0] = message["at_s"]
            _, _, decoder = KINDS[message["path"]]
            received = decoder.decode(json.dumps(message["body"]))
            if isinstance(received, Report):
                reply = tower.take_report(received)
            elif isinstance(received, SeriesBatch):
                reply = await tower.take_series(received, b"{}")
            else:
                reply = await tower.take_dumps(as_sent(received))
            replies.append(json.loads(msgspec.json.encode(reply)))
        await tick(tower)
        assert list(tower.fleet.jobs) == [JOB]
        verdict = live_verdict(tower.moment(), JOB)
        assert verdict is not None
        return verdict, replies
    finally:
        await tower.close()
        store.close()


async def tick(tower: Tower) -> None:
    tower.tick()
    while tasks := list(tower.effects.tasks):
        await asyncio.gather(*tasks)


@each_release
def test_this_tower_takes_every_message_names_the_rank_and_its_replies_are_understood(
    release, tmp_path
):
    verdict, replies = asyncio.run(replay(release, tmp_path))
    assert verdict.cause is Cause.DATALOADER_STALL
    assert [suspect.rank for suspect in verdict.suspects] == [RANK]
    for message, reply in zip(read_messages(release), replies, strict=True):
        _, kind, _ = KINDS[message["path"]]
        assert_understood_by(release, kind, reply)


@each_release
def test_this_agent_understands_the_replies_of_a_recorded_tower(release):
    for message in read_messages(release):
        if message["path"] == "/ingest/v1/report":
            msgspec.convert(message["reply"], ReportReply)


@each_release
def test_a_recorded_tower_takes_the_messages_of_this_release(release):
    for message in read_messages(NEWEST):
        kind, _, _ = KINDS[message["path"]]
        assert_understood_by(release, kind, message["body"])


def test_the_newest_recording_has_the_messages_of_this_release():
    """Else a message has changed: record it under the next number, see `record.py`."""
    recorded = json.loads((NEWEST / "schema.json").read_text())["$defs"]
    present = describe_messages()
    for kind in MESSAGES:
        assert without_type_names(recorded, kind.__name__) == without_type_names(
            present, kind.__name__
        )


@each_release
def test_an_export_of_a_recorded_release_is_diagnosed(release, tmp_path):
    path = tmp_path / "export.json"
    path.write_bytes(gzip.decompress((release / "export.json.gz").read_bytes()))
    verdict = diagnose_again(read_bundle(path))
    assert verdict.cause is Cause.DATALOADER_STALL
    assert [suspect.rank for suspect in verdict.suspects] == [RANK]


@each_release
def test_a_recorded_release_reads_an_export_of_this_one(release):
    bundle = json.loads(gzip.decompress((NEWEST / "export.json.gz").read_bytes()))
    assert_understood_by(release, "Bundle", bundle)
