"""Ranks that are not watched: what the tower lists and counts of all nodes, by reason."""

from __future__ import annotations

from tests.tower.simulator import Simulation
from watchtower.tower.health import check_health
from watchtower.views.node import MAX_REASONS, MAX_SHOWN, count_unwatched, list_unwatched
from watchtower.wire.report import Beat, RankVitals, Report, Unwatched


def take(sim: Simulation, node: str, *unwatched: Unwatched) -> None:
    """Report a rank of "mine", a second process with its rank, and what the agent skips."""
    beat = Beat(step=1, age_s=0.0)
    ranks = tuple(
        RankVitals(job=f"mine-{node}", rank=0, pid=pid, start_time=pid, owner="uid:1", beat=beat)
        for pid in (7, 8)
    )
    sim.tower.take_report(
        Report(
            version=1, node=node, agent_id=node, interval_s=1.0, ranks=ranks, unwatched=unwatched
        )
    )


def skipped(reason: str, count: int = 3, job: str = "", owner: str = "uid:2") -> Unwatched:
    return Unwatched(
        reason=reason, owner=owner, job=job, count=count, pids=(1,), text=f"{count} processes ..."
    )


def test_the_list_has_what_agents_skip_and_what_the_tower_skips(tell):
    async def story(sim: Simulation) -> None:
        take(sim, "n8", skipped("wrong_rank"), skipped("over_limit", 9, "mine-n8", "uid:1"))
        found = list_unwatched(sim.tower.moment())
        assert found.rank_count == 13
        assert [(each.node, each.job, each.reason, each.count) for each in found.items] == [
            ("n8", "mine-n8", "over_limit", 9),
            ("n8", "", "wrong_rank", 3),
            ("n8", "mine-n8", "second_claim", 1),
        ]
        assert found.items[2].pids == [8]
        of_job = list_unwatched(sim.tower.moment(), "mine-n8")
        assert [each.reason for each in of_job.items] == ["over_limit", "second_claim"]
        assert count_unwatched(sim.tower.moment()) == {
            "over_limit": 9,
            "wrong_rank": 3,
            "second_claim": 1,
        }
        assert check_health(sim.tower).unwatched == found

    tell(story)


def test_drills_are_listed_only_if_asked_for(tell):
    async def story(sim: Simulation) -> None:
        take(sim, "n8", skipped("over_limit", 9, "drill:x"))
        assert list_unwatched(sim.tower.moment()).rank_count == 1
        assert list_unwatched(sim.tower.moment(), drills=True).rank_count == 10
        assert count_unwatched(sim.tower.moment()) == {"second_claim": 1}

    tell(story)


def test_a_silent_agent_s_counts_are_not_current(tell):
    async def story(sim: Simulation) -> None:
        take(sim, "n8", skipped("wrong_rank"))
        sim.world.now += 60
        assert list_unwatched(sim.tower.moment()).items == []

    tell(story)


def test_lists_and_reasons_are_bounded_and_owners_take_turns(tell):
    async def story(sim: Simulation) -> None:
        for number in range(40):
            many = (skipped(f"r{'x' * n}", 100, f"j{n}", "uid:666") for n in range(31))
            take(sim, f"n{number}", *many, skipped("Odd Reason!"))
        found = list_unwatched(sim.tower.moment())
        assert len(found.items) == MAX_SHOWN
        assert found.rank_count == 40 * (3100 + 3 + 1)
        assert {each.owner for each in found.items} == {"uid:1", "uid:2", "uid:666"}
        counts = count_unwatched(sim.tower.moment())
        assert len(counts) <= MAX_REASONS + 1
        assert sum(counts.values()) == found.rank_count

    tell(story)
