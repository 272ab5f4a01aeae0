"""A tower as a process of its own, for tests that need real sockets."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from watchtower.service.interpreter import module_command

PATIENCE_S = 30.0

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


def wait_until(is_so: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait for a condition; fail in words when it does not come true."""
    until = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < until, f"not within {patience_s:g} s: {what}"
        time.sleep(0.01)
