"""schemathesis sends what /openapi.json allows and forbids to a real tower with an incident.

It checks that no request makes the tower fail, and that every answer is as documented: its status,
media type, headers and shape, and that nothing is answered without a token where one is needed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.store.builders import EVIDENCE
from tests.store.test_incident_filter import naming
from tests.tower.test_api import recorded
from tests.towers import JSON, RunningTower, running_tower
from watchtower.access.tokens import make_token
from watchtower.store.sqlite import SqliteStore
from watchtower.wire.verdict import Cause, Status

pytestmark = [pytest.mark.timeout(150)]

EXAMPLES = 12
"""Random requests for each operation, beside those of the examples and of each bound of a value.
About 15 s on two cores."""

SEMANTIC = ["positive_data_acceptance"]
"""Not checked: some valid values are refused for what they mean. A cursor must be one of the
tower's, a silence names one of three things, and only a wrong verdict is corrected."""

METHODS = ["unsupported_method"]
"""Not checked without tokens: a request with a body that is not JSON is refused before it is
routed, whatever its method, because a page of another site may have sent it."""

LIMIT_S = 120


def fuzz(tower: RunningTower, folder: Path, unchecked: list[str], *options: str) -> str:
    """Return the report of schemathesis. Fails if it has found something."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{tower.url}/openapi.json"]
    command += ["--seed", "1", "--max-examples", str(EXAMPLES), "--no-color", "--checks", "all"]
    command += ["--phases", "examples,coverage,fuzzing", "--continue-on-failure"]
    command += ["--exclude-checks", ",".join(unchecked), *options]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]
    return done.stdout


def save_incidents(data: Path) -> None:
    store, where = SqliteStore(data / "watchtower.db"), "data.py:88 in __next__"
    # The id of the examples, so that requests with it are answered.
    hung = naming(("gpu-042", where), id="01KAPY3V7QH8M2T4W6Z9B1C5D7", evidence=EVIDENCE)
    over = {"status": Status.RECOVERED, "closed_at": 90.0, "cause": Cause.DATALOADER_STALL}
    store.save_incident(hung).result(20)
    store.save_incident(naming(("gpu-042", where), id="01K", opened_at=50.0, **over)).result(20)
    store.close()


def report_a_job(tower: RunningTower, token: str = "") -> None:
    import urllib.request

    headers = JSON | ({"Authorization": f"Bearer {token}"} if token else {})
    address = f"{tower.url}/ingest/v1/report"
    request = urllib.request.Request(address, recorded("report.json"), headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert json.load(answer)["version"]


def check_log(tower: RunningTower) -> None:
    assert "Traceback" not in tower.log
    assert "the store fails" not in tower.log


def test_a_tower_without_tokens_answers_as_documented(tmp_path: Path):
    save_incidents(tmp_path / "data")
    with running_tower(tmp_path) as tower:
        report_a_job(tower)
        text = fuzz(tower, tmp_path, SEMANTIC + METHODS)
        check_log(tower)
    assert "No issues found" in text or "passed" in text


def test_a_tower_with_tokens_answers_as_documented_and_only_with_one(tmp_path: Path):
    save_incidents(tmp_path / "data")
    tokens = {scope: make_token() for scope in ("AGENT", "READER", "OPERATOR")}
    environment = {f"WATCHTOWER_{scope}_TOKEN": token for scope, token in tokens.items()}
    with running_tower(tmp_path, environment=environment) as tower:
        report_a_job(tower, tokens["AGENT"])
        header = f"Authorization: Bearer {tokens['OPERATOR']}"
        fuzz(tower, tmp_path, SEMANTIC, "--header", header)
        check_log(tower)
