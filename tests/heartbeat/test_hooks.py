"""How the optimizer hook counts steps, without any framework."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from watchtower_heartbeat import torch as torch_hook
from watchtower_heartbeat.torch import Rounds

OPTIMIZERS = [object() for _ in range(5)]


def count(turns: list[object]) -> int:
    rounds = Rounds()
    return sum(rounds.begins_with(optimizer) for optimizer in turns)


@given(st.lists(st.permutations(OPTIMIZERS)))
def test_optimizers_that_all_step_once_per_training_step_in_any_order_count_once(turns) -> None:
    assert count([optimizer for turn in turns for optimizer in turn]) == len(turns)


@given(st.lists(st.sampled_from(OPTIMIZERS)))
def test_no_optimizer_steps_more_often_than_is_counted(turns) -> None:
    often = max((turns.count(optimizer) for optimizer in OPTIMIZERS), default=0)
    assert often <= count(turns) <= len(turns)


def test_a_program_that_keeps_every_optimizer_it_ever_made_is_counted_again(monkeypatch) -> None:
    monkeypatch.setattr(torch_hook, "MOST_OPTIMIZERS", 3)
    assert count([object() for _ in range(7)]) >= 2
