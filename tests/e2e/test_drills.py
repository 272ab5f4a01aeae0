"""Every drill on the standard-library backend, scaled: real job, agents, tower and py-spy.

Drills spend their time waiting for clocks, so a few run side by side; each test waits for its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from watchtower.drills.catalogue import DRILLS

pytestmark = [pytest.mark.e2e, pytest.mark.ptrace, pytest.mark.timeout(420)]

CONFIG = Path(__file__).parent / "fast.toml"
AT_ONCE = 3
DRILL_DEADLINE_S = 240.0

Done = subprocess.CompletedProcess[str]


def run_drill(name: str) -> Done:
    command = [sys.executable, "-P", "-m", "watchtower", "drill", name, "--json"]
    return subprocess.run(
        [*command, "--ranks", "4", "--backend", "stdlib", "--config", str(CONFIG)],
        capture_output=True,
        text=True,
        timeout=DRILL_DEADLINE_S,
        check=False,
    )


@pytest.fixture(scope="module")
def drills(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Done]]]:
    """Start the drills of the selected tests, a few at once."""
    wanted = [
        item.callspec.params["name"]
        for item in request.session.items
        if item.module is request.module and hasattr(item, "callspec")
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = {name: pool.submit(run_drill, name) for name in wanted}
        yield runs
        for run in runs.values():
            run.cancel()


@pytest.mark.parametrize("name", [drill.name for drill in DRILLS if "stdlib" in drill.backends])
def test_the_drill_gets_the_right_rank_and_cause(drills: dict[str, Future[Done]], name: str):
    done = drills[name].result()
    assert done.stdout, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["right_rank"], done.stdout + done.stderr[-3000:]
    assert result["right_cause"], done.stdout + done.stderr[-3000:]
    assert done.returncode == 0
