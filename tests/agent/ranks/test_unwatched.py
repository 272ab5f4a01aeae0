"""Processes that seem to be ranks and are not watched are counted, within bounds. By value."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.ranks.unwatched import (
    NO_RANK,
    SENTENCES,
    WRONG_RANK,
    UnwatchedProcess,
    count_unwatched,
)
from watchtower.wire.bounds import MAX_TEXT
from watchtower.wire.report import MAX_UNWATCHED, MAX_UNWATCHED_PIDS, OTHER_REASONS, OVER_LIMIT


def a_process(pid: int, owner: str = "uid:1", job: str = "", **words: str) -> UnwatchedProcess:
    return UnwatchedProcess(**{"pid": pid, "owner": owner, "job": job, "reason": NO_RANK, **words})


def test_processes_of_one_reason_owner_and_job_are_one_entry() -> None:
    (entry,) = count_unwatched(a_process(pid, job="llama") for pid in range(12, 0, -1))
    assert (entry.reason, entry.owner, entry.job, entry.count) == (NO_RANK, "uid:1", "llama", 12)
    assert entry.pids == tuple(range(1, MAX_UNWATCHED_PIDS + 1))
    assert entry.text.startswith(
        "12 processes of uid:1 in job 'llama' (pid 1, 2, 3, ...) are not watched: the threads show"
    )


def test_the_mistake_is_in_the_sentence() -> None:
    (entry,) = count_unwatched([a_process(7, reason=WRONG_RANK, detail="pid 7: RANK=abc is bad")])
    assert entry.text == (
        "1 process of uid:1 (pid 7) is not watched under the right rank: "
        "pid 7: RANK=abc is bad. Correct the variables of the rank where the job starts"
    )


def test_one_owner_s_many_jobs_do_not_hide_another_owner() -> None:
    flood = [a_process(pid, "uid:1", f"job-{pid}") for pid in range(1000)]
    found = count_unwatched([*flood, a_process(5000, "uid:2", reason=OVER_LIMIT)])
    assert len(found) == MAX_UNWATCHED
    assert "uid:2" in {entry.owner for entry in found}
    assert sum(entry.count for entry in found) == 1001
    assert found[-1].reason == OTHER_REASONS


@given(
    st.lists(
        st.tuples(
            st.sampled_from([name for name in SENTENCES if name != OTHER_REASONS]),
            st.text(max_size=400),
            st.text(max_size=400),
            st.text(max_size=2000),
        ),
        max_size=40,
    )
)
def test_every_text_fits_and_every_process_is_counted(
    rows: list[tuple[str, str, str, str]],
) -> None:
    processes = [
        UnwatchedProcess(pid=pid, owner=owner, job=job, reason=reason, detail=detail)
        for pid, (reason, owner, job, detail) in enumerate(rows)
    ]
    found = count_unwatched(processes)
    assert sum(entry.count for entry in found) == len(rows)
    assert all(entry.text.isprintable() and len(entry.text) <= MAX_TEXT for entry in found)
