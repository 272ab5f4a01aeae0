import json
import re
from pathlib import Path

import msgspec
import pytest

from tests.core.test_properties import verdict_of
from watchtower.core.case import Case
from watchtower.ui.headline import write_headline
from watchtower.ui.words import CAUSES
from watchtower.wire.verdict import Cause, Status, Suspect, Verdict

GOLDENS = sorted(Path(__file__).parents[1].glob("core/goldens/*"))


def headline(summary: str, where: str | None = None) -> str:
    suspect = Suspect(rank=5, node="gpu-001", cause=Cause.UNKNOWN, why="", where=where)
    verdict = Verdict(
        job="llama", generation=1, status=Status.HUNG, summary=summary, suspects=(suspect,)
    )
    return write_headline(verdict)


@pytest.mark.parametrize(
    ("summary", "text"),
    [
        (
            "rank 5 (gpu-001, pid 1005) is stopped (state T), at shards.py:31 in read. It has made "
            "no step for 26 s. 7 ranks wait for rank 5 in reduce_scatter.",
            "Rank 5 is stopped (state T). 7 ranks wait for rank 5 in reduce_scatter.",
        ),
        (
            "Rank 5 (gpu-001, pid 1005) has been in `read` at data.py:28 for 9 s, in a call.",
            "Rank 5 has been in `read` at data.py:28, in a call.",
        ),
        (
            "Rank 5 (gpu-001, pid 1005) exited with code 3 (after step 41, 3 s ago). 7 ranks wait.",
            "Rank 5 exited with code 3 (after step 41). 7 ranks wait.",
        ),
        (
            "All 8 ranks have waited for 9 s. No rank is late.",
            "All 8 ranks have waited. No rank is late.",
        ),
    ],
)
def test_the_headline_leaves_out_what_the_page_shows_beside_it(summary, text):
    assert headline(summary, "shards.py:31 in read") == text


def test_other_text_of_a_process_stays():
    text = "Rank 5 (gpu-001, pid 1005) raised ValueError: waited (node 3) for 9 seconds (3 s ago)."
    assert headline(text) == "Rank 5 raised ValueError: waited (node 3) for 9 seconds."


@pytest.mark.parametrize("folder", GOLDENS, ids=lambda folder: folder.name)
def test_no_headline_has_an_age_or_a_process(folder):
    case = msgspec.json.decode((folder / "case.json").read_bytes(), type=Case)
    text = write_headline(verdict_of(case))
    assert len(text) > 20
    assert not re.search(r"for \d+ s\b[.,]|\d+ s ago|no step for|\.\.|,\.| \.", text), text
    truth = json.loads((folder / "truth.json").read_text("utf-8"))
    if len(truth["suspects"]) == 1 and text.startswith("Rank"):
        assert text.startswith(f"Rank {truth['suspects'][0]} "), text
        assert ", pid" not in text.partition(".")[0]


def test_every_cause_has_plain_words():
    assert set(CAUSES) == set(Cause)
    assert not any("_" in words or words.endswith(".") for words in CAUSES.values())
