"""Collector: the checks of the doctor that no other collector makes, now and then.

The doctor of a node is also run by others: before a job, or as a health check. So that the tower
knows what it finds, a child runs some of its checks, and what fails becomes an observation. Checks
of GPUs and of the kernel log are left out, because they are made of observations. Limits are left
out, because those of the agent are not those of a job.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import msgspec

from agent.children import ChildRunner, Tool
from agent.collectors.collector import Collector
from watchtower.service.interpreter import module_command
from watchtower.wire.checks import CheckResult, CheckState
from watchtower.wire.observations import MAX_OBSERVATION_TEXT, Observation
from watchtower.writing.printable import printable

CHECKS = ("InfiniBand and RoCE", "MTU", "shared memory", "mounts")

FIRST_S, EVERY_S = 30.0, 1800.0
"""Seconds until the first run, and from one to the next. A run takes half a second of CPU time: at
this interval a twentieth of what the agent needs."""

DEADLINE_S = 15.0
"""Seconds for one run. It needs 5 s, and more on a busy machine."""

UNFIT, LIMITED = "node_unfit", "node_limited"
"""Names of the observations of what fails and of what warns."""

MAX_REPORTED = 16
"""Results that are reported: a node with as many faults has one."""

_DOCTOR = Tool(name="doctor", max_output_bytes=1 << 18)


class _Answer(msgspec.Struct):
    """What the doctor prints."""

    results: list[CheckResult] = []


_DECODER = msgspec.json.Decoder(_Answer)


class NodeChecks(Collector):
    """Runs the doctor for one root."""

    name = "doctor"

    def __init__(self, root: str = "/", first_s: float = FIRST_S, every_s: float = EVERY_S) -> None:
        """`first_s` and `every_s`: seconds until the first run, and between two runs."""
        words = [word for name in CHECKS for word in ("--check", name)]
        self._command = module_command(
            "agent", "doctor", "--about", "node", "--output", "json", "--root", root, *words
        )
        self._first_s, self._every_s = first_s, every_s
        self._children = ChildRunner()
        self._due_at: float | None = None
        self._thread: threading.Thread | None = None
        self._read: list[CheckResult] | None = None
        self._since: dict[CheckResult, float] = {}
        """What was found in the last run, and since when each is so."""

    def collect(self, now: float) -> Iterator[Observation]:
        """Return what fails or warns, with the time since the first run that found it."""
        if self._due_at is None:
            self._due_at = now + self._first_s
        if self._thread is None and now >= self._due_at:
            self._due_at = now + self._every_s
            self._thread = threading.Thread(target=self._run, name="doctor", daemon=True)
            self._thread.start()
        elif self._thread is not None and not self._thread.is_alive():
            self._thread = None
            if self._read is not None:
                bad = (each for each in self._read if each.state is not CheckState.OK)
                self._since = {each: self._since.get(each, now) for each in bad}
        for number, (result, since) in enumerate(list(self._since.items())[:MAX_REPORTED]):
            text = f"{result.check}: {result.text}"
            yield Observation(
                source=self.name,
                subject=f"check:{result.check} {number + 1}",
                name=UNFIT if result.state is CheckState.FAIL else LIMITED,
                age_s=now - since,
                text=printable(text, MAX_OBSERVATION_TEXT),
            )

    @property
    def can_read(self) -> bool:
        """Whether the doctor has answered."""
        return self._read is not None

    def stop(self) -> None:
        """End a run."""
        self._children.stop()

    def _run(self) -> None:
        try:
            outcome = self._children.run(self._command, DEADLINE_S, tool=_DOCTOR)
            self._read = _DECODER.decode(outcome.output).results
        except (OSError, msgspec.MsgspecError):
            return  # the next run may answer
