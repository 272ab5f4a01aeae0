"""Known bugs: which versions have them, and what the table contains."""

import re

import pytest

from watchtower.evidence.frames import FrameClass
from watchtower.evidence.known_bugs import DEVICE, KNOWN_BUGS, SET_UP, read_version, versions_of
from watchtower.wire.dumps import KernelWait, RankDump, Software

PROXY, SET_UP_HANGS, NVLS = KNOWN_BUGS


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.27.3", (2, 27, 3)),
        ("2.27.3+cuda12.9", (2, 27, 3)),
        ("535.104.05", (535, 104, 5)),
        ("6.8.0-40-generic", (6, 8, 0)),
        ("aarch64", ()),
        ("", ()),
    ],
)
def test_a_version_is_compared_by_its_numbers(text, version):
    assert read_version(text) == version


@pytest.mark.parametrize(
    ("version", "machine", "has"),
    [
        ("2.29.2", "aarch64", True),
        ("2.9", "aarch64", True),
        ("2.29.3", "aarch64", False),
        ("2.29.2", "x86_64", False),
        ("2.29.2", "", False),
        ("", "aarch64", False),
    ],
)
def test_a_bug_of_one_machine_before_one_version(version, machine, has):
    assert PROXY.has({"nccl": version, "machine": machine}) is has


def test_a_bug_of_one_series():
    versions = ["2.25.9", "2.26", "2.26.5+cuda12.8", "2.27.0"]
    assert [SET_UP_HANGS.has({"nccl": each}) for each in versions] == [False, True, True, False]


def test_where_a_bug_is_seen():
    assert PROXY.shows(FrameClass.USER, in_device=True, error="")
    assert not PROXY.shows(FrameClass.COLLECTIVE, in_device=False, error="")
    assert SET_UP_HANGS.shows(FrameClass.INIT, in_device=False, error="")
    assert not SET_UP_HANGS.shows(FrameClass.USER, in_device=True, error="")
    error = "transport/nvls.cc:254 NCCL WARN Cuda failure 'invalid argument'"
    assert NVLS.shows(FrameClass.NONE, in_device=False, error=error)
    assert not NVLS.shows(FrameClass.NONE, in_device=False, error="")


def test_the_newest_dump_with_versions_counts():
    def dump(*software):
        return RankDump(rank=0, pid=1, start_time=1, kernel=KernelWait(), software=software)

    nccl = Software(name="nccl", version="2.27.3")
    assert versions_of([dump(nccl), dump()]) == {"nccl": "2.27.3"}
    assert versions_of([dump()]) == {}


@pytest.mark.parametrize("bug", KNOWN_BUGS, ids=lambda bug: bug.link)
def test_an_entry_is_complete(bug):
    assert bug.library
    assert bug.link.startswith("https://")
    assert bug.waits in ("", DEVICE, SET_UP)
    assert bug.error is not None or bug.waits
    assert bug.at_least or bug.below or bug.error is not None
    assert not re.search(r"[.;]$", bug.text + bug.advice)
