"""The output of a snapshot, without any process."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from agent.cli import parse
from agent.ranks.found_rank import JobKey
from agent.snapshot import command
from agent.snapshot.command import (
    CUT,
    DROPPED,
    default_path,
    describe,
    encode_snapshot,
    write_file,
    write_output,
)
from agent.snapshot.taking import find_undumped
from tests.diagnosis.builders import FETCHING, IN_ALL_REDUCE, a_failure, a_rank
from tests.snapshots import a_snapshot, merge
from watchtower.wire.dumps import FailureKind
from watchtower.wire.report import AgentGaps
from watchtower.wire.snapshot import JobGap, Snapshot

NODE = [a_rank(0), a_rank(1), a_rank(2, FETCHING), a_rank(3)]
OWNER = "uid:1000"
DECODER = msgspec.json.Decoder(Snapshot)


def test_the_ranks_are_grouped_by_stack_and_the_odd_one_is_named():
    lines = describe(a_snapshot(NODE, size=8)).splitlines()
    assert lines[1] == "job llama: ranks 0-3 of 8"
    assert lines[2] == "  rank 2: S recvfrom"
    assert lines[3] == "      ShardReader.read (/home/ann/job/data.py:31)"
    assert "  ranks 0-1,3: S recvfrom" in lines
    assert "odd rank: 2 (pid 4002)" in lines[-1]


@pytest.mark.parametrize(
    "built",
    [
        [a_rank(0)],
        [a_rank(0), a_rank(1)],
        [a_rank(0), a_rank(1, FETCHING)],
        [a_rank(0), a_rank(1), a_rank(2, FETCHING), a_rank(3, FETCHING)],
    ],
)
def test_without_a_majority_no_rank_is_odd(built):
    assert "no odd rank" in describe(a_snapshot(built)).splitlines()[-1]


def test_a_rank_without_a_stack_is_not_compared():
    failed = [a_rank(n, failure=a_failure(FailureKind.REFUSED, "no")) for n in range(3)]
    assert describe(a_snapshot(failed)).endswith("no odd rank: no stack was read")
    one = describe(a_snapshot([*failed, a_rank(3)]))
    assert one.endswith("no odd rank: one rank only (3 without a stack left out)")
    both = describe(a_snapshot([failed[0], a_rank(1), a_rank(2), a_rank(3, FETCHING)]))
    assert "odd rank: 3 (pid 4003)" in both


def test_what_a_job_lacks_is_shown_below_it():
    taken = merge(a_snapshot(NODE), a_snapshot(NODE, job="bert\x1b"))
    assert "missing" not in describe(taken)
    gap = JobGap(job="bert\x1b", owner=OWNER, text="its ranks were\x1b not dumped")
    both = describe(replace(taken, gaps=(gap,))).splitlines()
    assert both[-1] == "  missing: its ranks were  not dumped"
    lost = tuple(each for each in taken.dumps if each.job == "llama")
    alone = describe(replace(taken, dumps=lost, gaps=(gap,))).splitlines()
    assert alone[-2].startswith("job bert")
    assert alone[-1] == both[-1]
    assert all(map(str.isprintable, alone))


def test_a_job_without_two_dumps_has_a_gap_with_the_reason():
    jobs = [JobKey(name, OWNER) for name in ("done", "once", "hung", "waits")]
    snapshots = {name: a_snapshot(NODE, job=name) for name in ("done", "once")}
    dumps = [*snapshots["done"].dumps, snapshots["once"].dumps[0]]
    found = {gap.job: gap.text for gap in find_undumped(jobs, {jobs[3]}, dumps, 33.0)}
    assert list(found) == ["once", "hung", "waits"]
    assert "once only" in found["once"]
    assert "no dump ended within 33 s" in found["hung"]
    assert "the dumps of 4 other jobs did not end within 33 s" in found["waits"]
    other = find_undumped([JobKey("done", "uid:7")], (), dumps, 33.0)
    assert [(gap.job, gap.owner) for gap in other] == [("done", "uid:7")]


def test_a_stopped_rank_with_the_stack_of_the_others_is_odd():
    lines = describe(a_snapshot([a_rank(0), a_rank(1), a_rank(2, state="T")])).splitlines()
    assert "  rank 2: T recvfrom" in lines
    assert "odd rank: 2" in lines[-1]


def test_each_job_of_the_node_has_its_lines():
    both = merge(a_snapshot(NODE), a_snapshot(NODE, job="bert"))
    jobs = [line for line in describe(both).splitlines() if line.startswith("job ")]
    assert jobs == ["job llama: ranks 0-3", "job bert: ranks 0-3"]


def test_limits_and_failed_dumps_are_shown():
    failed = a_rank(1, failure=a_failure(FailureKind.REFUSED, "py-spy may not read it"))
    snapshot = a_snapshot([a_rank(0), failed])
    limited = replace(snapshot.reports[1], limits=AgentGaps(process="finds only ranks of user 7"))
    text = describe(replace(snapshot, reports=(snapshot.reports[0], limited)))
    assert "limit: finds only ranks of user 7" in text
    assert "no stack: py-spy may not read it" in text


def test_no_text_of_a_process_reaches_the_terminal_as_anything_but_text():
    odd = a_rank(2, "\x1b[2Jfetch\u202e \x1b]0;x.py:3", target="/mnt/\x1b[31m\nfake: line")
    text = describe(a_snapshot([a_rank(0), a_rank(1), odd], job="a\x1b[1mb"))
    assert all(line.isprintable() for line in text.splitlines())
    assert "fake: line" not in text.splitlines()


def test_a_file_is_one_line_that_a_reader_takes():
    snapshot = a_snapshot(NODE)
    line, gaps = encode_snapshot(snapshot)
    assert line.count(b"\n") == 1
    assert DECODER.decode(line) == snapshot
    assert gaps == ()


def test_a_file_is_never_longer_than_its_limit_and_says_what_it_lacks():
    deep = a_rank(0, " < ".join([IN_ALL_REDUCE] * 20))
    early = JobGap(job="bert", owner=OWNER, text="its ranks were not dumped")
    snapshot = replace(a_snapshot([deep, *NODE[1:]]), gaps=(early,))
    whole = len(encode_snapshot(snapshot).line)
    for limit, words in ((whole - 1, CUT), (whole * 3 // 4, CUT), (5400, DROPPED)):
        line, gaps = encode_snapshot(snapshot, limit)
        assert len(line) <= limit
        read = DECODER.decode(line)
        assert read.node == snapshot.node
        assert read.gaps == gaps == (early, JobGap(job="llama", owner=OWNER, text=words))


def test_ranks_that_fit_into_no_report_are_counted():
    taken, job = a_snapshot(NODE), "\U0001f600" * 256
    first, last = taken.reports
    endless = tuple(replace(last.ranks[0], job=job, owner=job, rank=n, pid=n) for n in range(1000))
    taken = replace(taken, reports=(first, replace(last, ranks=(*last.ranks, *endless))))
    line, gaps = encode_snapshot(taken)
    read = DECODER.decode(line)
    lost = len(taken.reports[1].ranks) - len(read.reports[1].ranks)
    assert lost > 0
    assert [(gap.job, gap.text.partition(" of ")[0]) for gap in gaps] == [(job, str(lost))]
    assert read.gaps == gaps


def test_an_unknown_field_of_a_newer_release_is_ignored():
    fields = msgspec.to_builtins(a_snapshot(NODE)) | {"later": {"a": [1]}}
    assert DECODER.decode(msgspec.json.encode(fields)) == a_snapshot(NODE)


def test_the_file_belongs_to_its_user_alone_and_replaces_an_earlier_one(tmp_path: Path):
    path = tmp_path / "n0.json"
    for content in (b"first\n", b"second\n"):
        write_file(str(path), content)
        assert path.read_bytes() == content
        assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["n0.json"]


def test_a_link_that_another_user_put_there_is_not_followed(tmp_path: Path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "n0.json").symlink_to(victim)
    write_file(str(tmp_path / "n0.json"), b"mine\n")
    assert victim.read_text() == "precious"
    assert (tmp_path / "n0.json").read_text() == "mine\n"


def test_a_link_to_a_pipe_is_replaced_unless_the_user_named_it(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / "n0.json"
    path.symlink_to(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_output(str(path), b"named\n")
        assert os.read(reader, 100) == b"named\n"
        write_file(str(path), b"mine\n")
        assert os.read(reader, 100) == b""
    finally:
        os.close(reader)
    assert path.read_text() == "mine\n"


def test_a_folder_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path):
    with pytest.raises(OSError, match="No such file"):
        write_file(str(tmp_path / "missing" / "n0.json"), b"x\n")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("node", ["gpu-001", "../../etc/passwd", "a b\x1b", "x" * 250])
def test_the_name_of_the_file_is_in_this_folder(node: str):
    path = default_path(node)
    assert "/" not in path
    assert path.isprintable()
    assert len(path) < 200


def test_no_tower_is_needed_and_the_options_are_checked(capsys: pytest.CaptureFixture[str]):
    for words in (["--match", "x"], ["--node", ""], ["--tower", "http://t:1"]):
        with pytest.raises(SystemExit) as ended:
            parse(["snapshot", *words])
        assert ended.value.code == 2
    assert "--tower" in capsys.readouterr().err


def test_a_write_to_standard_output_that_ends_early_is_an_error(monkeypatch: pytest.MonkeyPatch):
    """With PYTHONUNBUFFERED, as in many containers, a full disk takes a part without an error.

    A full pipe does the same.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with open(reader, "rb"), open(writer, "wb", buffering=0) as raw:
        text = io.TextIOWrapper(raw, write_through=True)
        monkeypatch.setattr("sys.stdout", text)
        with pytest.raises(OSError, match="could not complete"):
            write_output("-", bytes(1 << 20))
        monkeypatch.undo()
        text.detach()


class Taker:
    """Takes the same snapshot each time."""

    unwatched_texts = ()

    def __init__(self, options: object) -> None:
        pass

    def find_ranks(self) -> bool:
        return True

    def take(self) -> Snapshot:
        return a_snapshot(NODE)


@pytest.mark.parametrize(("folder", "code"), [("", 0), ("missing", 5)])
def test_the_exit_code_is_that_of_the_file_also_if_no_process_reads_the_text(
    folder: str, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    path = tmp_path / folder / "n0.json"
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(command, "SnapshotTaker", Taker)
    with open(writer, "w", encoding="utf-8") as closed:
        monkeypatch.setattr("sys.stdout", closed)
        with pytest.raises(SystemExit) as ended:
            parse(["snapshot", "-o", str(path)])
        monkeypatch.undo()
    assert ended.value.code == code
    if code == 0:
        assert DECODER.decode(path.read_bytes()).node == a_snapshot(NODE).node


def test_an_interrupted_snapshot_ends_without_a_traceback(monkeypatch: pytest.MonkeyPatch):
    def interrupt(_taker: Taker) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "SnapshotTaker", Taker)
    monkeypatch.setattr(Taker, "find_ranks", interrupt)
    with pytest.raises(SystemExit) as ended:
        parse(["snapshot"])
    assert ended.value.code == 130
