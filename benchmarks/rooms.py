"""How many files of the product one diagnosis enters, and how often it crosses between them.

Each file is a room that a reader must enter, too. `python -m benchmarks.rooms [GOLDEN]`: a folder
of `tests/diagnosis/goldens`, by default eight ranks of which one waits for its data.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import msgspec

from watchtower.diagnosis.diagnosis import diagnose
from watchtower.evidence.case import Case

ROOT = Path(__file__).resolve().parents[1]
GOLDENS = ROOT / "tests" / "diagnosis" / "goldens"
_CASES = msgspec.json.Decoder(Case)


def count(case: Case) -> tuple[Counter[str], int]:
    """Return the calls into each file of one diagnosis, and how many of them came from another."""
    product = str(ROOT / "watchtower")
    entered = Counter[str]()
    crossed = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal crossed
        file, caller = frame.f_code.co_filename, frame.f_back
        if event == "call" and file.startswith(product):
            entered[file.removeprefix(f"{product}/")] += 1
            crossed += caller is not None and caller.f_code.co_filename != file

    sys.setprofile(note)
    try:
        diagnose(case)
    finally:
        sys.setprofile(None)
    return entered, crossed


def main(name: str = "dataloader_stall_ring") -> None:
    """Print both numbers, and the files with their calls."""
    case = _CASES.decode((GOLDENS / name / "case.json").read_bytes())
    diagnose(case)  # what is read or compiled once is not counted
    entered, crossed = count(case)
    print(f"{name}: {len(entered)} files entered, {crossed} borders crossed")
    for file, calls in entered.most_common():
        print(f"{calls:8} {file}")


if __name__ == "__main__":
    main(*sys.argv[1:])
