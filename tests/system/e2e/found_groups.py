"""Runs programs whose processes are a group without ranks, beside one tower and one agent."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.system.small_jobs import FAST, beside
from watchtower.commands.client import NotFoundError, TowerClient
from watchtower.drills.launching import MARK, node_mark

GROUPS = Path(__file__).parent / "groups"
DEADLINE_S = 120.0
"""Seconds until an incident opens. On an idle machine it takes 10 to 20."""

ENDS_S = 20.0
"""Seconds in which a program ends after SIGTERM, with what it has started."""


@dataclass(frozen=True)
class Tower:
    """The tower, and a way to start a program that its agent sees."""

    client: TowerClient
    start: Callable[..., list[int]]
    """Starts a program of `groups` with arguments. Returns the numbers on its first line."""

    def verdict(self, job: str) -> dict:
        """Return the verdict about a job, or one without an incident if it is not found yet."""
        with contextlib.suppress(NotFoundError):
            return self.client.verdict(job)
        return {"incident": None}

    def progress(self, job: str) -> tuple[str, str | None]:
        """Return status and progress of a job."""
        found = self.client.job(job)
        return found["status"], found["progress"]


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[Tower]:
    """Yield a tower; end the programs that were started."""
    environment = beside(folder, FAST)
    with environment, contextlib.ExitStack() as stack:

        def start(program: str, *arguments: str, **variables: str) -> list[int]:
            log = folder / f"{program}.log"
            with log.open("ab") as errors:
                process = subprocess.Popen(
                    [sys.executable, str(GROUPS / program), *arguments],
                    env={
                        **os.environ,
                        MARK: node_mark(folder, 0),
                        "WATCHTOWER_PTRACE": "any",
                        **variables,
                    },
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    start_new_session=True,
                )
            stack.callback(_end, process)
            assert process.stdout is not None
            with process.stdout as printed:
                numbers = [int(word) for word in printed.readline().split()]
            assert numbers, log.read_text("utf-8", "replace")[-3000:]
            return numbers

        yield Tower(client=TowerClient(environment.tower_url), start=start)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(ENDS_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
