"""Archives are read without unpacking them, as far as they go, and never without an end."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.field.field_case import watchdog
from watchtower.readers import archives
from watchtower.readers.archives import read_all

LOGS = {f"logs/rank{rank}.log": watchdog(rank, 808).encode() for rank in range(3)}


def read(name, raw):
    return list(read_all(name, io.BufferedReader(io.BytesIO(raw))))


def a_tar(files, mode="w"):
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode=mode) as archive:
        for name, raw in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(raw)
            archive.addfile(entry, io.BytesIO(raw))
    return target.getvalue()


def a_zip(files):
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, raw in files.items():
            archive.writestr(name, raw)
    return target.getvalue()


@pytest.mark.parametrize(
    "raw",
    [
        a_tar(LOGS),
        a_tar(LOGS, "w:gz"),
        a_tar(LOGS, "w:xz"),
        a_tar(LOGS, "w:bz2"),
        a_zip(LOGS),
        a_zip({f"{name}.gz": gzip.compress(log) for name, log in LOGS.items()}),
        a_tar({"inner.tar.gz": a_tar(LOGS, "w:gz")}, "w:gz"),
    ],
    ids=["tar", "tgz", "txz", "tbz", "zip", "gz in zip", "tgz in tgz"],
)
def test_each_file_of_an_archive_is_one_of_its_own(raw):
    found = read("job", raw)
    assert [each.owner.rank for each in found] == [0, 1, 2]
    assert [len(each.findings) for each in found] == [1, 1, 1]
    assert not any(each.trouble for each in found)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_compressed_log_has_the_rank_of_its_name(pack):
    found = read("rank7.log.gz", pack(b"step 807\n"))
    assert [(each.owner.rank, each.last_line) for each in found] == [(7, "step 807")]


def test_a_copy_that_was_cut_off_is_read_as_far_as_it_goes():
    log = watchdog(2, 808).encode() + bytes(range(32, 127)) * 9
    packed = gzip.compress(log + b"".join(b"%d\n" % number**5 for number in range(20_000)))
    (found,) = read("rank2.log.gz", packed[: len(packed) // 2])
    assert found.findings
    assert "in part" in found.trouble


def test_nothing_is_read_through_links_and_devices():
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, kind in (("rank1.log", tarfile.SYMTYPE), ("rank2.log", tarfile.LNKTYPE),
                           ("rank3.log", tarfile.CHRTYPE)):  # fmt: skip
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "/etc/passwd"
            archive.addfile(entry)
    assert read("job.tar", target.getvalue()) == []


def test_names_that_leave_the_archive_write_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = read("job", a_tar({"../../rank1.log": b"step\n", "/etc/rank2.log": b"step\n"}))
    assert [each.owner.rank for each in found] == [1, 2]
    assert list(tmp_path.iterdir()) == []


def test_a_bomb_ends_at_the_bound(monkeypatch):
    monkeypatch.setattr(archives, "MAX_UNPACKED_BYTES", 1 << 20)
    bomb = gzip.compress(b"\n" * (8 << 20))
    found = read("job", a_zip({"a.gz": bomb, "b.gz": bomb}))
    assert found[0].lines <= 1 << 20
    assert any("read in part" in each.trouble for each in found)
    layers = b"x\n"
    for _ in range(9):
        layers = gzip.compress(layers)
    assert "too many" in read("a", layers)[0].trouble


def test_a_checkpoint_is_no_archive_of_evidence():
    assert read("model.pt", a_zip({"model/data.pkl": b"\x80\2}", "model/data/0": b"x"})) == []


PACKED = [a_tar(LOGS), a_tar(LOGS, "w:gz"), a_zip(LOGS), gzip.compress(b"step 1\n")]


@settings(deadline=None)
@given(st.sampled_from(PACKED), st.data())
def test_a_damaged_archive_breaks_nothing(raw, data):
    changed = bytearray(raw[: data.draw(st.integers(0, len(raw)))])
    for _ in range(data.draw(st.integers(0, 6))):
        if changed:
            at = data.draw(st.integers(0, len(changed) - 1))
            changed[at : at + 2] = data.draw(st.binary(max_size=3))
    read("job", bytes(changed))
