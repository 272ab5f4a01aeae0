"""Which jobs have a place where there are fewer places than jobs."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from watchtower.fleet.shares import (
    ALWAYS_FIRST,
    CALM,
    ENDED,
    IN_TROUBLE,
    OPEN_INCIDENT,
    Contender,
    rank_fairly,
)


def of(owner: str, count: int, urgency: int = CALM) -> list[Contender]:
    return [Contender(owner, urgency, 0.0, f"{owner}-{number}") for number in range(count)]


def names(candidates: list[Contender], limit: int) -> list[str]:
    return [each.name for each in rank_fairly(candidates)[:limit]]


def test_a_flood_of_healthy_jobs_hides_no_other_owners_job():
    flood = of("aaa", 511) + of("aab", 511)
    assert {"victim-0", "victim-1"} <= set(names(flood + of("victim", 2), 1000))


@pytest.mark.parametrize("urgency", [OPEN_INCIDENT, IN_TROUBLE])
@pytest.mark.parametrize("mine", [OPEN_INCIDENT, IN_TROUBLE, CALM])
def test_a_flood_of_jobs_in_trouble_hides_no_other_owners_job(urgency, mine):
    flood = of("aaa", 511, urgency) + of("aab", 511, urgency)
    assert {"victim-0", "victim-1"} <= set(names(flood + of("victim", 2, mine), 1000))


def test_jobs_in_trouble_come_before_all_healthy_ones():
    calm = [each for owner in range(500) for each in of(f"calm-{owner}", 4)]
    troubled = of("victim", ALWAYS_FIRST, IN_TROUBLE)
    assert set(names(calm + troubled, ALWAYS_FIRST)) == {each.name for each in troubled}


def test_of_one_owner_the_oldest_incident_comes_first_and_ended_jobs_last():
    jobs = [
        Contender("a", ENDED, 0.0, "ended"),
        Contender("a", CALM, 0.0, "calm"),
        Contender("a", OPEN_INCIDENT, 9.0, "new"),
        Contender("a", OPEN_INCIDENT, 1.0, "old"),
        Contender("a", IN_TROUBLE, 0.0, "suspect"),
    ]
    assert names(jobs, 9) == ["old", "new", "suspect", "calm", "ended"]


@pytest.mark.parametrize("urgencies", [(OPEN_INCIDENT, IN_TROUBLE), (CALM, ENDED)])
@given(data=st.data(), limit=st.integers(1, 40))
@examples(200)
def test_no_owner_lacks_a_place_while_another_has_more_than_its_share(urgencies, data, limit):
    drawn = st.tuples(st.sampled_from("abcd"), st.sampled_from(urgencies), st.floats(0, 9))
    found = data.draw(st.lists(drawn, max_size=60))
    candidates = [Contender(*each, f"j{number}") for number, each in enumerate(found)]
    ranked = rank_fairly(candidates)
    assert sorted(ranked) == sorted(candidates)
    assert rank_fairly(candidates[::-1]) == ranked
    counts = Counter(each.owner for each in ranked[:limit])
    for hidden in ranked[limit:]:
        assert counts[hidden.owner] >= max(counts.values()) - 1
