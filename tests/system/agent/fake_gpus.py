"""GPUs of a test: a driver of ours below a root of its own, and a collector that reads it."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.collectors.gpu.collector import Nvml
from tests import waiting
from watchtower.drills.compiling import QUEUED, compile_library
from watchtower.wire.observations import Observation

LIBRARY = QUEUED / "nvml.c"
PATIENCE_S = 3 * waiting.PATIENCE_S
"""The reader is a child that starts first, and reads errors and links once in 10 s."""

wait_until = functools.partial(waiting.wait_until, patience_s=PATIENCE_S)

SPINS = "utilization {0} 100\npower {0} 95\n"
WORKS = "utilization {0} 99\nmemory_utilization {0} 35\npower {0} 610\n"


class Gpus:
    """A driver of ours below a root of its own, and a collector that reads it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "root"
        (self.root / "dev").mkdir(parents=True)
        (self.root / "dev/nvidiactl").touch()
        (self.root / "proc").symlink_to("/proc")
        self.script = folder / "script"
        self.script.touch()
        self.collector = Nvml(str(self.root))

    def build(self, *flags: str) -> None:
        compile_library(
            LIBRARY, self.folder / "libnvidia-ml.so.1", f'-DSCRIPT="{self.script}"', *flags
        )

    def be(self, text: str) -> None:
        """Replace the script: from now on the GPUs are like this."""
        new = self.folder / "new"
        new.write_text(text)
        new.replace(self.script)

    def observed(self) -> dict[tuple[str, str], Observation]:
        found = self.collector.collect(time.monotonic())
        return {(each.subject, each.name): each for each in found}

    def wait_for(self, subject: str, name: str) -> Observation:
        return wait_until(lambda: self.observed().get((subject, name)), f"{name} of {subject}")

    def values(self) -> dict[tuple[str, ...], float]:
        return {
            (sample.spec.name.removeprefix("watchtower_"), *sample.labels): sample.value
            for sample in self.collector.samples(time.time())
            if not sample.part
        }


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpus]:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    made = Gpus(tmp_path)
    made.build()
    yield made
    made.collector.stop()
