"""Fatal errors that a node observed are a stall before any step is overdue."""

import pytest

from tests.jobs.test_detector import running
from watchtower.jobs.condition import ConditionKind, Why


@pytest.mark.parametrize("name", ["xid.79", "gpu_lost"])
def test_a_fatal_error_of_a_gpu_is_a_stall_after_the_settle_time(name):
    world = running()
    world.errors[2] = name, world.now
    assert world.report(1).kind is ConditionKind.STEPPING
    condition = world.report(1)
    assert condition.stall.why is Why.ERROR
    assert condition.stall.ranks == {2}
    assert condition.reason == "rank 2 had a fatal GPU error 2.0 s ago"


def test_a_fatal_error_is_not_a_stall_while_the_job_makes_steps():
    world = running()
    world.errors[2] = "xid.79", world.now
    assert world.step(8).kind is ConditionKind.STEPPING
    assert world.report(5).kind is ConditionKind.STEPPING
    assert world.report(1).stall.why is Why.OVERDUE


@pytest.mark.parametrize("name", ["xid.13", "xid.45", "xid.63", "segfault"])
def test_other_errors_are_not_a_stall(name):
    world = running()
    world.errors[2] = name, world.now
    assert world.report(5).kind is ConditionKind.STEPPING
