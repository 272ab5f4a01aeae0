"""A real suspect that waits for its device: its native functions are with the incident."""

from __future__ import annotations

import importlib.util
import io
from dataclasses import replace
from typing import Any

import pytest

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
PATIENCE_S = 90.0
DEVICE = "libcuda.so.1"

pytestmark = [
    pytest.mark.torch,
    pytest.mark.ptrace,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler"),
    pytest.mark.timeout(2 * DRILL_DEADLINE_S),
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

        def has_answer() -> bool:
            """On a busy machine py-spy may need longer than an agent waits for it."""
            found["asked"] = client.stacks(run.job.name, SUSPECT, all_threads=False, native=True)
            (item,) = found["asked"]["items"]
            return "did not return" not in item["functions"]["failure"]

        wait_until(has_answer, "py-spy returns in time", PATIENCE_S)

    config = read_config(CONFIG)
    # A host that sleeps needs no CPU to be sampled, and py-spy finds all of its callers.
    config = replace(config, drill=replace(config.drill, queued_schedule="sleep"))
    request = Request(
        drill=find_drill("xid_79"), ranks=4, rank=SUSPECT, backend="queued", config=config
    )
    result = run_drill(request, PlainDisplay(io.StringIO()), before_end=ask)
    assert result.judgement.is_right, result
    (shown,) = found["shown"]
    assert (shown["ranks"], shown["weight"]) == (str(SUSPECT), 0.0)
    assert shown["text"].startswith(f"rank {SUSPECT}: ")
    (item,) = found["asked"]["items"]
    assert item["native"].endswith(f"its device in {DEVICE}")
    functions = item["functions"]
    assert functions["failure"] == ""
    assert functions["calls"]
    if functions["is_whole"]:  # on a busy machine py-spy may lose a caller: then libraries follow
        assert DEVICE in {call["file"] for call in functions["calls"] if call["function"]}
    assert found["asked"]["missing_evidence"] == []
    assert DEVICE in shown["text"]
