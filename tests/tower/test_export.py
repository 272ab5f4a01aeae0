"""An incident is exported completely, and diagnosed again from the file alone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from tests.tower.simulator import Simulation, hang
from watchtower.cli import main
from watchtower.tower.export import Bundle, export_incident, redact_export


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    async def story() -> bytes:
        sim = Simulation(tmp_path_factory.mktemp("store") / "watchtower.db")
        await sim.dump(behind=1)  # of a job nobody reported: long before the stall
        await sim.step(80)
        await hang(sim)
        ident = sim.verdict.incident
        await sim.tower.acks.ack(ident, "ann", "<b>on it</b>")
        await sim.report(6)
        body = await export_incident(sim.tower, ident)
        assert await export_incident(sim.tower, "none") is None
        await sim.close()
        return body

    return asyncio.run(story())


@pytest.fixture
def file(tmp_path: Path, exported: bytes) -> Path:
    path = tmp_path / "incident.json"
    path.write_bytes(exported)
    return path


def test_an_export_has_verdict_case_and_the_dumps_of_the_stall(exported):
    bundle = msgspec.json.decode(exported, type=Bundle)
    assert bundle.verdict.incident == bundle.id
    assert bundle.case.ranks[2].dumps
    assert [stored.batch.round for stored in bundle.dumps] == [2, 2, 1, 1]
    assert bundle.dumps_are_all
    assert bundle.ack.note == "<b>on it</b>"


def test_a_redacted_export_is_replayed_with_the_same_verdict(exported, tmp_path, capsys):
    path = tmp_path / "redacted.json"
    path.write_bytes(redact_export(exported))
    assert main(["replay", str(path)]) == 0
    assert "rank 2 (node-0000" in capsys.readouterr().out.lower()
    body = path.read_text("utf-8")
    for name in ('"llama', "ann", "on it", "/home/", '"n0"', '"n1"'):
        assert name not in body
    assert msgspec.json.decode(body, type=Bundle).ack.by == "user-00001"


def test_a_replay_shows_the_stored_and_the_new_verdict(file, capsys):
    assert main(["replay", str(file)]) == 0
    text = capsys.readouterr().out
    assert text.count("rank 2") >= 2
    assert text.index("then, by watchtower") < text.index("now, by watchtower")
    assert main(["replay", str(file), "--json"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert both["then"]["cause"] == both["now"]["cause"] == "dataloader_stall"


def test_a_replay_with_a_different_verdict_reports_the_difference(file, exported, capsys):
    bundle = json.loads(exported)
    bundle["verdict"]["cause"] = "busy_loop"
    file.write_text(json.dumps(bundle))
    assert main(["replay", str(file)]) == 1


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"case": None}, "has no evidence"),
        ({"format": "watchtower-incident-9"}, "written by a newer watchtower"),
        ({"verdict": 1}, "is not an export of watchtower"),
    ],
)
def test_a_file_that_cannot_be_replayed_is_reported(file, exported, capsys, change, text):
    file.write_text(json.dumps(json.loads(exported) | change))
    assert main(["replay", str(file)]) == 2
    assert text in capsys.readouterr().err


def test_a_file_that_is_not_json_is_reported(tmp_path, capsys):
    (tmp_path / "x").write_bytes(b"\xff{")
    assert main(["replay", str(tmp_path / "x")]) == 2
    assert main(["replay", str(tmp_path / "absent")]) == 2
    assert "is not an export" in capsys.readouterr().err
