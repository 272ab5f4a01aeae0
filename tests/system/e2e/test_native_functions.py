"""A real suspect that waits for its device: its native functions are with the incident."""

from __future__ import annotations

import importlib.util
import io
from typing import Any

import pytest

from agent.dumpers.native_functions import UNWINDING_HELP
from tests.system.e2e.drilled import CONFIG, DRILL_DEADLINE_S
from tests.towers import wait_until
from watchtower.commands.client import TowerClient
from watchtower.drills.catalogue import find_drill
from watchtower.drills.compiling import find_compiler
from watchtower.drills.drill_run import DrillRun
from watchtower.drills.plain import PlainDisplay
from watchtower.drills.runner import Request, run_drill
from watchtower.drills.settings import read_config

SUSPECT = 2
PATIENCE_S = 60.0
DEVICE = "libcuda.so.1"

pytestmark = [
    pytest.mark.torch,
    pytest.mark.ptrace,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler"),
    pytest.mark.timeout(DRILL_DEADLINE_S),
]


def test_they_are_read_of_the_suspect_and_when_an_operator_asks() -> None:
    found = dict[str, Any]()

    def ask(run: DrillRun) -> None:
        client = TowerClient(run.environment.tower_url, PATIENCE_S)

        def has_functions() -> bool:
            verdict = client.verdict(run.job.name)
            found["shown"] = [each for each in verdict["evidence"] if each["source"] == "native"]
            return bool(found["shown"])

        wait_until(has_functions, "native functions in the evidence", PATIENCE_S)
        found["asked"] = client.stacks(run.job.name, SUSPECT, all_threads=False, native=True)

    request = Request(
        drill=find_drill("xid_79"),
        ranks=4,
        rank=SUSPECT,
        backend="queued",
        config=read_config(CONFIG),
    )
    result = run_drill(request, PlainDisplay(io.StringIO()), before_end=ask)
    assert result.judgement.is_right, result
    (shown,) = found["shown"]
    assert (shown["ranks"], shown["weight"]) == (str(SUSPECT), 0.0)
    assert shown["text"].startswith("native: ")
    (item,) = found["asked"]["items"]
    assert item["native"].endswith(f"its device in {DEVICE}")
    # The host spins: py-spy may not find callers there. Then the libraries alone are shown.
    functions = item["functions"]
    if functions["is_whole"]:
        assert DEVICE in {call["file"] for call in functions["calls"]}
        assert found["asked"]["missing_evidence"] == []
    elif functions["failure"]:
        assert functions["failure"] == UNWINDING_HELP
        assert functions["failure"] in found["asked"]["missing_evidence"][0]
    assert DEVICE in shown["text"]
