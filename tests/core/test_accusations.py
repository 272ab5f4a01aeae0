"""Rules and the writer fit together: doubts, advice, kinds of reasons."""

import re
from pathlib import Path

import pytest

from watchtower.core.diagnosis import doubts, rules
from watchtower.core.diagnosis.accusation import MIN_CONFIDENCE, Kind
from watchtower.core.diagnosis.doubts import Doubt
from watchtower.core.diagnosis.rules.held import BLOCKED_ON
from watchtower.core.diagnosis.writer import advice
from watchtower.core.diagnosis.writer.advice import ADVICE, WAIT_PLACE
from watchtower.core.diagnosis.writer.evidence import SENTENCES

DIAGNOSIS = Path(doubts.__file__).parent
DOUBTS = {name: each for name, each in vars(doubts).items() if isinstance(each, Doubt)}
SOURCES = [
    path.read_text("utf-8")
    for path in DIAGNOSIS.rglob("*.py")
    if path.name != "doubts.py" and "writer" not in path.parts
]


@pytest.mark.parametrize("name", DOUBTS)
def test_every_doubt_limits_or_halves_and_says_why(name):
    doubt = DOUBTS[name]
    assert doubt.halves or 0 < doubt.ceiling < 1
    assert re.fullmatch(r"[a-z].{10,90}[^.]", doubt.sentence)
    assert any(f"doubts.{name}" in source for source in SOURCES), f"no rule has {name}"


def test_no_two_doubts_say_the_same():
    assert len({doubt.sentence for doubt in DOUBTS.values()}) == len(DOUBTS)


def test_a_doubt_that_leaves_candidates_is_below_what_a_verdict_needs():
    assert doubts.CANDIDATE < MIN_CONFIDENCE
    assert all(d.ceiling == doubts.CANDIDATE or d.ceiling > MIN_CONFIDENCE for d in DOUBTS.values())


def test_no_ceiling_is_a_bare_number_elsewhere():
    assert not [source for source in SOURCES if re.search(r"CEILING|ceiling=", source)]


def test_every_kind_of_reason_has_a_sentence():
    assert set(SENTENCES) == set(Kind)


def test_every_advice_is_given_by_some_rule():
    sources = [*Path(rules.__file__).parent.glob("*.py"), Path(advice.__file__)]
    text = "".join(path.read_text("utf-8") for path in sources)
    named = set(re.findall(r'"([a-z_]+)"', text)) | {f"blocked_{each}" for each in BLOCKED_ON}
    by_writer = {"look_at_child", "look_at_thread"}  # instead of advice about the call itself
    assert set(ADVICE) <= named | {WAIT_PLACE} | by_writer
