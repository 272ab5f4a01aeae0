"""One job, one keeper: nothing else in a tower has a job's state, and no keeper reaches another."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from tests.tower.simulator import Simulation
from tests.tower.test_outages import Outage
from watchtower.jobs.keeper import Keeper

CODE = (ModuleType, type, FunctionType, MethodType, BuiltinFunctionType)


def walk(root: object, *, skip: tuple[type, ...] = ()) -> Iterator[Any]:
    """Yield every object that can be reached from this one, other than code and its globals."""
    seen, waiting = {id(root)}, [root]
    while waiting:
        found = waiting.pop()
        yield found
        for each in gc.get_referents(found):
            if id(each) not in seen and not isinstance(each, (*CODE, *skip)):
                seen.add(id(each))
                waiting.append(each)


async def hang_three_jobs(sim: Simulation) -> list[str]:
    """Hang jobs of three owners on the same nodes. Return their names."""
    await Outage(sim, ["uid:1", "uid:2", "uid:3"]).hang()
    assert all(keeper.judged.incident for keeper in sim.tower.fleet.jobs.values())
    return list(sim.tower.fleet.jobs)


def test_no_keeper_reaches_the_state_of_another_job(tell):
    async def story(sim: Simulation) -> None:
        for name in (names := await hang_three_jobs(sim)):
            found = list(walk(sim.tower.fleet.jobs[name]))
            assert [one.name for one in found if isinstance(one, Keeper)] == [name]
            others = set(names) - {name}
            assert not [one for one in found if isinstance(one, str) and one in others]

    tell(story)


def test_a_tower_has_no_dictionary_of_jobs_but_its_keepers(tell):
    async def story(sim: Simulation) -> None:
        names, tower = set(await hang_three_jobs(sim)), sim.tower
        shared = {id(each) for each in walk(tower.fleet.labels)}  # names that launches share
        found = [
            one
            for one in walk(tower, skip=(Keeper,))
            if isinstance(one, dict) and not names.isdisjoint(one) and id(one) not in shared
        ]
        assert [one is tower.fleet.jobs for one in found] == [True]

    tell(story)
