"""Dumper: which training processes ran Python between two rounds.

A job whose hosts wait for their devices is at the same line in most dumps, whether it trains or
hangs. But a wait for a device does not run Python: a rank that waits for its device in both rounds,
and ran Python between them, has ended a wait.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from agent.dumpers.python_child import child_command
from agent.dumpers.tool_process import ChildRunner
from agent.procfs import Proc

RUNS_GRACE_S = 2.0
"""Seconds for the start of the child and for the mappings, besides those of the samples."""

MAX_RUNS_OUTPUT_BYTES = 1 << 18
"""Bytes of an output: more than of a thousand ranks."""

log = logging.getLogger(__name__)


class Run(msgspec.Struct):
    """A line of the child."""

    pid: int
    ran_python: bool


_DECODER = msgspec.json.Decoder(Run)


class PythonRuns:
    """Samples the main threads of processes for a while."""

    def __init__(self, proc: Proc, runner: ChildRunner) -> None:
        """`runner` must not be shared: a child that hangs in a memory map must not stop others."""
        self._proc, self._runner = proc, runner

    def find(self, pids: Sequence[int], seconds: float, owner: str) -> dict[int, bool]:
        """Return which of these processes ran Python within the next seconds, as far as known."""
        command = child_command(
            "agent.dumpers.python_runs_child",
            self._proc.path,
            f"{seconds:.3f}",
            *map(str, pids),
        )
        try:
            output = self._runner.run(command, seconds + RUNS_GRACE_S, owner).output
        except OSError as error:
            log.warning("it is not known which ranks run Python: %s", error)
            return {}
        runs, asked = {}, frozenset(pids)
        for line in output.splitlines():
            try:
                run = _DECODER.decode(line)
            except msgspec.MsgspecError:
                continue
            if run.pid in asked:
                runs[run.pid] = run.ran_python
        return runs
