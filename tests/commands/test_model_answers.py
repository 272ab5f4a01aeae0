from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from watchtower.commands.model_answers import MAX_ANSWER, write_answer


def test_a_short_answer_is_whole():
    value = {"items": [{"id": "01A", "summary": "Rank 3 is stopped."}], "left_out": 0}
    assert json.loads(write_answer(value)) == value


def test_a_long_list_says_how_much_it_lacks():
    answer = json.loads(write_answer({"items": [f"job {n}" for n in range(1000)]}))
    assert answer["items"][-1] == {"left_out": 800}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3000),
    lambda inner: (
        st.lists(inner, max_size=40) | st.dictionaries(st.text(max_size=20), inner, max_size=8)
    ),
    max_leaves=400,
)


@examples(100)
@given(JSON)
def test_every_answer_is_bounded_json(value):
    text = write_answer(value)
    assert len(text) <= MAX_ANSWER
    json.loads(text)
