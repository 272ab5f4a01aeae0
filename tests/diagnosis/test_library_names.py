"""Names of library functions do not decide: native places and collective logs show the waits.

In goldens of jobs whose collectives are queued, all functions and files of libraries get random
names. The same ranks must be accused in nine of ten cases.
"""

import random
import string
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from watchtower.diagnosis.diagnosis import diagnose
from watchtower.evidence.case import Case
from watchtower.wire.stacks import Frame

FOLDERS = sorted(Path(__file__).parent.glob("goldens/*_queued"))
SEEDS = range(10)
SHARE = 0.9


def with_random_names(case: Case, seed: int) -> Case:
    """Rename every function and file of a library, each name to one word."""
    words, chosen = random.Random(seed), {}

    def word(name: str) -> str:
        letters = words.choices(string.ascii_lowercase, k=8)
        return chosen.setdefault(name, "".join(letters))

    def rename(frame: Frame) -> Frame:
        if not frame.library:
            return frame
        file = f"/opt/{word(frame.file)}.py"
        return replace(frame, function=word(frame.function), file=file)

    stacks = tuple(
        replace(stack, frames=tuple(rename(frame) for frame in stack.frames))
        for stack in case.stacks
    )
    return replace(case, stacks=stacks)


def without_logs(case: Case) -> Case:
    ranks = tuple(
        replace(rank, dumps=tuple(replace(dump, collectives=None) for dump in rank.dumps))
        for rank in case.ranks
    )
    return replace(case, ranks=ranks)


def suspects(case: Case) -> list[int]:
    return sorted(suspect.rank for suspect in diagnose(case).suspects)


@pytest.mark.parametrize("has_logs", [True, False])
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_same_ranks_are_accused_whatever_libraries_call_their_functions(folder, has_logs):
    case = msgspec.json.decode((folder / "case.json").read_bytes(), type=Case)
    case = case if has_logs else without_logs(case)
    expected = suspects(case)
    right = [suspects(with_random_names(case, seed)) == expected for seed in SEEDS]
    assert sum(right) >= SHARE * len(right)
