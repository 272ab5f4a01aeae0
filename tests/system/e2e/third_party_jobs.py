"""Runs a job that the product has never seen beside one tower and two agents, to its verdict."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.system.small_jobs import FAST, beside
from watchtower.commands.client import NotFoundError, TowerClient
from watchtower.drills.environment import Environment
from watchtower.drills.launching import MARK, free_port, node_mark

PROGRAMS = Path(__file__).parent / "third_party"
RANKS = 3
"""Most ranks wait for one. More show nothing else, and each imports torch."""

DEADLINE_S = 120.0


@dataclass(frozen=True)
class Truth:
    """The names in a perfect answer."""

    culprit: int
    ranks: tuple[int, ...]
    causes: tuple[str, ...]
    """Any of these: some faults have two names that are both true."""
    summary: str = ""
    """A pattern in the summary."""
    world: int = RANKS


Verdicts = dict[str, Future[dict]]


@contextlib.contextmanager
def watched(truths: dict[str, Truth], folder: Path, *, at_once: int) -> Iterator[Verdicts]:
    """Run these programs, so many at a time."""
    environment = beside(folder, FAST, nodes=2)
    with environment, ThreadPoolExecutor(at_once) as pool:
        yield {
            name: pool.submit(watch, name, truth, environment, folder)
            for name, truth in truths.items()
        }


def check(verdict: dict, truth: Truth) -> None:
    """Compare a final verdict with the truth."""
    assert tuple(sorted(s["rank"] for s in verdict["suspects"])) == truth.ranks, verdict["summary"]
    assert verdict["cause"] in truth.causes, verdict["summary"]
    assert re.search(truth.summary, verdict["summary"]), verdict["summary"]


def watch(name: str, truth: Truth, environment: Environment, folder: Path) -> dict:
    """Run one job until it has an incident. Return the verdict.

    A job that ended has no incident before its end is diagnosed.
    """
    client = TowerClient(environment.tower_url)
    with launched(name, truth, folder):
        until, verdict = time.monotonic() + DEADLINE_S, None
        while time.monotonic() < until:
            with contextlib.suppress(NotFoundError):
                verdict = client.verdict(name)
                if verdict["incident"]:
                    return verdict
            time.sleep(0.2)
        pytest.fail(
            f"no incident within {DEADLINE_S:.0f} s: "
            + _describe(verdict, name, truth.world, folder)
        )


def _describe(verdict: dict | None, name: str, world: int, folder: Path) -> str:
    """Return what was known last, and what the ranks wrote."""
    ranks = [(folder / f"{name}-{rank}.log").read_text("utf-8", "replace") for rank in range(world)]
    return json.dumps({"verdict": verdict, "stderr": [text[-2000:] for text in ranks]}, indent=1)


@contextlib.contextmanager
def launched(name: str, truth: Truth, folder: Path) -> Iterator[None]:
    port = free_port()
    with contextlib.ExitStack() as stack:
        for rank in range(truth.world):
            log = stack.enter_context((folder / f"{name}-{rank}.log").open("wb"))
            process = subprocess.Popen(
                [sys.executable, str(PROGRAMS / f"{name}.py")],
                env={
                    **os.environ,
                    "RANK": str(rank),
                    "WORLD_SIZE": str(truth.world),
                    "LOCAL_RANK": str(rank % 2),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "CULPRIT": str(truth.culprit),
                    "WATCHTOWER_JOB": name,
                    "WATCHTOWER_PTRACE": "any",
                    "TMPDIR": str(folder),
                    MARK: node_mark(folder, rank * 2 // truth.world),
                },
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
            stack.callback(process.wait)
            stack.callback(_kill, process)
        yield


def _kill(rank: subprocess.Popen[bytes]) -> None:
    """Kill it and what it has started, which would claim to be the rank of the next run."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(rank.pid, signal.SIGKILL)
