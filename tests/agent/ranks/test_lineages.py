"""Which of the processes with a rank in their environment are the ranks? By value."""

from __future__ import annotations

from agent.ranks.lineages import Claimant, choose_ranks


def a_claimant(pid: int, rank: int = 0, *ancestors: int, **more: bool) -> Claimant:
    return Claimant(pid=pid, rank=rank, ancestors=ancestors, start_time=pid, **more)  # type: ignore[arg-type]


def test_the_topmost_process_with_a_rank_is_the_rank() -> None:
    worker, tracker = a_claimant(11, 0, 10, 5), a_claimant(12, 0, 11, 10, 5)
    assert choose_ranks([a_claimant(10, 0, 5), worker, tracker]) == {10}


def test_what_lies_between_without_a_rank_does_not_matter() -> None:
    assert choose_ranks([a_claimant(10, 0, 5), a_claimant(13, 0, 12, 10, 5)]) == {10}


def test_a_page_wins_over_a_process_above_without_one() -> None:
    assert choose_ranks([a_claimant(10), a_claimant(11, 0, 10, has_page=True)]) == {11}


def test_a_worker_that_imported_the_client_is_no_rank() -> None:
    rank, worker = a_claimant(10, has_page=True), a_claimant(11, 0, 10, has_page=True)
    assert choose_ranks([rank, worker]) == {10}


def test_two_processes_that_claim_one_rank_are_both_ranks() -> None:
    assert choose_ranks([a_claimant(10, 0, 5), a_claimant(20, 0, 6)]) == {10, 20}


def test_the_process_that_takes_part_in_collectives_wins_over_the_one_above() -> None:
    """A script that sets RANK itself and starts the training as a child."""
    assert choose_ranks([a_claimant(10), a_claimant(11, 0, 10, takes_part=True)]) == {11}
    rank = a_claimant(10, 0, takes_part=True)
    assert choose_ranks([rank, a_claimant(11, 0, 10, takes_part=True)]) == {10}


def test_processes_that_inherited_one_rank_are_not_all_that_rank() -> None:
    members = [a_claimant(pid, 0, 10, takes_part=True) for pid in (11, 12)]
    assert choose_ranks([a_claimant(10), *members]) == {10}


def test_lightning_s_rank_0_starts_the_others() -> None:
    first, second = a_claimant(10, 0, starts_others=True), a_claimant(11, 1, 10)
    assert choose_ranks([first, second]) == {10, 11}


def test_torchrun_in_a_slurm_task_is_a_launcher() -> None:
    launcher = a_claimant(10, 0, is_launcher=True)
    ranks = [a_claimant(11, 0, 10), a_claimant(12, 1, 10)]
    assert choose_ranks([launcher, *ranks]) == {11, 12}


def test_a_process_below_which_other_ranks_run_is_a_launcher_without_being_known() -> None:
    ranks = [a_claimant(11, 0, 10), a_claimant(12, 1, 10)]
    assert choose_ranks([a_claimant(10, 0), *ranks]) == {11, 12}


def test_helpers_of_a_rank_with_a_page_have_worlds_of_their_own() -> None:
    helpers = [a_claimant(11, 0, 10), a_claimant(12, 1, 10)]
    assert choose_ranks([a_claimant(10, 3, has_page=True), *helpers]) == {10}


def test_a_shell_is_no_rank_but_the_program_in_it_is_and_not_the_pipe_behind_it() -> None:
    shell = a_claimant(10, is_wrapper=True)
    tee, program = a_claimant(11, 0, 10), a_claimant(12, 0, 10, is_python=True)
    assert choose_ranks([shell, tee, program]) == {12}
    assert choose_ranks([shell]) == set()


def test_of_siblings_with_one_rank_the_one_that_set_it_is_the_rank() -> None:
    """mp.spawn: the tracker of resources is the first child, and inherits the task's rank."""
    parent, tracker = a_claimant(10, 0, is_launcher=True), a_claimant(11, 0, 10)
    ranks = [a_claimant(12 + rank, rank, 10, sets_rank=True) for rank in range(2)]
    assert choose_ranks([parent, tracker, *ranks]) == {12, 13}
