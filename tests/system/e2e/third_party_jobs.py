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

from watchtower.commands.client import NotFoundError, TowerClient
from watchtower.drills.environment import Environment
from watchtower.drills.launching import MARK, free_port, node_mark
from watchtower.drills.settings import read_config

PROGRAMS = Path(__file__).parent / "third_party"
CONFIG = read_config(Path(__file__).parent / "fast.toml")
RANKS = 4
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


Verdicts = dict[str, Future[dict]]


@contextlib.contextmanager
def watched(truths: dict[str, Truth], folder: Path, *, at_once: int) -> Iterator[Verdicts]:
    """Run these programs, so many at a time."""
    environment = Environment(
        folder,
        nodes=2,
        interval_s=CONFIG.drill.agent_interval_s,
        detection=CONFIG.detection,
        forwarded=False,
        start_deadline_s=60.0,
    )
    with environment, ThreadPoolExecutor(at_once) as pool:
        yield {
            name: pool.submit(watch, name, truth.culprit, environment, folder)
            for name, truth in truths.items()
        }


def check(verdict: dict, truth: Truth) -> None:
    """Compare a final verdict with the truth."""
    assert tuple(sorted(s["rank"] for s in verdict["suspects"])) == truth.ranks, verdict["summary"]
    assert verdict["cause"] in truth.causes, verdict["summary"]
    assert re.search(truth.summary, verdict["summary"]), verdict["summary"]


def watch(name: str, culprit: int, environment: Environment, folder: Path) -> dict:
    """Run one job until it has an incident. Return the verdict.

    A job that ended has no incident before its end is diagnosed.
    """
    client = TowerClient(environment.tower_url)
    with launched(name, culprit, folder):
        until, verdict = time.monotonic() + DEADLINE_S, None
        while time.monotonic() < until:
            with contextlib.suppress(NotFoundError):
                verdict = client.verdict(name)
                if verdict["incident"]:
                    return verdict
            time.sleep(0.2)
        pytest.fail(f"no incident within {DEADLINE_S:.0f} s: {_describe(verdict, name, folder)}")


def _describe(verdict: dict | None, name: str, folder: Path) -> str:
    """Return what was known last, and what the ranks wrote."""
    ranks = [(folder / f"{name}-{rank}.log").read_text("utf-8", "replace") for rank in range(RANKS)]
    return json.dumps({"verdict": verdict, "stderr": [text[-2000:] for text in ranks]}, indent=1)


@contextlib.contextmanager
def launched(name: str, culprit: int, folder: Path) -> Iterator[None]:
    port = free_port()
    with contextlib.ExitStack() as stack:
        for rank in range(RANKS):
            log = stack.enter_context((folder / f"{name}-{rank}.log").open("wb"))
            process = subprocess.Popen(
                [sys.executable, str(PROGRAMS / f"{name}.py")],
                env={
                    **os.environ,
                    "RANK": str(rank),
                    "WORLD_SIZE": str(RANKS),
                    "LOCAL_RANK": str(rank % 2),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "CULPRIT": str(culprit),
                    "WATCHTOWER_JOB": name,
                    "WATCHTOWER_PTRACE": "any",
                    "TMPDIR": str(folder),
                    MARK: node_mark(folder, rank * 2 // RANKS),
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
