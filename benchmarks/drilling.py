"""Runs one drill as a user would, and returns its result."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from watchtower.service.interpreter import module_command

RUN_DEADLINE_S = 2700.0
"""The longest drill, idle_server, takes half an hour; then its job and its tower have to start."""


def run_drill(
    name: str,
    *,
    ranks: int = 8,
    backend: str = "stdlib",
    config: str | None = None,
    evidence: Path | None = None,
    options: Sequence[str] = (),
) -> dict:
    """Run a drill with default settings or a config file. Raises SystemExit if it could not run.

    `evidence` is an empty folder for the evidence of a hung job. The result then has `incidents`,
    and `options` may have further ones of `benchmarks.accuracy.one`.
    """
    words = [name, "--ranks", str(ranks), "--backend", backend]
    words += ["--config", config] if config else []
    if evidence is None:
        command = module_command("watchtower", "drill", *words, "--json")
    else:
        command = [sys.executable, "-m", "benchmarks.accuracy.one", *words]
        command += ["--evidence", str(evidence), *options]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=RUN_DEADLINE_S,
        check=False,
    )
    if done.returncode not in (0, 1) or not done.stdout.strip():
        raise SystemExit(f"{name} could not run:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])
