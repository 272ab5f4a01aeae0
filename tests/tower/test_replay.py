"""A recorded tower and its replay: the same incidents, orders and acts."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import os
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.diagnosers import InThread
from tests.tower.simulator import Simulation, hang
from watchtower.cli import main
from watchtower.fleet.fleet import Fleet
from watchtower.incidents.incident import NO_SHADOW
from watchtower.jobs.verdicts import Tries
from watchtower.policy import Policy
from watchtower.store.sqlite import SqliteStore
from watchtower.store.values import StartupState
from watchtower.tower import recording
from watchtower.tower import tower as tower_module
from watchtower.tower.acts import Answer
from watchtower.tower.clock import Clock
from watchtower.tower.diagnosis_runner import DiagnosisRunner
from watchtower.tower.recording import (
    DiagnosisAsked,
    Header,
    Input,
    Recorder,
    Recording,
    RecordingError,
    Ticked,
    Unsilenced,
)
from watchtower.tower.replay import replay
from watchtower.views.people import Subject
from watchtower.wire.report import Report
from watchtower.wire.verdict import Verdict

NOTHING = StartupState(pauses={}, attempts={}, incidents=())


def header() -> Header:
    return Header(policy=Policy(), shadow=NO_SHADOW, startup=NOTHING, now=5.0, wall=1.7e9)


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> tuple[list[Verdict], list[Path]]:
    """Verdicts and recordings of two towers: a job hangs, people act, the tower is restarted, the
    hang goes on and ends."""
    folder = tmp_path_factory.mktemp("told")
    verdicts, files = [], [folder / "first.gz", folder / "second.gz"]

    async def story() -> None:
        sim = Simulation(folder / "watchtower.db")
        await sim.close()
        sim.start(files[0])
        await hang(sim)
        verdicts.append(sim.verdict)
        incident = sim.live.incident
        assert incident is not None
        await sim.tower.acks.ack(incident.id, "ada", "I look")
        await sim.tower.silences.add(Subject(node="n1"), 600, "repair", "ada")
        (stored,) = await sim.incidents()
        await sim.tower.feedback.give(stored, sim.verdict, Answer(right=True, by="ada"))
        await sim.close()
        sim.start(files[1])
        await sim.report(4)
        await sim.settle()
        verdicts.append(sim.verdict)
        await sim.step(4)
        await sim.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tower_module, "JUDGE_WITHIN_S", 3600)  # as `tell` has it
        asyncio.run(story())
    return verdicts, files


def effects_of(file: Path, tmp_path: Path) -> list[dict]:
    tmp_path.mkdir(exist_ok=True)
    with closing(SqliteStore(tmp_path / "x.db", inline=True)) as store:
        effects: list[dict] = []
        replay(file, store, effects.append)
        return effects


def test_a_replay_names_the_same_rank_in_an_incident_of_the_same_id(told, tmp_path):
    (first, _), (file, _) = told
    incidents = [e["state"] for e in effects_of(file, tmp_path / "a") if "incident" in e]
    assert {one["id"] for one in incidents} == {first.incident}
    assert incidents[0]["verdict"]["cause"] == first.cause.value
    assert [s["rank"] for s in incidents[0]["verdict"]["suspects"]] == [2]


def test_what_people_did_is_replayed(told, tmp_path):
    (first, _), (file, _) = told
    effects = effects_of(file, tmp_path / "a")
    assert "acknowledged" in [e.get("incident") for e in effects]
    kept = effects[-1]["kept"]
    assert [(one["name"], one["by"]) for one in kept["silences"]] == [("n1", "ada")]
    assert [(one["incident"], one["right"]) for one in kept["feedback"]] == [(first.incident, True)]


def test_the_recording_of_a_restarted_tower_goes_on_with_the_incident(told, tmp_path):
    (first, second), (_, file) = told
    assert second.incident == first.incident
    incidents = [e for e in effects_of(file, tmp_path / "a") if "incident" in e]
    assert incidents[-1]["incident"] == "closed"
    assert incidents[-1]["state"]["id"] == first.incident
    assert incidents[-1]["state"]["ack"]["by"] == "ada"


def test_a_second_replay_has_the_same_effects(told, tmp_path):
    for number, file in enumerate(told[1]):
        once, again = (effects_of(file, tmp_path / f"{number}{part}") for part in "ab")
        assert once == again


def test_a_replay_waits_for_nothing_and_leaves_the_log_as_it_was(told, tmp_path):
    logger = logging.getLogger("watchtower")
    before = logger.level, logger.propagate, list(logger.handlers)
    effects = effects_of(told[1][0], tmp_path / "a")
    assert effects[-1]["at"] > 20  # seconds of the tower: the tests have 60 for all of them
    assert (logger.level, logger.propagate, list(logger.handlers)) == before


def test_the_command_prints_what_happened_and_the_verdict(told, capsys):
    assert main(["replay", str(told[1][0])]) == 0
    text = capsys.readouterr().out
    assert "suspect -> hung" in text
    assert "suspect: rank 2" in text
    assert main(["replay", str(told[1][0]), "--json"]) == 0
    effects = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"reply", "incident", "log", "job", "kept"} <= {key for e in effects for key in e}


def test_a_torn_recording_is_replayed_up_to_its_end(told, tmp_path):
    whole = told[1][0].read_bytes()
    torn = tmp_path / "torn.gz"
    torn.write_bytes(whole[: len(whole) * 2 // 3])
    effects = effects_of(torn, tmp_path / "a")
    end = "the recording ends here: its file is torn, or its tower was killed"
    assert [e["log"] for e in effects if "log" in e][-1] == end
    assert effects[-1]["at"] < effects_of(told[1][0], tmp_path / "b")[-1]["at"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not a recording of watchtower"),
        (gzip.compress(b""), "is not a recording of watchtower"),
        (gzip.compress(b"[1]\n"), "is not a recording of watchtower"),
        (gzip.compress(b'{"format": 1}\n'), "is not a recording of watchtower"),
        (b"\x1f\x8b not gzip", "is not a recording of watchtower"),
    ],
    ids=["empty", "nothing in it", "another JSON", "no header", "not gzip"],
)
def test_a_file_that_is_no_recording_is_refused(tmp_path, content, words):
    file = tmp_path / "x.gz"
    file.write_bytes(content)
    with pytest.raises(RecordingError, match=words):
        Recording(file)


def rewritten(source: Path, target: Path, change: Callable[[list[bytes]], list[bytes]]) -> Path:
    """A recording with other lines."""
    lines = gzip.decompress(source.read_bytes()).splitlines()
    target.write_bytes(gzip.compress(b"".join(line + b"\n" for line in change(lines))))
    return target


@pytest.mark.parametrize(
    "line",
    [
        b'{"input":"tock","at":1e4}',
        b'{"input":"tick","at":1e300}',
        b'{"input":"tick","at":NaN}',
        b'{"input":"tick","at":1.0}',
        b"[" * 2000,
        b"not JSON",
    ],
)
def test_a_broken_input_ends_the_replay_and_is_named(told, tmp_path, capsys, line):
    file = rewritten(told[1][0], tmp_path / "x.gz", lambda lines: [*lines[:-1], line])
    assert main(["replay", str(file)]) == 0
    text = capsys.readouterr().out
    assert "the recording ends here: line " in text
    assert "suspect: rank 2" in text


def test_a_body_that_is_no_dump_fails_alone(told, tmp_path):
    bad = b'{"input":"dumps","at":0.0,"batch":{"version":1}}'

    def add(lines: list[bytes]) -> list[bytes]:
        return [lines[0], bad.replace(b"0.0", b"%r" % json.loads(lines[1])["at"]), *lines[1:]]

    effects = effects_of(rewritten(told[1][0], tmp_path / "x.gz", add), tmp_path / "a")
    assert any("ValidationError" in e.get("failed", "") for e in effects)
    assert "opened" in [e.get("incident") for e in effects]


def test_a_tower_that_failed_can_be_replayed(told, tmp_path, monkeypatch):
    """The recording of a tower with a fault is what this is for."""
    take_report, failures = Fleet.take_report, iter([True])

    def fail_once(fleet: Fleet, report: Report, now: float) -> object:
        if next(failures, False):
            raise KeyError("a fault of the tower")
        return take_report(fleet, report, now)

    monkeypatch.setattr(Fleet, "take_report", fail_once)
    effects = effects_of(told[1][0], tmp_path / "a")
    assert [e["failed"] for e in effects if "failed" in e] == ["KeyError: 'a fault of the tower'"]
    assert "opened" in [e.get("incident") for e in effects]


def test_a_machine_may_have_been_up_for_years(told, tmp_path):
    def shift(lines: list[bytes]) -> list[bytes]:
        found = [json.loads(line) for line in lines]
        for one in found:
            for key in {"at", "now", "frozen_at"} & one.keys():
                one[key] += 1e8
        return [json.dumps(one).encode() for one in found]

    shifted = effects_of(rewritten(told[1][0], tmp_path / "x.gz", shift), tmp_path / "a")
    assert "opened" in [e.get("incident") for e in shifted]


def test_a_diagnosis_that_did_not_end_before_the_tower_was_killed_opens_no_incident(told, tmp_path):
    def cut(lines: list[bytes]) -> list[bytes]:
        first = next(at for at, line in enumerate(lines) if b'"input":"diagnosed"' in line)
        return lines[:first]

    effects = effects_of(rewritten(told[1][0], tmp_path / "x.gz", cut), tmp_path / "a")
    assert [e for e in effects if "incident" in e] == []
    assert any("suspect" in e.get("log", "") for e in effects)


def test_a_cancelled_diagnosis_has_no_end():
    noted: list[Input] = []

    class Slow(InThread):
        def ask(self, request, *, brief=False):
            raise AssertionError("it is cancelled before")

    async def story() -> None:
        runner = DiagnosisRunner(Clock(), noted.append, Slow)
        busy = [runner._brief.take(f"o{n}", "", again=False) for n in range(2)]
        for each in busy:
            await each.__aenter__()
        task = asyncio.create_task(runner.run("j", "o", "", Tries(), lambda: lambda: None))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for each in busy:
            await each.__aexit__(None, None, None)
        runner.stop()

    asyncio.run(story())
    assert [type(one) for one in noted] == [DiagnosisAsked]


def test_a_replay_starts_no_thread_and_leaves_none_after_an_error(told, tmp_path):
    # A thread of an earlier test may end meanwhile: only a new one counts.
    before = set(threading.enumerate())
    file = rewritten(told[1][0], tmp_path / "x.gz", lambda lines: [*lines[:20], b"torn"])
    seen: set[threading.Thread] = set()
    effects = []
    with closing(SqliteStore(tmp_path / "x.db", inline=True)) as store:
        replay(file, store, lambda one: (effects.append(one), seen.update(threading.enumerate())))
    assert effects
    assert seen <= before


def test_an_export_may_come_from_a_pipe(tmp_path, capsys):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(b"{}"))
    writer.start()
    assert main(["replay", str(pipe)]) == 2
    writer.join(10)
    assert "is not an export of watchtower: Object missing" in capsys.readouterr().err


def test_a_recording_of_another_format_names_its_release(tmp_path):
    file = tmp_path / "x.gz"
    newer = header()
    newer.format, newer.watchtower = 99, "7.0"
    Recorder(file, newer).close(6.0)
    with pytest.raises(RecordingError, match=r"written by watchtower 7\.0: replay it with that"):
        Recording(file)


def test_only_its_owner_may_read_a_recording_and_none_is_overwritten(tmp_path):
    for name in ("x.gz", "x.2.gz", "x.3.gz"):
        recorder = Recorder(tmp_path / "x.gz", header())
        recorder.close(6.0)
        assert recorder.path == tmp_path / name
        assert recorder.path.stat().st_mode & 0o777 == 0o600
        Recording(recorder.path)


@pytest.mark.parametrize("name", [".", "/", "folder", "pipe", "/dev/null"])
def test_only_a_regular_file_is_written(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    os.mkfifo("pipe")
    with pytest.raises(RecordingError, match="is not a regular file"):
        Recorder(Path(name), header())
    assert sorted(os.listdir()) == ["folder", "pipe"]


def test_an_input_that_is_no_text_ends_the_recording(tmp_path, caplog):
    recorder = Recorder(tmp_path / "x.gz", header())
    recorder.note(Unsilenced(at=6.0, silence="\ud800"))
    recorder.close(7.0)
    assert "ends here: an input cannot be written" in caplog.text


def test_a_place_where_nothing_can_be_written_is_named(tmp_path):
    with pytest.raises(RecordingError, match=f"cannot record to {tmp_path}/a/x.gz: No such file"):
        Recorder(tmp_path / "a" / "x.gz", header())


def test_a_recording_with_its_largest_size_ends_and_the_tower_goes_on(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(recording, "MAX_BYTES", 2000)
    recorder = Recorder(tmp_path / "x.gz", header())
    for number in range(5000):
        recorder.note(Ticked(at=6 + number + os.urandom(1)[0] / 256))
    recorder.close(6000.0)
    assert (tmp_path / "x.gz").stat().st_size < 4000
    assert [r.message for r in caplog.records].count(caplog.records[0].message) == 1
    assert "ends here: it has" in caplog.text
    assert len(list(Recording(tmp_path / "x.gz").inputs())) > 50


def test_a_disk_that_is_too_slow_ends_the_recording_and_holds_little_memory(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(recording, "MAX_WAITING_BYTES", 1000)
    recorder = Recorder(tmp_path / "x.gz", header())
    for number in range(100_000):
        recorder.note(Ticked(at=float(number)))
    recorder.close(1e6)
    assert "ends here: its inputs come faster than they can be written" in caplog.text
    Recording(tmp_path / "x.gz")
