"""Helpers for tests of the agent as a process: training processes that obey, and an agent."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

from tests.waiting import PATIENCE_S
from watchtower.service.interpreter import module_command

STOPS_S = 15.0
"""Seconds in which an agent ends after SIGTERM: less than 5 s on a machine with free processors;
an agent that waits for what hangs takes longer than this."""

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
REPOSITORY = HERE.parents[2]


def clean_environment(**more: str) -> dict[str, str]:
    """An environment in which nothing but `more` names a rank or a job."""
    keep = ("PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV")
    base = {name: os.environ[name] for name in keep if name in os.environ}
    paths = [str(REPOSITORY), str(REPOSITORY / "heartbeat"), base.get("PYTHONPATH", "")]
    return {**base, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **more}


class Victim:
    """A process that executes the statements it is given."""

    def __init__(
        self,
        environment: dict[str, str],
        command: list[str] | None = None,
        *,
        expect: bool = True,
    ) -> None:
        self.process = subprocess.Popen(
            command or [sys.executable, str(PROGRAMS / "obeys.py")],
            env=clean_environment(**environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        self.pid = self.process.pid
        self.printed = ""
        if expect:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait until it says so; what it printed before is kept."""
        self.printed = self.wait_for("ready")

    def do(self, statement: str) -> str:
        """Have a statement executed to its end; return what it printed."""
        self.begin(statement)
        return self.wait_for("done")

    def begin(self, statement: str) -> None:
        """Have a statement executed, which may never end."""
        assert self.process.stdin is not None
        self.process.stdin.write(statement + "\n")
        self.process.stdin.flush()

    def is_asleep(self) -> bool:
        """Whether its main thread sleeps, as it does while it waits to be told something."""
        stat = Path(f"/proc/{self.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "S"

    def wait_for(self, word: str) -> str:
        """Wait until it prints a line with this word; return what it printed before."""
        assert self.process.stdout is not None
        printed = []
        for line in self.process.stdout:
            if line.strip() == word:
                return "\n".join(printed)
            printed.append(line.strip())
        raise AssertionError(f"the program ended before it said {word!r}: {printed}")

    def close(self) -> None:
        """Kill the whole group: workers outlive a rank that was killed."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class RunningAgent:
    """`watchtower-agent run`, as a process of its own."""

    def __init__(self, tower_url: str, *options: str, log: Path, **environment: str) -> None:
        self._log = log
        command = module_command("agent", "run", "--tower", tower_url)
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [*command, "--node", "n1", "--port", "0", "--interval", "0.2", *options],
                env=clean_environment(**environment),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def says(self, words: str) -> bool:
        """Whether these words are in its output."""
        return words in self._log.read_text()

    def output(self) -> str:
        """Everything it printed and logged."""
        return self._log.read_text()

    def close(self) -> None:
        """Kill it."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE_S)


def new_mark() -> str:
    """A value for WATCHTOWER_TEST that no other process has."""
    return uuid.uuid4().hex
