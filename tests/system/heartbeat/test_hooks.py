"""Rules of all hooks, without any framework: beats, steps, one phase at a time."""

from __future__ import annotations

import pytest

from tests.system.heartbeat.heartbeat_trainer import Trainer


@pytest.fixture
def rank(train) -> Trainer:
    trainer = train(RANK="0")
    trainer.do("from watchtower_heartbeat.hooks import *")
    return trainer


def steps(trainer: Trainer, *statements: str) -> list[int]:
    seen = []
    for statement in statements:
        trainer.do(statement)
        seen.append(trainer.page().step)
    return seen


def test_the_better_source_is_believed_and_the_program_itself_before_all(rank) -> None:
    assert steps(
        rank,
        "beats.beat(OPTIMIZER, 1)",
        "beats.beat(FRAMEWORK, 100)",
        "beats.beat(OPTIMIZER, 2)",
        "beats.beat(FRAMEWORK, 101)",
        "beat(7)",
        "beats.beat(FRAMEWORK, 102)",
        "beats.beat(OPTIMIZER, 3)",
    ) == [1, 100, 100, 101, 7, 7, 7]


def test_a_framework_that_is_done_leaves_the_word_to_the_optimizers(rank) -> None:
    assert steps(
        rank, "beats.beat(FRAMEWORK, 100)", "beats.release(); beats.beat(OPTIMIZER, 2)"
    ) == [100, 2]


def test_a_hook_that_comes_second_in_another_thread_does_not_wait(rank) -> None:
    assert steps(rank, "beats._lock.acquire(); beats.beat(OPTIMIZER, 1)") == [-1]
    assert steps(rank, "beats._lock.release(); beats.beat(OPTIMIZER, 1)") == [1]


def test_a_forked_child_believes_its_own_hooks_again_even_in_the_middle_of_a_beat(rank) -> None:
    rank.do("import os; beat(5); beats._lock.acquire(); out, into = os.pipe(); o2, i2 = os.pipe()")
    rank.do(
        "child = os.fork() or "
        "(beats.beat(OPTIMIZER, 1), os.write(into, b'x'), os.read(o2, 1), os._exit(0))"
    )
    rank.do("os.read(out, 1)")
    child = int(rank.ask("child"))
    assert (rank.page(child).step, rank.page().step) == (1, 5)
    rank.do("os.write(i2, b'x'); os.waitpid(child, 0)")


def test_a_hook_shows_one_phase_at_a_time_inside_those_of_the_program(rank) -> None:
    rank.do("mine = HookPhase(); outer = phase('warmup'); outer.__enter__()")
    shown = []
    for name in ("eval", "eval", "checkpoint", ""):
        rank.do(f"mine.show({name!r})")
        shown.append(rank.page().phase)
    assert shown == ["eval", "eval", "checkpoint", "warmup"]


def test_a_method_that_fails_says_so_once_and_raises_nothing(rank) -> None:
    rank.do("class It: fail = harmless(lambda self: 1 / 0)")
    rank.do("It().fail(); It().fail()")
    code, errors = rank.end()
    assert (code, errors.count("\n")) == (0, 1)
    assert "ZeroDivisionError" in errors
