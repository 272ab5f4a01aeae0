"""Numbers of ranks by steps behind the first one and by phase: always few groups."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.jobs.scenes import World
from watchtower.jobs.measures import LAGS, MAX_PHASES_COUNTED, MOST_LAG, count_ranks, step_quantiles
from watchtower.jobs.pace import Pace
from watchtower.jobs.ranks import RankRecord


def records(*beats: tuple[int, str]) -> list[RankRecord]:
    """Live ranks at these steps, in these phases."""
    world = World(size=len(beats))
    world.report()
    found = []
    for record, (step, phase) in zip(world.gen.ranks.values(), beats, strict=True):
        assert record.vitals.beat
        beat = replace(record.vitals.beat, step=step, phase=phase)
        record.vitals = replace(record.vitals, beat=beat)
        found.append(record)
    return found


def test_ranks_are_counted_by_the_steps_behind_the_first():
    found = records(*((step, "") for step in (20, 20, 19, 18, 16, 15, 11, 10, -1)))
    assert count_ranks(found).lags == {"0": 2, "1": 1, "2-4": 2, "5-9": 2, "10+": 2}


def test_ended_ranks_and_ranks_without_heartbeats_are_not_counted():
    found = records((5, ""), (5, ""), (5, ""))
    found[0].ended_at = 1.0
    found[1].vitals = replace(found[1].vitals, beat=None)
    assert sum(count_ranks(found).lags.values()) == 1
    assert sum(count_ranks([]).lags.values()) == 0


def test_the_first_phases_of_a_job_keep_their_groups():
    first = count_ranks(records(*((1, f"phase {n}") for n in range(20)), (1, "")))
    assert len(first.known) == MAX_PHASES_COUNTED
    assert first.phases == {
        "training": 1,
        **dict.fromkeys(first.known, 1),
        "other": 20 - MAX_PHASES_COUNTED,
    }
    later = count_ranks(records((1, "phase 99"), (1, first.known[0])), first.known)
    assert later.phases.keys() == first.phases.keys()
    assert (later.phases["other"], later.phases[first.known[0]]) == (1, 1)


def test_a_phase_named_as_one_of_our_groups_joins_it():
    counts = count_ranks(records((1, "training"), (1, "other"), (1, "")))
    assert counts.phases == {"training": 2, "other": 1}


@given(st.lists(st.tuples(st.integers(-1, 10**9), st.text(max_size=3)), min_size=1, max_size=40))
def test_every_rank_is_counted_once_in_few_groups(beats: list[tuple[int, str]]):
    counts = count_ranks(records(*beats))
    assert counts.lags.keys() == {*LAGS, MOST_LAG}
    assert sum(counts.lags.values()) == sum(counts.phases.values()) == len(beats)
    assert len(counts.phases) <= MAX_PHASES_COUNTED + 2


def test_quantiles_are_of_the_latest_steps():
    pace = Pace()
    assert step_quantiles(pace) == {}
    pace.plain.extend([9.0] * 50 + [1.0] * 20 + [2.0] * 10)
    assert step_quantiles(pace) == {0.5: 1.0, 0.95: 2.0}
