"""The output of the training programs: started ranks, steps, and the moment of the fault."""

from __future__ import annotations

import json
from pathlib import Path


class ProgramLog:
    """Reads growing files line by line, and stores what the drill needs."""

    def __init__(self) -> None:
        self.pids: dict[int, int] = {}
        self.workers: dict[int, int] = {}
        self.step: int | None = None
        self.fault_at: float | None = None
        self._read_bytes: dict[Path, int] = {}

    def read(self, paths: list[Path]) -> None:
        """Read every complete line written since the last call."""
        for path in paths:
            start = self._read_bytes.get(path, 0)
            with path.open("rb") as file:
                file.seek(start)
                content = file.read()
            whole = content.rpartition(b"\n")[0]
            if whole:
                self._read_bytes[path] = start + len(whole) + 1
                for line in whole.decode("utf-8", "replace").splitlines():
                    self._take(line)

    def _take(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word not in ("started", "worker", "step", "fault"):
            return
        try:
            values = json.loads(rest)
        except ValueError:
            return
        if word == "started":
            self.pids[values["rank"]] = values["pid"]
        elif word == "worker":
            self.workers[values["rank"]] = values["pid"]
        elif word == "step":
            self.step = values["step"]
        elif self.fault_at is None:
            self.fault_at = values["monotonic_s"]
