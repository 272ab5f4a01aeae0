"""Runs one drill as a user would, and reads its result."""

from __future__ import annotations

import json
import subprocess
import sys

RUN_DEADLINE_S = 600.0


def run_drill(
    name: str, *, ranks: int = 8, backend: str = "stdlib", config: str | None = None
) -> dict:
    """Run a drill, with default settings or a config file's. SystemExit when it could not run."""
    command = [sys.executable, "-P", "-m", "watchtower", "drill", name, "--json"]
    settings = ["--config", config] if config else []
    done = subprocess.run(
        [*command, "--backend", backend, "--ranks", str(ranks), *settings],
        capture_output=True,
        text=True,
        timeout=RUN_DEADLINE_S,
        check=False,
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"{name} could not run:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])
