"""Rules and the writer fit together: doubts, advice, kinds of reasons."""

import re
from pathlib import Path

import pytest

from tests.diagnosis.builders import a_case, ranks_in
from watchtower.diagnosis import causes, doubts
from watchtower.diagnosis.accusation import (
    MIN_CONFIDENCE,
    Accusation,
    Reason,
    ReasonKind,
    Tier,
)
from watchtower.diagnosis.causes.held import BLOCKED_ON
from watchtower.diagnosis.doubts import Doubt
from watchtower.diagnosis.picture import take_picture
from watchtower.diagnosis.writer import advice
from watchtower.diagnosis.writer.advice import ADVICE, WAIT_PLACE
from watchtower.diagnosis.writer.doubts import SENTENCES as DOUBT_SENTENCES
from watchtower.diagnosis.writer.evidence import SENTENCES
from watchtower.evidence.xids import RECOVERY_ACTIONS
from watchtower.service.xid_table import ACTIONS
from watchtower.wire.verdict import Cause

DIAGNOSIS = Path(doubts.__file__).parent
DOUBTS = {name: each for name, each in vars(doubts).items() if isinstance(each, Doubt)}
SOURCES = [
    path.read_text("utf-8")
    for path in DIAGNOSIS.rglob("*.py")
    if path.name != "doubts.py" and "writer" not in path.parts
]


@pytest.mark.parametrize("name", DOUBTS)
def test_every_doubt_limits_or_halves_and_has_its_name_as_kind(name):
    doubt = DOUBTS[name]
    assert doubt.halves or 0 < doubt.ceiling < 1
    assert doubt.kind == name.lower()
    assert any(f"doubts.{name}" in source for source in SOURCES), f"no rule has {name}"


def test_a_doubt_that_leaves_candidates_is_below_what_a_verdict_needs():
    assert doubts.CANDIDATE < MIN_CONFIDENCE
    assert all(d.ceiling == doubts.CANDIDATE or d.ceiling > MIN_CONFIDENCE for d in DOUBTS.values())


def test_no_ceiling_is_a_bare_number_elsewhere():
    assert not [source for source in SOURCES if re.search(r"CEILING|ceiling=", source)]


def test_a_reason_about_something_else_than_its_kind_is_not_written():
    picture = take_picture(a_case(ranks_in(2)))
    with pytest.raises(TypeError, match="about a tuple, not a Ranks"):
        SENTENCES[ReasonKind.PEERS](picture, ())


def test_every_kind_of_reason_has_a_sentence():
    assert set(SENTENCES) == set(ReasonKind)


def test_every_advice_is_given_by_some_rule():
    sources = [*Path(causes.__file__).parent.glob("*.py"), Path(advice.__file__)]
    text = "".join(path.read_text("utf-8") for path in sources)
    named = set(re.findall(r'"([a-z_]+)"', text)) | {f"blocked_{each}" for each in BLOCKED_ON}
    by_writer = {"look_at_child", "look_at_thread"}  # instead of advice about the call itself
    assert set(ADVICE) <= named | {WAIT_PLACE} | by_writer | ACTIONS


def test_every_action_of_a_gpu_error_has_advice():
    assert {*RECOVERY_ACTIONS.values()} - {"ignore"} <= ACTIONS <= set(ADVICE)


def test_every_doubt_has_one_sentence_under_its_kind():
    assert set(DOUBT_SENTENCES) == {doubt.kind for doubt in DOUBTS.values()}
    assert len(set(DOUBT_SENTENCES.values())) == len(DOUBTS)


@pytest.mark.parametrize("kind", DOUBT_SENTENCES)
def test_a_doubt_completes_its_line_without_a_name_that_is_not_given(kind):
    sentence = DOUBT_SENTENCES[kind]
    assert re.fullmatch(r"[a-z{].{10,110}[^.]", sentence)
    assert sentence.format(suspects="rank 1", unseen="rank 2")


class TestLimits:
    def limits(self, weight, *found):
        reasons = (Reason(ReasonKind.SET_UP, weight),)
        accused = Accusation(
            cause=Cause.INIT_STUCK, tier=Tier.NEVER_CAME, reasons=reasons, doubts=found
        )
        return [doubt.kind for doubt in accused.limits]

    def test_the_lowest_ceiling_is_first_and_none_twice(self):
        found = (doubts.STACK_MISSING, doubts.PAIR, doubts.PAIR)
        assert self.limits(0.9, *found) == ["pair", "stack_missing"]

    def test_a_ceiling_that_the_reasons_do_not_reach_limits_nothing(self):
        assert self.limits(0.7, doubts.STACK_MISSING) == []

    def test_a_contradiction_is_a_limit_too(self):
        assert self.limits(0.9, doubts.LEADS, doubts.STACK_MISSING) == ["leads"]
