"""The generated check of a message's bounds, and the functions that explain what is wrong."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import pytest

from watchtower.wire import bounds
from watchtower.wire.bounds import MAX_AGE_S, MAX_INTEGER, MAX_RANK, MAX_RATE, MAX_TEXT

EVERY = {
    "age": (bounds.AGE, [-1, -1e-9, 0, 1, MAX_AGE_S, 1.1 * MAX_AGE_S, math.nan, math.inf]),
    "rate": (bounds.RATE, [-1, 0, MAX_RATE, 2 * MAX_RATE, math.nan]),
    "rank": (bounds.RANK, [-1, 0, MAX_RANK, MAX_RANK + 1]),
    "integer": (bounds.integer(-1), [-2, -1, 0, MAX_INTEGER, MAX_INTEGER + 1]),
    "between": (bounds.between(1, 8), [0, 1, 8, 9]),
    "above zero": (bounds.above_zero(3600), [-1, 0, 1e-9, 3600, 3600.1, math.nan]),
    "up to": (bounds.up_to(5.0), [-5.1, -5, 0, 5, 5.1, math.nan]),
    "text": (bounds.TEXT, ["", "x", "x" * MAX_TEXT, "x" * (MAX_TEXT + 1)]),
    "named": (bounds.named("it needs one"), ["", "x", "x" * 256, "x" * 257]),
    "entries": (bounds.entries(2), [(), (1, 2), (1, 2, 3)]),
    "optional": (bounds.optional(bounds.AGE), [None, 0, -1]),
    "every": (bounds.every(bounds.RANK), [(), (0, 1), (0, -1), (MAX_RANK + 1,)]),
    "both": (
        bounds.optional(bounds.both(bounds.entries(2), bounds.every(bounds.RANK))),
        [None, (), (0, 1), (0, 1, 2), (-1,)],
    ),
}


@pytest.mark.parametrize("kind", EVERY)
def test_the_generated_check_refuses_exactly_what_the_explanation_refuses(kind):
    bound, values = EVERY[kind]

    @dataclass(frozen=True, slots=True, kw_only=True)
    @bounds.bounded(value=bound)
    class Message:
        value: object

    refused = 0
    for value in values:
        try:
            bound.check("value", value)
        except ValueError as error:
            refused += 1
            with pytest.raises(ValueError, match=re.escape(str(error))):
                Message(value=value)
            assert not eval(bound.holds.format("value"))
        else:
            assert Message(value=value).value is value
            assert eval(bound.holds.format("value"))
    assert 0 < refused < len(values)
