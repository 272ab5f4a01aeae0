"""Training programs that the rules were not written for: other names, other faults, real torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from tests.system.e2e.third_party_jobs import Truth, Verdicts, check, watched
from tests.system.frameworks import needs

pytestmark = [
    *needs("torch", 600),
    pytest.mark.e2e,
    pytest.mark.ptrace,
]

AT_ONCE = 1
"""Beside the drills of another process."""

PROGRAMS = {
    "gradient_hook": Truth(2, (2,), ("lock_deadlock", "behind_collective")),
    "native_hold": Truth(1, (1,), ("gil_held",)),
    "native_hold_beside": Truth(2, (2,), ("gil_held",)),
    "stages": Truth(1, (1,), ("missing_send",)),
    "short_epoch": Truth(2, (2,), ("uneven_inputs",)),
    "nan_guard": Truth(1, (1,), ("conditional_collective",)),
    "crossed_groups": Truth(1, (1,), ("mismatched_collective",)),
    "two_faults": Truth(0, (0, 3), ("dataloader_stall", "busy_loop"), world=4),
    "overlapped": Truth(2, (2,), ("behind_collective",)),
    "cached_broadcast": Truth(2, (2,), ("mismatched_collective", "conditional_collective")),
    # Its neighbours lose their connections and end, one rank waits.
    "leaves_early": Truth(2, (2,), ("exited_early",), world=4),
    "face_trainer": Truth(1, (1,), ("dataloader_stall",)),
    "lightning_callback": Truth(2, (2,), ("lock_deadlock", "behind_collective")),
    "pickles_forever": Truth(1, (1,), ("busy_loop",)),
    "one_group_two_faults": Truth(0, (0, 3), ("lock_deadlock",), world=4),
    "out_of_patience": Truth(1, (1,), ("behind_collective",)),
    "async_checkpoint": Truth(2, (2,), ("checkpoint_stall",)),
    "checkpoint_process": Truth(1, (1,), ("checkpoint_stall",)),
    "shared_group": Truth(2, (2,), ("mismatched_collective",)),
    "pipeline_schedule": Truth(1, (1,), ("lock_deadlock",)),
    "posted_receives": Truth(2, (2,), ("lock_deadlock",)),
    "wrong_port": Truth(2, (2,), ("misconfigured",), r"127.0.0.1:\d+\. Ranks 0-1 have 127.0.0.1:"),
    "wrong_world_size": Truth(2, (2,), ("misconfigured",), "WORLD_SIZE 4. Ranks 0-1 have 3"),
    "wrong_address": Truth(2, (2,), ("misconfigured",), r"connects to 127.0.0.1:\d+\. Rank 1 has"),
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
