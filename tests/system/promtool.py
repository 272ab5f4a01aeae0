"""Runs `promtool` on the files of deploy/prometheus."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.system.monitoring import documented

SCRAPED = 'instance="tower:19660",job="watchtower"'


RULES, ADVISORIES = "watchtower.rules.yml", "watchtower-advisories.rules.yml"


def promtool(folder: Path, *words: str, given: bytes | None = None) -> str:
    """Run promtool in a folder with the documented files; returns what it prints.

    `given` is its standard input.
    """
    for name in ("prometheus.yml", RULES, ADVISORIES, "alertmanager.yml"):
        (folder / name).write_text(documented(name))
    command = ["promtool", *words]
    done = subprocess.run(command, check=False, cwd=folder, input=given, capture_output=True)
    printed = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == 0, "".join(printed)
    return printed[0]


def check(folder: Path, series: dict[str, str], **assertions: list[dict[str, Any]]) -> None:
    """Check assertions about series that are scraped every 5 s, by `promtool test rules`."""
    inputs = [{"series": one, "values": values} for one, values in series.items()]
    case = {"interval": "5s", "input_series": inputs, **assertions}
    suite = {"rule_files": [RULES, ADVISORIES], "evaluation_interval": "5s", "tests": [case]}
    (folder / "suite.yml").write_text(json.dumps(suite))
    promtool(folder, "test", "rules", "suite.yml")
