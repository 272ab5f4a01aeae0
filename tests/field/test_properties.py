"""What holds for all files: damaged ones break nothing, a part of them names no wrong rank."""

from __future__ import annotations

import io
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.field.field_case import FieldCase, diagnose_folder, write
from tests.field.mutation import list_readers, try_mutated
from tests.field.node_cases import IBSTAT, LINK, SMI
from tests.field.test_field import CASES
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.fleet.found_case import make_case
from watchtower.fleet.found_files import sort_findings
from watchtower.readers.files import READERS, read_file

FILES = [
    (name, _as_bytes)
    for case in CASES
    for name, raw in case.files.items()
    for _as_bytes in [raw if isinstance(raw, bytes) else raw.encode()]
]
STRANGERS = {
    "README.md": b"# notes\nrank 9 was slow last week\n",
    "empty": b"",
    "core.1234": b"\x7fELF\x02\x01\x01\x00" + bytes(64),
    "config.json": b'{"world_size": "four", "entries": "none"}',
    "other_job.txt": b"world_size=64\nrestart_count=1\n",
    "setup.out": b'Traceback (most recent call last):\n  File "a.py", line 1\nOSError: x\n',
    "dmesg": b"NVRM: Xid (PCI:0000:3b:00): 79, pid=999999, GPU has fallen off the bus.\n",
    "messages": b"Nov 28 20:00:00 gpu-9 kernel: Out of memory: Killed process 999998 (python)\n",
    "node.txt": f"{LINK}{IBSTAT}{SMI.format(reset='Yes', pid=999_999)}".encode(),
    "serving.log": b"No available shared memory broadcast block found in 60 seconds.\n",
    "sacct.txt": b"4711  train  gpu  NODE_FAIL  1:0\n4711.0  python  OUT_OF_ME+  0:125\n",
    "model.pt": b"PK\3\4" + bytes(90),
    "notes.tar.gz": b"\x1f\x8b\x08\x00" + bytes(20),
}


@st.composite
def damaged(draw):
    """Return a file with a few bytes changed, cut, or repeated."""
    name, raw = draw(st.sampled_from(FILES))
    changed = bytearray(raw[: draw(st.integers(0, len(raw)))])
    for _ in range(draw(st.integers(0, 8))):
        if changed:
            at = draw(st.integers(0, len(changed) - 1))
            changed[at : at + draw(st.integers(0, 4))] = draw(st.binary(max_size=6))
    return name, bytes(changed)


@settings(deadline=None)
@given(st.lists(damaged(), max_size=6))
def test_damaged_files_break_nothing(files):
    found = [read_file(name, io.BufferedReader(io.BytesIO(raw))) for name, raw in files]
    diagnose(make_case("job", sort_findings(found)))


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.read.__qualname__)
@settings(deadline=None)
@given(st.data())
def test_a_reader_takes_any_bytes(reader, data):
    raw = data.draw(st.binary(max_size=400) | damaged().map(lambda pair: pair[1]))
    reader.read("rank3.log", io.BytesIO(raw))


@pytest.mark.parametrize("reader", list_readers())
def test_mutated_files_of_each_reader_break_nothing(reader):
    files = list_readers()[reader]
    assert files, "a reader without a case in tests/field"
    assert max(try_mutated(files, 25)) < 2.0


def has_one_run(case: FieldCase) -> bool:
    """Return whether no file is of an earlier run. Without the last run, another one shows."""
    return not any("attempt_" in name for name in case.files)


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.suspects and has_one_run(case)],
    ids=lambda case: case.name,
)
@settings(deadline=None)
@given(st.data())
def test_a_part_of_the_files_names_no_wrong_rank(case: FieldCase, data):
    names = data.draw(st.sets(st.sampled_from(sorted(case.files))))
    part = {name: case.files[name] for name in names}
    part |= {
        name: STRANGERS[name] for name in data.draw(st.sets(st.sampled_from(sorted(STRANGERS))))
    }
    with TemporaryDirectory() as folder:
        verdict = diagnose_folder(
            write(FieldCase(name="part", report="", files=part), Path(folder))
        )
    named = {suspect.rank for suspect in verdict.suspects}
    assert named <= case.suspects, verdict.summary


def _grow(raw: bytes, times: int) -> float:

    started = time.process_time()
    read_file("rank3.log", io.BufferedReader(io.BytesIO(raw * times)))
    return time.process_time() - started


@pytest.mark.parametrize(
    "raw",
    [
        b"Traceback (most recent call last):\n",
        b"[rank1]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=",
        b"Thread 0x7f (most recent call first):\n",
        b"NCCL WARN NCCL WARN ",
        b"  time      : 2026\n",
        b"\x1b[31m",
        b"[rank1]: world_size=8 ",
        b"Init START comm 0xa rank ",
        b"Ranks 1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,",
        b"\n",
        b"x",
    ],
)
def test_the_time_is_in_proportion_to_the_file(raw):
    times = 1_000_000 // len(raw)
    short, long = _grow(raw, times), _grow(raw, 4 * times)
    assert long < 8 * short + 0.5
