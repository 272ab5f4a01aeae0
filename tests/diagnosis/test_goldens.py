"""Every folder in `goldens/` is a case, the truth about it, and the text we give for it.

A diagnosis that went wrong is added as a folder: `case.json` from an export, `truth.json` by hand.
`pytest tests/diagnosis --update-golden` writes `verdict.txt` anew; nothing writes `truth.json`.
"""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.diagnosis.test_properties import verdict_of
from watchtower.diagnosis.causes import CAUSES, SLOW_CAUSES
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.evidence.case import Case
from watchtower.writing.verdict_text import render_text

GOLDENS = sorted(path.parent for path in Path(__file__).parent.glob("goldens/*/truth.json"))


@pytest.mark.parametrize("folder", GOLDENS, ids=lambda folder: folder.name)
def test_golden(folder, update_golden):
    case = msgspec.json.decode((folder / "case.json").read_bytes(), type=Case)
    truth = json.loads((folder / "truth.json").read_text("utf-8"))
    verdict = verdict_of(case)
    text = render_text(verdict)
    if update_golden:
        (folder / "verdict.txt").write_text(text, "utf-8")
    assert truth["suspects"] == sorted(suspect.rank for suspect in verdict.suspects)
    assert truth["cause"] == verdict.cause.value
    assert truth["domain"] == verdict.domain.value
    assert text == (folder / "verdict.txt").read_text("utf-8")


def test_without_heartbeats_a_stray_call_is_at_least_as_old_as_the_first_sample():
    content = Path(__file__).parent.joinpath("goldens/conditional_collective_torch/case.json")
    case = msgspec.json.decode(content.read_bytes(), type=Case)
    assert "in train (9 s ago)" in verdict_of(case).summary
    unknown = replace(case, ranks=tuple(replace(rank, beat=None) for rank in case.ranks))
    assert "in train (at least 9 s ago)" in verdict_of(unknown).summary


@pytest.mark.parametrize("folder", GOLDENS, ids=lambda folder: folder.name)
def test_each_rank_of_a_golden_is_at_one_place(folder):
    case = msgspec.json.decode((folder / "case.json").read_bytes(), type=Case)
    places = diagnose(case).places
    assert sum(places.values()) == len(case.ranks)
    if folder.name == "unknown_device_stuck_queued":
        assert set(places) == {"device"}


def test_every_cause_has_a_golden():
    causes = {json.loads((folder / "truth.json").read_text("utf-8"))["cause"] for folder in GOLDENS}
    missing = {each.cause.value for each in (*CAUSES, *SLOW_CAUSES)} - causes
    assert not missing, f"no golden in {GOLDENS[0].parent} has the cause {missing}"
