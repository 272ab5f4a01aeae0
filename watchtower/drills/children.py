"""Processes that a drill starts and ends: each in its own session, with output in files."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import Signals
from typing import Any

from watchtower.access.tokens import FILE_VARIABLE, SECRET_VARIABLES
from watchtower.alerts.settings import ALERT_SECRETS
from watchtower.drills.errors import DrillError
from watchtower.service.interpreter import with_parent

FIXTURES = Path(__file__).with_name("fixtures")
END_PATIENCE_S = 3.0
"""Seconds for a child to end after SIGTERM before it is killed."""
TAIL_LINES = 15
TOKEN_VARIABLES = (*SECRET_VARIABLES, FILE_VARIABLE, *ALERT_SECRETS)
URL = re.compile(r"https?://[^\s/]+:\d+")


class Child:
    """One started process."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        *,
        environment: dict[str, str] | None = None,
        parent_death: Signals = signal.SIGKILL,
    ) -> None:
        self.name = name
        self.output = folder / f"{name}.out"
        self.errors = folder / f"{name}.err"
        # Writes in append mode stay complete if several processes share a file.
        with self.output.open("ab") as output, self.errors.open("ab") as errors:
            self._process = subprocess.Popen(
                [*with_parent(parent_death), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=_without_tokens(os.environ) | (environment or {}),
                cwd=folder,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its pid, which is also its process group."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """Return its exit code; None while it runs."""
        return self._process.poll()

    def signal(self, number: Signals) -> None:
        """Send a signal to the process only, not to its group."""
        self._process.send_signal(number)

    def end(self, patience_s: float = END_PATIENCE_S) -> None:
        """Terminate it, then kill the rest of its process group."""
        if self.exit_code() is None and patience_s:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience_s)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def tail(self) -> str:
        """Return the last lines of its output, to show why it failed."""
        lines = []
        for path in (self.output, self.errors):
            lines += path.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
        return "\n".join(f"  {self.name}: {line}" for line in lines)


def _without_tokens(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without tokens and without secrets of destinations: a job must not
    get one, and a drill's tower must not send alerts that are not asked for.
    """
    return {name: text for name, text in environment.items() if name not in TOKEN_VARIABLES}


def wait_for_url(child: Child, deadline_s: float) -> str:
    """Wait for the URL in a child's first output line and return it."""
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        line = child.output.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
        if found := URL.search(line):
            return found.group()
        if child.exit_code() is not None:
            raise DrillError(f"{child.name} ended with code {child.exit_code()}", child.tail())
        time.sleep(0.05)
    raise DrillError(
        f"{child.name} did not print its address within {deadline_s:g} s", child.tail()
    )


def start_fixture(script: str, words: Sequence[str], folder: Path, *, label: str = "") -> Child:
    """Start a script of `fixtures/`. It can release its resources if the drill dies.

    `label` separates the output files of several fixtures of one kind.
    """
    command = [sys.executable, "-I", str(FIXTURES / script), *words]
    name = "-".join(filter(None, [Path(script).stem, label]))
    return Child(name, command, folder, parent_death=signal.SIGTERM)


def first_words(child: Child) -> dict[str, Any] | None:
    """Return the values in a fixture's first line; None without one. Raises DrillError if it has
    ended.
    """
    line, end, _ = child.output.read_text(encoding="utf-8").partition("\n")
    if not end:
        if child.exit_code() is not None:
            lines = child.errors.read_text(encoding="utf-8", errors="replace").splitlines()
            raise DrillError(lines[-1] if lines else f"{child.name} ended at once", child.tail())
        return None
    values: dict[str, Any] = json.loads(line.partition(" ")[2])
    return values
