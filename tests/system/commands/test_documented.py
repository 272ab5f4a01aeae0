"""Console blocks of documents that need no more than a tower with an incident run as printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documented import BLOCKS, HERE, find_entry, list_blocks
from tests.field.field_case import write
from tests.field.log_cases import LOG_CASES
from tests.towers import RunningTower
from watchtower.commands.client import TowerClient

RUN = [
    pytest.param(block, id=" ".join(key))
    for page, block in list_blocks()
    if (key := find_entry(page, block)) is not None and BLOCKS[key] == HERE
]


@pytest.mark.parametrize("block", RUN)
def test_a_block_of_a_document_runs_as_printed(
    hung_tower: RunningTower, block: str, tmp_path: Path
):
    """Only names of objects are others: those of this tower."""
    client = TowerClient(hung_tower.url)
    (incident,) = client.incidents()
    client.silence("node", "another-node", 60)
    silence = next(one for one in client.silences() if one["node"] == "another-node")
    write(LOG_CASES[0], tmp_path / "FOLDER")
    names = {"01KAPY3V": incident["id"], "01KAPXC4": silence["id"], "llama-70b": "llama"}
    names |= {"--rank 40": "--rank 1"}
    lines = [line[2:] for line in block.splitlines() if line.startswith("$ ")]
    assert lines
    folder = Path(sys.executable).parent
    environment = {
        **os.environ,
        "WATCHTOWER_URL": hung_tower.url,
        "PATH": f"{folder}:{os.environ['PATH']}",
    }
    for line in lines:
        command = re.sub("|".join(names), lambda found: names[found[0]], line)
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        assert done.stdout.strip(), line
