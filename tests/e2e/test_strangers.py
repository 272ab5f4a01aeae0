"""Training programs that the rules were not written for: other names, other faults, real torch."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from watchtower.commands.client import NotFoundError, TowerClient
from watchtower.drills.launching import MARK, free_port, node_mark
from watchtower.drills.settings import read_config
from watchtower.drills.stage import Stage

pytestmark = [
    pytest.mark.torch,
    pytest.mark.e2e,
    pytest.mark.ptrace,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None,
        reason="torch is not installed: `make test-torch` installs it and runs these",
    ),
]

PROGRAMS = Path(__file__).parent / "strangers"
CONFIG = read_config(Path(__file__).parent / "fast.toml")
RANKS = 4
AT_ONCE = 2
DEADLINE_S = 120.0
FINAL = ("hung", "ended")


@dataclass(frozen=True)
class Truth:
    """What a perfect answer names."""

    culprit: int
    ranks: tuple[int, ...]
    causes: tuple[str, ...]
    """Any of these: some faults have two names that are both true."""


STRANGERS = {
    "gradient_hook": Truth(2, (2,), ("lock_deadlock", "behind_collective")),
    "native_hold": Truth(1, (1,), ("gil_held",)),
    "native_hold_beside": Truth(3, (3,), ("gil_held",)),
    "silent_service": Truth(2, (2,), ("network_wait",)),
    "stages": Truth(1, (1,), ("missing_send",)),
    "short_epoch": Truth(2, (2,), ("uneven_inputs",)),
    "nan_guard": Truth(3, (3,), ("conditional_collective",)),
    "crossed_groups": Truth(1, (0, 1, 2, 3), ("collective_cycle",)),
    "two_faults": Truth(0, (0, 3), ("dataloader_stall", "busy_loop")),
    "pooled_reads": Truth(3, (3,), ("behind_collective", "dataloader_stall")),
    "converter": Truth(1, (1,), ("behind_collective",)),
    "overlapped": Truth(2, (2,), ("behind_collective",)),
    "cached_broadcast": Truth(3, (3,), ("mismatched_collective", "conditional_collective")),
    "leaves_early": Truth(2, (2,), ("exited_early",)),
    "face_trainer": Truth(1, (1,), ("dataloader_stall",)),
    "lightning_callback": Truth(2, (2,), ("lock_deadlock", "behind_collective")),
    "training_thread": Truth(2, (2,), ("lock_deadlock", "behind_collective")),
}


@pytest.fixture(scope="module")
def verdicts(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[dict]]]:
    """Run those asked for, two at a time, beside one tower and two agents."""
    folder = tmp_path_factory.mktemp("strangers")
    wanted = [
        item.callspec.params["name"]
        for item in request.session.items
        if item.module is sys.modules[__name__]
    ]
    stage = Stage(
        folder,
        nodes=2,
        interval_s=CONFIG.drill.agent_interval_s,
        detection=CONFIG.detection,
        forwarded=False,
        start_deadline_s=60.0,
    )
    with stage, ThreadPoolExecutor(AT_ONCE) as pool:
        yield {name: pool.submit(watch, name, stage, folder) for name in wanted}


@pytest.mark.parametrize("name", STRANGERS)
def test_the_rank_and_the_reason_are_named(name: str, verdicts: dict[str, Future[dict]]):
    verdict = verdicts[name].result()
    truth = STRANGERS[name]
    assert tuple(sorted(s["rank"] for s in verdict["suspects"])) == truth.ranks, verdict["summary"]
    assert verdict["cause"] in truth.causes, verdict["summary"]


def watch(name: str, stage: Stage, folder: Path) -> dict:
    """Run one job until its verdict is final; returns it."""
    client = TowerClient(stage.tower_url)
    with launched(name, folder):
        until = time.monotonic() + DEADLINE_S
        while True:
            with contextlib.suppress(NotFoundError):
                verdict = client.verdict(name)
                if verdict["status"] in FINAL:
                    return verdict
            assert time.monotonic() < until, f"no incident within {DEADLINE_S:.0f} s"
            time.sleep(0.2)


@contextlib.contextmanager
def launched(name: str, folder: Path) -> Iterator[None]:
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
                    "CULPRIT": str(STRANGERS[name].culprit),
                    "WATCHTOWER_JOB": name,
                    "WATCHTOWER_PTRACE": "any",
                    "TMPDIR": str(folder),
                    MARK: node_mark(folder, rank * 2 // RANKS),
                },
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield
