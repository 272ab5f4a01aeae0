import json
import re
from pathlib import Path

import msgspec
import pytest

from tests.diagnosis.test_properties import verdict_of
from watchtower.evidence.case import Case
from watchtower.views.headline import write_headline, write_past_headline
from watchtower.wire.verdict import Alternative, Cause, Status, Suspect, Verdict
from watchtower.writing.cause_names import CAUSES, write_candidate
from watchtower.writing.ranksets import format_ranks, measure

GOLDENS = sorted((Path(__file__).parents[1] / "diagnosis/goldens").glob("*"))


def a_verdict(*causes: Cause, waiting: str = "", alternatives=(), cause=None) -> Verdict:
    suspects = tuple(
        Suspect(rank=rank, node="n1", cause=each, why="Said 3 s ago.")
        for rank, each in enumerate(causes)
    )
    return Verdict(
        job="llama",
        generation=1,
        status=Status.HUNG,
        summary="all 8 ranks are stopped: the job is suspended.",
        cause=cause or (causes[0] if causes else None),
        suspects=suspects,
        waiting=waiting,
        alternatives=alternatives,
    )


LOCK, DATA, UNKNOWN = Cause.LOCK_DEADLOCK, Cause.DATALOADER_STALL, Cause.UNKNOWN
CANDIDATE = Alternative(cause=LOCK, suspects=(5,), confidence=0.45)


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        (a_verdict(LOCK, waiting="1-7"), "Rank 0: waiting for a lock. 7 ranks wait for it."),
        (a_verdict(LOCK, waiting="1"), "Rank 0: waiting for a lock. 1 rank waits for it."),
        (
            a_verdict(LOCK, LOCK, waiting="2-3"),
            "Ranks 0-1: waiting for a lock. 2 ranks wait for them.",
        ),
        (a_verdict(LOCK, DATA), "Rank 0: waiting for a lock. Rank 1: waiting for input data."),
        (a_verdict(cause=Cause.SYMMETRIC_HANG), "All ranks wait in the same collective."),
        (
            a_verdict(cause=UNKNOWN, alternatives=(CANDIDATE,)),
            "The cause is not certain. Most likely: waiting for a lock (rank 5, 45 %).",
        ),
        (a_verdict(cause=UNKNOWN), "All 8 ranks are stopped: the job is suspended."),
    ],
)
def test_the_headline_names_the_ranks_and_the_cause_in_plain_words(verdict, text):
    assert write_headline(verdict) == text


@pytest.mark.parametrize("folder", GOLDENS, ids=lambda folder: folder.name)
def test_no_headline_has_an_age_or_a_process(folder):
    case = msgspec.json.decode((folder / "case.json").read_bytes(), type=Case)
    text = write_headline(verdict_of(case))
    assert len(text) > 15
    assert not re.search(r"\d+ (s|min|h)\b|pid|_", text), text
    truth = json.loads((folder / "truth.json").read_text("utf-8"))
    if len(truth["suspects"]) == 1 and text.startswith("Rank"):
        assert text.startswith(f"Rank {truth['suspects'][0]}: "), text


def test_every_cause_has_plain_words():
    assert set(CAUSES) == set(Cause)
    assert not any("_" in words or words.endswith(".") for words in CAUSES.values())


def test_a_candidate_names_its_ranks_if_it_has_some():
    assert write_candidate(CANDIDATE, is_awaited=True) == "waiting for a lock (rank 5, 45 %)"
    fabric = Alternative(cause=Cause.FABRIC_FAULT, suspects=(), confidence=0.3)
    words = "a fault of the network between the ranks (30 %)"
    assert write_candidate(fabric, is_awaited=True) == words


def test_a_candidate_that_no_rank_waits_for_has_not_missed_a_call():
    behind = Alternative(cause=Cause.BEHIND_COLLECTIVE, suspects=(5,), confidence=0.45)
    awaited = write_candidate(behind, is_awaited=True)
    assert awaited == "has not come to the call of the others (rank 5, 45 %)"
    assert write_candidate(behind, is_awaited=False) == "stays where it is (rank 5, 45 %)"


@pytest.mark.parametrize("ranks", [(), (3,), (0, 1, 2, 5, 7, 8)])
def test_a_rank_set_is_measured_without_a_set(ranks):
    assert measure(format_ranks(ranks)) == len(ranks)


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        (
            a_verdict(DATA, DATA, waiting="2-7"),
            "Ranks 0-1 held up the job: waiting for input data.",
        ),
        (a_verdict(cause=Cause.SYMMETRIC_HANG), "No rank was named: "),
        (a_verdict(cause=UNKNOWN, alternatives=(CANDIDATE,)), "The cause is not certain. "),
    ],
)
def test_a_headline_of_the_past_states_which_rank_it_was(verdict, text):
    assert write_past_headline(verdict).startswith(text)
