"""Files that an earlier agent wrote are understood for ever.

They are of a real job of four ranks on two imagined nodes: rank 1 reads a shard for ever.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from watchtower.cli import main

RECORDED = sorted((Path(__file__).parent / "snapshots").glob("1-*.json"))


def test_recorded_files_have_the_verdict_of_their_day(capsys: pytest.CaptureFixture[str]):
    assert main(["diagnose", *map(str, RECORDED), "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["job"], verdict["status"], verdict["cause"]) == (
        "star",
        "suspect",
        "dataloader_stall",
    )
    assert [suspect["rank"] for suspect in verdict["suspects"]] == [1]
    assert verdict["waiting"] == "0,2-3"
