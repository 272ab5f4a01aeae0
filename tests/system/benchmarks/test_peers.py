"""torch's own analyzer, as shipped and repaired."""

from __future__ import annotations

import pytest

from benchmarks.accuracy.asking import ask_peers
from benchmarks.accuracy.peers import frtrace
from tests.benchmarks.peer_evidence import recorded_cascade


@pytest.mark.torch
def test_torchs_analyzer_breaks_as_shipped_and_accuses_the_victim_when_repaired() -> None:
    pytest.importorskip("torch")
    answers = ask_peers(recorded_cascade(), (frtrace.AS_SHIPPED, frtrace.REPAIRED))
    shipped, repaired = answers["torchfrtrace"], answers["torchfrtrace_repaired"]
    assert (shipped["failed"], shipped["accused"]) == (True, [])
    assert "KeyError" in str(shipped["said"])
    assert (repaired["accused"], repaired["failed"]) == ([2, 3], False)
