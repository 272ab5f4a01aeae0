"""Deaths of a job that no rank is left of: which of them explain the end, and which are blamed."""

import pytest

from tests.core.builders import a_dead_rank, a_missing_rank, picture_of, with_rank
from watchtower.core.ranksets import format_ranks

REMOTE = (
    "DistBackendError: NCCL error in: x, remote process exited | ncclRemoteError: y | peer 7<4>"
)
SYSTEM = "DistBackendError: NCCL error in: x, unhandled system error | ncclSystemError: y"
FULL = f"{SYSTEM} | failed to extend /dev/shm/nccl-Xa to 9 bytes: No space left on device (28)"


class TestNoRankIsLeft:
    """The job is over: whatever ended it is its cause."""

    def everywhere(self, *others, **values):
        dead = [a_dead_rank(rank, **{"age_s": 3 + rank / 1000, **values}) for rank in range(8)]
        return with_rank(dead, *others)

    def found(self, *others, **values):
        return picture_of(self.everywhere(*others, **values)).first_hand

    @pytest.mark.parametrize(
        "values",
        [
            {"error": REMOTE},
            {"error": SYSTEM},
            {"error": FULL},
            {"error": "ValueError: record 7"},
            {"error": "RuntimeError: Timed out waiting 9ms for recv"},
            {"code": 1},
            {"code": 3},
            {"signal": 11},
            {"signal": 6},
        ],
    )
    def test_what_all_ranks_share_blames_none(self, values):
        found = self.found(**values)
        assert (len(found.deaths), found.blamed) == (8, ())

    @pytest.mark.parametrize("values", [{"error": REMOTE}, {"error": SYSTEM}, {"code": 1}])
    def test_the_first_by_time_is_blamed(self, values):
        assert named(self.found(a_dead_rank(3, age_s=4.5, **values), **values)) == "3"
        assert named(self.found(a_dead_rank(3, age_s=9, **values), **values)) == "3"

    def test_the_first_to_give_up_waiting_is_not(self):
        waited = {"error": "RuntimeError: Timed out waiting 9ms for recv"}
        assert named(self.found(a_dead_rank(3, age_s=4.5, **waited), **waited)) == ""

    def test_the_odd_text_is_blamed(self):
        refused = "DistBackendError: NCCL error in: x | connect: Connection refused"
        assert named(self.found(a_dead_rank(3, error=refused), error=REMOTE)) == "3"
        late = a_dead_rank(3, error="RuntimeError: Connection closed by peer", age_s=2.9)
        assert named(self.found(late, error="ValueError: a")) == ""

    def test_addresses_and_numbers_make_no_text_odd(self):
        built = [
            a_dead_rank(rank, error=f"{REMOTE.replace('peer 7', f'peer n{rank}')}{rank}")
            for rank in range(8)
        ]
        assert named(picture_of(built).first_hand) == ""

    @pytest.mark.parametrize("age_s", [2.8, 3.2])
    def test_a_cause_beats_lost_connections_of_all_others(self, age_s):
        assert named(self.found(a_dead_rank(3, error=FULL, age_s=age_s), error=REMOTE)) == "3"

    @pytest.mark.parametrize("values", [{"code": 3}, {"signal": 11}, {"signal": 9, "oom": True}])
    def test_an_error_that_may_follow_explains_no_other_death(self, values):
        """Old releases of NCCL report a lost peer as a system error."""
        assert named(self.found(a_dead_rank(3, age_s=3.1, **values), error=SYSTEM)) == "3"

    def test_what_one_node_lacks_is_a_fault_of_its_ranks(self):
        full = [a_dead_rank(rank, error=FULL, age_s=2.9) for rank in range(4)]
        assert named(self.found(*full, error=REMOTE)) == "0-3"

    def test_one_error_before_the_launcher_ends_the_rest_is_blamed(self):
        for error in (REMOTE, SYSTEM, FULL):
            first = a_dead_rank(3, error=error, age_s=3.5)
            assert named(self.found(first, signal=15)) == "3"

    def test_if_a_rank_was_never_seen_a_lost_connection_blames_none(self):
        found = self.found(a_missing_rank(3), a_dead_rank(4, error=REMOTE, age_s=5), error=REMOTE)
        assert (len(found.deaths), found.blamed) == (7, ())

    def test_exits_of_unknown_status_and_with_0_show_no_failure(self):
        assert self.found().deaths == ()
        assert self.found(a_dead_rank(3, code=0)).deaths == ()

    def test_a_job_of_one_rank_blames_it(self):
        for error in (REMOTE, SYSTEM, "ValueError: x"):
            assert named(picture_of([a_dead_rank(0, error=error)]).first_hand) == "0"


def named(found):
    return format_ranks(death.rank for death in found.blamed)
