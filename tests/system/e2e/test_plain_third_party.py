"""Programs of the standard library alone that the rules were not written for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.e2e.third_party_jobs import Truth, check, watched

pytestmark = [pytest.mark.e2e, pytest.mark.ptrace, pytest.mark.timeout(240)]

PROGRAMS = {
    "native_probe": Truth(1, (1,), ("behind_collective",)),
    "handshake": Truth(2, (2,), ("network_wait",)),
    "kept_alive": Truth(2, (2,), ("exception",)),
    "silent_service": Truth(2, (2,), ("network_wait",)),
    "pooled_reads": Truth(2, (2,), ("behind_collective", "dataloader_stall")),
    "converter": Truth(1, (1,), ("behind_collective",)),
    "training_thread": Truth(2, (2,), ("lock_deadlock", "behind_collective")),
    "served": Truth(2, (2,), ("lock_deadlock", "behind_collective")),
}

AT_ONCE = 3


def test_the_rank_and_the_reason_are_named_without_torch(tmp_path: Path):
    with watched(PROGRAMS, tmp_path, at_once=AT_ONCE) as running:
        verdicts = {name: each.result() for name, each in running.items()}
    for name, truth in PROGRAMS.items():
        check(verdicts[name], truth)
