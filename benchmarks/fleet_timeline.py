"""Records when the parts of one storm happen, in the tower and in its diagnosing process.

`benchmarks/fleet_tower.py` uses it in the tower. Started as a program, it is the diagnosing process
of that tower, with the same records. Each mark has the time and the CPU time of its process until
then, so that a part which waits for the CPU can be distinguished from one which computes.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from watchtower.diagnoser import messages, process
from watchtower.jobs import judgement
from watchtower.jobs.effects import DiagnosisWanted, StatusChanged
from watchtower.tower import diagnosis_runner, effects, tower
from watchtower.wire.verdict import Status

FOLDER = "WATCHTOWER_FLEET_MARKS"
"""Environment variable with the folder for the marks of diagnosing processes."""


@dataclass(frozen=True)
class Mark:
    """One moment."""

    at: float
    """CLOCK_MONOTONIC, the same in all processes."""
    who: str
    what: str
    cpu_s: float
    """CPU seconds of the whole process so far."""
    more: str = ""


class Marks:
    """The marks of one process."""

    def __init__(self, who: str) -> None:
        self.who = who
        self.made: list[Mark] = []
        self.batches: dict[int, int] = {}
        """Number of batches of dumps by round."""

    def note(self, what: str, more: str = "") -> None:
        self.made.append(Mark(time.monotonic(), self.who, what, time.process_time(), more))

    def around(self, holder: Any, name: str, before: str, after: str) -> None:
        """Mark the begin and the end of each call of a function."""
        plain = getattr(holder, name)

        @functools.wraps(plain)
        def marked(*args: Any, **kwargs: Any) -> Any:
            if before:
                self.note(before)
            try:
                return plain(*args, **kwargs)
            finally:
                if after:
                    self.note(after)

        setattr(holder, name, marked)

    def after(self, holder: Any, name: str, note: Callable[..., None]) -> None:
        """Call `note` with the arguments of each call of a function before it."""
        plain = getattr(holder, name)

        @functools.wraps(plain)
        def marked(*args: Any, **kwargs: Any) -> Any:
            note(*args, **kwargs)
            return plain(*args, **kwargs)

        setattr(holder, name, marked)


def watch_tower(folder: str) -> Marks:
    """Record the marks of this tower from now on; diagnosing processes write to `folder`."""
    marks = Marks("tower")

    def note_effect(_: Any, keeper: Any, effect: Any, __: float) -> None:
        if isinstance(effect, StatusChanged) and effect.after in (Status.SUSPECT, Status.HUNG):
            marks.note(effect.after.value)
        if isinstance(effect, DiagnosisWanted):
            context = keeper.judged.context
            marks.note(
                "diagnosis due", f"{context.dumps_have} of {context.dumps_want} ranks dumped"
            )

    def note_dumps(_: Any, sent: Any) -> None:
        number = sent.batch.round
        marks.batches[number] = marks.batches.get(number, 0) + 1
        last = Mark(
            time.monotonic(), "tower", f"last batch of round {number}", time.process_time(),
            str(marks.batches[number]),
        )  # fmt: skip
        if marks.batches[number] == 1:
            marks.made.append(replace(last, what=f"first batch of round {number}"))
        marks.made = [each for each in marks.made if each.what != last.what]
        marks.made.append(last)

    marks.after(effects.Effects, "_perform", note_effect)
    marks.after(tower.Tower, "take_dumps", note_dumps)
    marks.around(judgement.Judgement, "collect_case", "turn of the diagnosis", "evidence collected")
    marks.around(diagnosis_runner, "split_case", "", "case split")
    marks.around(process.DiagnoserProcess, "_write", "request encoded", "request written")
    marks.around(process.DiagnoserProcess, "ask", "", "answer read")
    marks.around(judgement.Judgement, "take_diagnosis", "diagnosis adopted", "")
    os.environ[FOLDER] = folder
    plain = subprocess.Popen

    def start(command: list[str], **more: Any) -> Any:
        own = {"watchtower.diagnoser": "benchmarks.fleet_timeline"}
        return plain([own.get(part, part) for part in command], **more)

    process.subprocess.Popen = start  # type: ignore[assignment,misc]
    return marks


def write(marks: Marks, path: Path) -> None:
    path.write_text(json.dumps([asdict(mark) for mark in marks.made]))


def read(folder: Path) -> list[Mark]:
    """Return all marks in a folder, in order of time."""
    files = folder.glob("marks*.json")
    made = [Mark(**each) for path in files for each in json.loads(path.read_text())]
    return sorted(made, key=lambda mark: mark.at)


def main() -> int:
    """Run as the diagnosing process of a tower."""
    from watchtower.diagnoser import __main__ as program  # noqa: PLC0415

    marks = Marks("diagnoser")
    path = Path(os.environ[FOLDER]) / f"marks-{os.getpid()}.json"
    marks.around(messages, "decode_case", "", "case made")
    marks.around(program, "read_limits", "request read", "")
    marks.around(messages, "diagnose_picture", "", "diagnosed")
    marks.around(program, "answer", "", "answer encoded")
    marks.after(program, "_write", lambda *_: write(marks, path))
    from watchtower.diagnoser import work  # noqa: PLC0415

    work.decode_case = messages.decode_case
    return program.main()


if __name__ == "__main__":
    sys.exit(main())
