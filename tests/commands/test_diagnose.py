"""`watchtower diagnose`: files of any user, also hostile ones."""

from __future__ import annotations

import json
import os
import resource
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.diagnosis.builders import FETCHING
from tests.fleet.test_snapshots import SIZE, nodes, rank
from tests.snapshots import GAP_S, TAKEN_AT, as_line, merge
from watchtower.cli import main
from watchtower.commands import diagnosing, snapshot_files
from watchtower.wire.report import Beat
from watchtower.wire.snapshot import MAX_SNAPSHOT_BYTES, JobGap

HUNG = nodes(rank(5, FETCHING))


@pytest.fixture
def diagnose(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Write each content to a file, and diagnose them a minute after the snapshots."""
    monkeypatch.setattr(diagnosing, "time", SimpleNamespace(time=lambda: TAKEN_AT + 60))

    def run(*contents: bytes, options: tuple[str, ...] = ()) -> tuple[int, str, str]:
        files = []
        for number, content in enumerate(contents):
            files.append(tmp_path / f"{number}.json")
            files[-1].write_bytes(content)
        code = main(["diagnose", *map(str, files), *options])
        text = capsys.readouterr()
        return code, text.out, text.err

    return run


def test_the_verdict_is_the_one_of_why(diagnose):
    code, text, _ = diagnose(*map(as_line, HUNG))
    assert code == 0
    assert text.startswith("llama: suspect, dataloader_stall")
    assert "rank 5" in text
    code, text, _ = diagnose(*map(as_line, HUNG), options=("--json", "--exit-code"))
    verdict = json.loads(text)
    assert (code, verdict["status"], verdict["incident"]) == (1, "suspect", None)
    assert [suspect["rank"] for suspect in verdict["suspects"]] == [5]


YOUNG = {r: (Beat(step=7, age_s=20.0), Beat(step=7, age_s=20.0 + GAP_S)) for r in range(SIZE)}


@pytest.mark.parametrize(
    ("beats", "caveat"),
    [
        (None, "the two rounds of these snapshots are 3 s apart and no rank has heartbeats"),
        (YOUNG, "the last step of the rank that stopped first is 23 s old"),
    ],
)
def test_a_job_that_may_be_healthy_has_this_caveat_first_in_text_and_json(diagnose, beats, caveat):
    """Also beside other missing evidence, of which the text of a verdict has one line."""
    files = [as_line(nodes(rank(1, FETCHING), beats=beats)[0])]
    _, text, _ = diagnose(*files, options=("--json",))
    gaps = json.loads(text)["missing_evidence"]
    assert gaps[0].startswith(caveat)
    assert len(gaps) > 1
    _, text, _ = diagnose(*files)
    assert f"not known: {caveat}" in text
    assert [gap for gap in gaps[1:] if f"also not known: {gap}" not in text] == []


def test_what_a_snapshot_lacks_is_in_the_verdict_of_its_job(diagnose):
    gap = JobGap(job="llama", owner="uid:1000", text="its ranks were not dumped")
    files = [as_line(replace(HUNG[0], gaps=(gap,))), as_line(HUNG[1])]
    _, text, error = diagnose(*files, options=("--json",))
    assert f"{HUNG[0].node}: {gap.text}" in json.loads(text)["missing_evidence"]
    _, text, _ = diagnose(*files)
    assert f"not known: {HUNG[0].node}: {gap.text}" in text
    assert error == ""


@pytest.mark.parametrize(("options", "is_named"), [((), True), (("--job", "llama"), False)])
def test_a_job_without_any_rank_in_the_files_is_named(diagnose, options, is_named):
    lost = [JobGap(job=f"bert\x1b{n}", owner="uid:7", text="all are lost") for n in range(20)]
    _, _, error = diagnose(as_line(replace(HUNG[0], gaps=tuple(lost))), options=options)
    assert ("0.json has no rank of job 'bert?0': all are lost" in error) is is_named
    assert ("12 more such jobs" in error) is is_named
    assert "\x1b" not in error


def test_one_file_may_contain_the_lines_of_all_nodes(diagnose):
    code, text, _ = diagnose(b"\n".join(map(as_line, HUNG)), options=("--json",))
    assert (code, json.loads(text)["waiting"]) == (0, "0-4,6-7")


def test_jobs_are_separate_and_one_may_be_chosen(diagnose):
    both = [merge(a, b) for a, b in zip(HUNG, nodes(job="bert"), strict=True)]
    _, text, _ = diagnose(*map(as_line, both), options=("--json",))
    assert [json.loads(line)["job"] for line in text.splitlines()] == ["bert", "llama"]
    _, text, _ = diagnose(*map(as_line, both), options=("--json", "--job", "llama"))
    assert [json.loads(line)["job"] for line in text.splitlines()] == ["llama"]
    code, _, error = diagnose(*map(as_line, both), options=("--job", "gpt"))
    assert (code, "of job 'gpt' in these files, only of 'bert', 'llama'" in error) == (2, True)


def test_files_of_different_times_are_refused(diagnose):
    old = replace(HUNG[0], taken_at=TAKEN_AT - 3600)
    code, text, error = diagnose(as_line(old), as_line(HUNG[1]))
    assert (code, text) == (2, "")
    assert all(word in error for word in ("60 min apart", "0.json", "1.json", "--within"))
    code, text, _ = diagnose(as_line(old), as_line(HUNG[1]), options=("--within", "2h"))
    assert code == 0
    assert "rank 5" in text


def test_an_earlier_file_of_a_node_is_named_and_not_used(diagnose):
    old = [replace(each, taken_at=TAKEN_AT - 9) for each in nodes(rank(2, FETCHING))]
    code, text, error = diagnose(*map(as_line, [*old, *HUNG]), options=("--json",))
    assert [suspect["rank"] for suspect in json.loads(text)["suspects"]] == [5]
    assert "0.json is not used" in error
    assert "1.json is not used" in error
    assert code == 0


@pytest.mark.parametrize(("age_s", "is_old"), [(60.0, False), (7300.0, True)])
def test_the_time_of_an_old_snapshot_is_printed(diagnose, monkeypatch, age_s, is_old):
    monkeypatch.setattr(diagnosing, "time", SimpleNamespace(time=lambda: TAKEN_AT + age_s))
    _, text, error = diagnose(*map(as_line, HUNG))
    assert "rank 5" in text
    assert ("'llama' is of 2026-11-22 16:03:12 UTC, 2 h ago, when its latest" in error) is is_old
    assert bool(error) is is_old


def changed(**fields: object) -> bytes:
    return json.dumps(json.loads(as_line(HUNG[0])) | fields).encode()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"\n \n", "empty"),
        (b"{", "not a snapshot"),
        (b"[1, 2]", "not a snapshot"),
        (b"null", "not a snapshot"),
        (b"[" * 100_000, "not a snapshot"),
        (b'{"format": "watchtower-incident-1"}', "not a snapshot"),
        (b'{"format": "watchtower-snapshot-2"}', "another release"),
        (b"\xff\xfe\x00", "not a snapshot"),
        (as_line(HUNG[0])[:2000], "is cut off"),
        (changed(reports=[]), "must have 2"),
        (changed(node="other"), "differs"),
        (changed(taken_at=-1), "taken_at"),
        (changed(gap_s="1e999"), "gap_s"),
        (changed(format="watchtower-snapshot-1\x1b[2J" + "x" * 5000), "another release"),
    ],
)
def test_a_hostile_file_is_named_and_the_others_are_diagnosed(diagnose, content, words):
    code, text, error = diagnose(as_line(HUNG[1]), content)
    assert code == 2
    assert "rank 5" in text
    assert "1.json" in error
    assert words in error
    assert len(error) < 1000
    assert error.rstrip("\n").isprintable()


def test_files_of_which_none_can_be_used_are_all_named(diagnose):
    code, text, error = diagnose(b"", b"[1, 2]", options=("--exit-code",))
    assert (code, text) == (2, "")
    assert [line.partition(".json ")[2][:8] for line in error.splitlines()] == [
        "is empty",
        "is not a",
    ]


def test_a_file_that_does_not_exist_is_named_and_the_others_are_diagnosed(tmp_path, capsys):
    (tmp_path / "n0.json").write_bytes(as_line(HUNG[1]))
    code = main(["diagnose", str(tmp_path / "n0.json"), str(tmp_path / "n1.json"), "--exit-code"])
    text = capsys.readouterr()
    assert code == 2
    assert "rank 5" in text.out
    assert "n1.json': No such file or directory. The other files" in text.err


def test_lines_before_one_that_is_not_a_snapshot_are_used(diagnose):
    code, text, error = diagnose(as_line(HUNG[1]) + b"{\n" + as_line(HUNG[0]))
    assert code == 2
    assert "rank 5" in text
    assert "0.json, line 2 is not a snapshot" in error


def test_a_longer_line_is_refused_before_it_is_parsed(diagnose, monkeypatch):
    monkeypatch.setattr(snapshot_files, "MAX_SNAPSHOT_BYTES", 10_000)
    code, _, error = diagnose(b" " * 10_001)
    assert (code, "not a snapshot" in error) == (2, True)
    assert MAX_SNAPSHOT_BYTES < 64 << 20


def test_too_much_at_once_is_refused(diagnose, monkeypatch):
    monkeypatch.setattr(snapshot_files, "MAX_SNAPSHOTS", 1)
    code, _, error = diagnose(*map(as_line, HUNG))
    assert (code, "too much" in error) == (2, True)


def test_a_pipe_and_a_folder_are_refused(tmp_path: Path, capsys):
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", ""):
        assert main(["diagnose", str(tmp_path / name)]) == 2
        assert str(tmp_path) in capsys.readouterr().err


def test_texts_of_a_process_are_printable(diagnose):
    batch = HUNG[1].dumps[1]
    odd = replace(batch.ranks[1].kernel, target="\x1b]0;owned\x07/mnt\u202e")
    ranks = tuple(replace(r, kernel=odd) if r.rank == 5 else r for r in batch.ranks)
    hostile = replace(HUNG[1], dumps=(HUNG[1].dumps[0], replace(batch, ranks=ranks)))
    _, text, _ = diagnose(as_line(HUNG[0]), as_line(hostile))
    assert all(line.isprintable() for line in text.splitlines())


def test_files_that_need_too_long_are_given_up(diagnose, monkeypatch):
    def spin(_case):
        while True:
            pass

    monkeypatch.setattr(snapshot_files, "CPU_S", 0.2)
    monkeypatch.setattr(diagnosing, "diagnose", spin)
    code, _, error = diagnose(*map(as_line, HUNG))
    assert (code, "CPU time" in error) == (2, True)


def test_files_that_need_too_much_memory_are_given_up(diagnose, monkeypatch):
    monkeypatch.setattr(diagnosing, "diagnose", lambda _case: bytearray(1 << 33))
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    code, _, error = diagnose(*map(as_line, HUNG))
    assert (code, "memory" in error) == (2, True)
    assert resource.getrlimit(resource.RLIMIT_DATA) == limits
