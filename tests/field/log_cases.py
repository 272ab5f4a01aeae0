"""Cases with logs of torch's watchdog."""

from __future__ import annotations

from tests.field.field_case import FieldCase, watchdog

LOG_CASES = (
    FieldCase(
        name="watchdog_silent_rank",
        report="a log per rank; one rank's log ends with a step",
        files={
            **{f"rank{rank}.log": watchdog(rank, 808) for rank in range(7)},
            "rank7.log": "step 807 loss 2.1\n",
        },
        suspects=frozenset({7}),
        cause="behind_collective",
        words=("silence",),
    ),
)
