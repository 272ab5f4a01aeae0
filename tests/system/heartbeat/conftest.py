"""Fixtures that start training programs and clean up after them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator

import pytest
from watchtower_heartbeat.page import PageView, read_page

from tests.system.heartbeat.heartbeat_trainer import ForkedTrainer, Framework, Trainer


@pytest.fixture
def train() -> Iterator[Callable[..., Trainer]]:
    """Start a program, `obeys.py` unless told otherwise, with these environment variables."""
    started: list[Trainer] = []

    def start(
        program: str = "obeys.py", python: str = sys.executable, **environment: str
    ) -> Trainer:
        started.append(Trainer(program, environment, python))
        assert started[-1].line() == "ready"
        return started[-1]

    yield start
    for trainer in started:
        trainer.stop()


@pytest.fixture(scope="module")
def framework(request: pytest.FixtureRequest) -> Iterator[Framework]:
    """The process that has imported the modules in FRAMEWORK."""
    made = Framework(request.module.FRAMEWORK)
    yield made
    made.end()


@pytest.fixture
def fork(framework: Framework) -> Iterator[Callable[..., Trainer]]:
    """Start a program like `train`, from a process that has imported its framework.

    A second one starts when the first has ended.
    """
    started: list[Trainer] = []

    def start(program: str, **environment: str) -> Trainer:
        started.append(ForkedTrainer(framework, program, environment))
        assert started[-1].line() == "ready"
        return started[-1]

    yield start
    for trainer in started:
        trainer.stop()


@pytest.fixture
def last_page(train: Callable[..., Trainer]) -> Callable[..., PageView]:
    """Run statements in a rank, the last of which ends it, and return what its page says then."""

    def run_to_the_end(*statements: str, **environment: str) -> PageView:
        trainer = train(**({"RANK": "0"} | environment))
        descriptor = trainer.open_page()
        for statement in statements[:-1]:
            trainer.do(statement)
        trainer.end(statements[-1])
        try:
            return read_page(descriptor)
        finally:
            os.close(descriptor)

    return run_to_the_end
