"""Training programs that the rules were not written for: other names, other faults, real torch."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator

import pytest

from tests.system.e2e.third_party_jobs import Truth, Verdicts, check, watched

pytestmark = [
    pytest.mark.torch,
    pytest.mark.e2e,
    pytest.mark.ptrace,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None,
        reason="torch is not installed: `make test-torch` installs it and runs these",
    ),
]

AT_ONCE = 1
"""Beside the drills of another process."""

PROGRAMS = {
    "gradient_hook": Truth(2, (2,), ("lock_deadlock", "behind_collective")),
    "native_hold": Truth(1, (1,), ("gil_held",)),
    "native_hold_beside": Truth(3, (3,), ("gil_held",)),
    "silent_service": Truth(2, (2,), ("network_wait",)),
    "stages": Truth(1, (1,), ("missing_send",)),
    "short_epoch": Truth(2, (2,), ("uneven_inputs",)),
    "nan_guard": Truth(3, (3,), ("conditional_collective",)),
    "crossed_groups": Truth(1, (1,), ("mismatched_collective",)),
    "two_faults": Truth(0, (0, 3), ("dataloader_stall", "busy_loop")),
    "pooled_reads": Truth(3, (3,), ("behind_collective", "dataloader_stall")),
    "converter": Truth(1, (1,), ("behind_collective",)),
    "overlapped": Truth(2, (2,), ("behind_collective",)),
    "cached_broadcast": Truth(3, (3,), ("mismatched_collective", "conditional_collective")),
    "leaves_early": Truth(2, (2,), ("exited_early",)),
    "face_trainer": Truth(1, (1,), ("dataloader_stall",)),
    "lightning_callback": Truth(2, (2,), ("lock_deadlock", "behind_collective")),
    "training_thread": Truth(2, (2,), ("lock_deadlock", "behind_collective")),
    "pickles_forever": Truth(1, (1,), ("busy_loop",)),
    "one_group_two_faults": Truth(0, (0, 3), ("lock_deadlock",)),
    "served": Truth(2, (2,), ("lock_deadlock", "behind_collective")),
    "out_of_patience": Truth(1, (1,), ("behind_collective",)),
    "async_checkpoint": Truth(2, (2,), ("checkpoint_stall",)),
    "checkpoint_process": Truth(1, (1,), ("checkpoint_stall",)),
    "shared_group": Truth(2, (2,), ("mismatched_collective",)),
    "pipeline_schedule": Truth(1, (1,), ("lock_deadlock",)),
    "posted_receives": Truth(2, (2,), ("lock_deadlock",)),
    "wrong_port": Truth(
        2, (2,), ("misconfigured",), r"127.0.0.1:\d+\. Ranks 0-1,3 have 127.0.0.1:"
    ),
    "wrong_world_size": Truth(2, (2,), ("misconfigured",), "WORLD_SIZE 5. Ranks 0-1,3 have 4"),
    "wrong_address": Truth(2, (2,), ("misconfigured",), r"connects to 127.0.0.1:\d+\. Ranks"),
}


@pytest.fixture(scope="module")
def verdicts(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Verdicts]:
    """Run those asked for, beside one tower and two agents."""
    wanted = [
        item.callspec.params["name"]
        for item in request.session.items
        if item.module is sys.modules[__name__]
    ]
    truths = {name: PROGRAMS[name] for name in wanted}
    # The folder's name is what agents know the ranks by: those of another run are not ours.
    with watched(
        truths, tmp_path_factory.mktemp(f"third-party-{os.getpid()}-"), at_once=AT_ONCE
    ) as running:
        yield running


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_rank_and_the_reason_are_named(name: str, verdicts: Verdicts):
    check(verdicts[name].result(), PROGRAMS[name])
