"""A tower as a process of its own, for tests that need real sockets."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from watchtower.service.interpreter import module_command

JSON = {"Content-Type": "application/json"}
"""Headers of a body that a tower without tokens takes."""


@dataclass
class RunningTower:
    url: str
    process: subprocess.Popen[str]
    log_file: Path

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or 0

    @property
    def log(self) -> str:
        return self.log_file.read_text("utf-8", "replace")

    @property
    def resident_bytes(self) -> int:
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def running_tower(
    folder: Path, *words: str, environment: Mapping[str, str] | None = None
) -> Iterator[RunningTower]:
    """Start `watchtower serve` on a free port; kill it at the end."""
    folder.mkdir(exist_ok=True)
    log_file = folder / "tower.log"
    command = module_command("watchtower", "serve", "--port", "0")
    with (
        log_file.open("w") as log,
        subprocess.Popen(
            [*command, "--data-dir", str(folder / "data"), *words],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **(environment or {})},
        ) as process,
    ):
        try:
            url = process.stdout.readline().strip()
            assert url, log_file.read_text()
            yield RunningTower(url, process, log_file)
        finally:
            process.kill()
