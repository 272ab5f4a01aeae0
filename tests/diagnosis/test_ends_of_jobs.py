"""Deaths of a job that no rank is left of: which of them explain the end, and which are blamed."""

import pytest

from tests.diagnosis.builders import (
    a_case,
    a_dead_rank,
    a_missing_rank,
    a_silent_rank,
    picture_of,
    ranks_in,
    with_rank,
)
from tests.diagnosis.causes.asking import answer, ask
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.jobs.incidents import is_reported_at_the_end
from watchtower.writing.ranksets import format_ranks

REMOTE = (
    "DistBackendError: NCCL error in: x, remote process exited | ncclRemoteError: y | peer 7<4>"
)
SYSTEM = "DistBackendError: NCCL error in: x, unhandled system error | ncclSystemError: y"
INTERNAL = "DistBackendError: NCCL error in: x, internal error | ncclInternalError: y"
RETRIES = f"{SYSTEM} | NET/IB: Got completion from peer 10.0.0.3<4> with status=12 opcode=1"
CUDA = "DistBackendError: NCCL error in: x, unhandled cuda error | ncclUnhandledCudaError: y"
MAY_FOLLOW = [SYSTEM, INTERNAL, RETRIES, CUDA]
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

    def test_lost_connections_after_it_gave_up_waiting_are_no_part_of_the_end(self):
        store = "DistStoreError: wait timeout after 1000ms, keys: /missing"
        built = self.everywhere(a_dead_rank(3, age_s=4.5, error=store), error=REMOTE)
        found = diagnose(a_case(built))
        assert (found.cause.value, found.domain.value, found.suspects) == (
            "exception",
            "unknown",
            (),
        )
        assert found.summary.startswith("1 of 8 ranks raised DistStoreError")

    def test_the_odd_text_is_blamed(self):
        refused = "DistBackendError: NCCL error in: x | connect: Connection refused"
        assert named(self.found(a_dead_rank(3, error=refused), error=REMOTE)) == "3"
        late = a_dead_rank(3, error="RuntimeError: Connection closed by peer", age_s=2.9)
        assert named(self.found(late, error="ValueError: a")) == ""

    def test_the_rank_that_most_texts_name_is_blamed(self):
        text = (
            "RuntimeError: Detected mismatch between collectives on ranks. Rank {} is running "
            "collective: A, but Rank {} is running collective: B"
        )
        dead = [
            a_dead_rank(rank, age_s=3 + rank / 8, error=text.format(rank, 0 if rank == 3 else 3))
            for rank in range(8)
        ]
        found = diagnose(a_case(dead))
        assert [each.rank for each in found.suspects] == [3]
        assert found.doubts == ()
        assert named(picture_of(dead[:2] + dead[4:]).first_hand) == ""
        assert named(picture_of([dead[0], dead[3]]).first_hand) == ""

    def test_addresses_and_numbers_make_no_text_odd(self):
        built = [
            a_dead_rank(rank, error=f"{REMOTE.replace('peer 7', f'peer n{rank}')}{rank}")
            for rank in range(8)
        ]
        assert named(picture_of(built).first_hand) == ""

    @pytest.mark.parametrize("age_s", [2.8, 3.2])
    def test_a_cause_beats_lost_connections_of_all_others(self, age_s):
        assert named(self.found(a_dead_rank(3, error=FULL, age_s=age_s), error=REMOTE)) == "3"

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


ENDS = [
    {"code": 1},
    {"code": 3},
    {"signal": 6},
    {"signal": 9},
    {"signal": 11},
    {"signal": 15},
    {"signal": 9, "oom": True},
    {"error": "ValueError: x"},
    {},
]


@pytest.mark.parametrize("error", MAY_FOLLOW)
class TestAnErrorThatMayFollow:
    """A lost peer is often reported as a system error, or as one of the network or of CUDA."""

    def everywhere(self, error, *others, age_s=3.0):
        return with_rank([a_dead_rank(r, error=error, age_s=age_s) for r in range(8)], *others)

    @pytest.mark.parametrize("values", ENDS)
    @pytest.mark.parametrize("age_s", [3.1, 8, 20])
    def test_follows_any_earlier_death(self, error, values, age_s):
        built = self.everywhere(error, a_dead_rank(6, age_s=age_s, **values))
        assert named(picture_of(built, typical_step_s=10.0).first_hand) == "6"

    @pytest.mark.parametrize("values", [{"code": 1}, {"code": 3}, {"signal": 6}, {"signal": 11}])
    @pytest.mark.parametrize("age_s", [2.6, 3.0])
    def test_follows_a_death_of_the_same_moment(self, error, values, age_s):
        """The node of a rank reports its end after its peers have noticed it."""
        built = self.everywhere(error, a_dead_rank(6, age_s=age_s, **values))
        assert named(picture_of(built).first_hand) == "6"

    @pytest.mark.parametrize("values", ENDS)
    def test_follows_while_peers_wait(self, error, values):
        victims = [a_dead_rank(rank, error=error) for rank in (1, 5)]
        built = with_rank(ranks_in(8), *victims, a_dead_rank(6, age_s=8, **values))
        cause = "exception" if "error" in values else "process_died"
        assert answer(built) == ("oom_killed" if "oom" in values else cause, [6])

    def test_follows_a_rank_that_left_with_0(self, error):
        left = a_dead_rank(6, age_s=8, code=0)
        assert answer(self.everywhere(error, left)) == ("exited_early", [6])
        victims = [a_dead_rank(rank, error=error) for rank in (1, 5)]
        assert answer(with_rank(ranks_in(8), *victims, left)) == ("exited_early", [6])

    @pytest.mark.parametrize("age_s", [2.8, 3.0, 8.0])
    def test_is_no_incident_if_most_ranks_had_finished(self, error, age_s):
        built = self.everywhere(error, *(a_dead_rank(r, age_s=age_s, code=0) for r in range(6)))
        assert not is_reported(built)

    @pytest.mark.parametrize("after_s", [0.0, 0.2, 0.4, 1.0])
    @pytest.mark.parametrize("signal", [9, 15])
    def test_is_no_incident_if_the_job_was_cancelled(self, error, signal, after_s):
        for asked in (range(4), (0, 1, 2, 3, 4, 5, 7)):
            ended = [a_dead_rank(rank, signal=signal, age_s=3.0 + after_s) for rank in asked]
            built = self.everywhere(error, *ended)
            assert picture_of(built).is_cancelled
            assert not is_reported(built)

    def test_is_first_hand_before_the_launcher_ends_the_rest(self, error):
        ended = [a_dead_rank(rank, signal=15, age_s=2.9) for rank in range(8) if rank != 3]
        built = self.everywhere(error, *ended)
        assert answer(built) == ("exception", [3])
        assert diagnose(a_case(built)).confidence > 0.9

    def test_is_first_hand_clearly_before_a_death_that_explains_it(self, error):
        rest = [a_dead_rank(rank, signal=6, age_s=2.4) for rank in range(8) if rank != 3]
        assert answer(self.everywhere(error, *rest)) == ("exception", [3])

    @pytest.mark.parametrize("values", [{"code": 3}, {"signal": 6}, {"signal": 11}])
    @pytest.mark.parametrize("rest", ["lost", "wait"])
    def test_is_first_hand_clearly_before_a_crash_on_another_node(self, error, values, rest):
        first, second = a_dead_rank(3, error=error, age_s=4.2), a_dead_rank(6, **values)
        alone = ranks_in(8) if rest == "wait" else self.everywhere(REMOTE, age_s=3.5)
        assert answer(with_rank(alone, first, second)) == ("exception", [3])

    def test_does_not_follow_a_death_that_the_others_stepped_over(self, error):
        dead = [a_dead_rank(3, error=error), a_dead_rank(6, code=3, age_s=90)]
        assert answer(with_rank(ranks_in(8), *dead)) == ("exception", [3])
        assert diagnose(a_case(with_rank(ranks_in(8), *dead))).confidence > 0.9

    def test_accuses_none_while_a_node_is_out_of_sight(self, error):
        silent = [a_silent_rank(rank) for rank in range(4, 8)]
        built = self.everywhere(error, *silent)
        assert named(picture_of(built).first_hand) == ""
        assert answer(built) == ("node_lost", [4, 5, 6, 7])


class TestGaveUp:
    """Ranks that gave up waiting are not to blame. The one they waited for is ended later."""

    TEXT = "DistBackendError: watchdog caught collective operation timeout"
    STORE = "DistBackendError: retrieving ncclUniqueId, got error: wait timeout after 600000ms"

    @pytest.mark.parametrize("end", [{"signal": 6}, {"error": TEXT}, {"error": STORE}])
    @pytest.mark.parametrize("late", [{"signal": 9}, {"signal": 15}])
    def test_the_rank_that_had_not_is_a_candidate(self, end, late):
        built = with_rank(
            [a_dead_rank(rank, **end) for rank in range(8)], a_dead_rank(3, age_s=2.2, **late)
        )
        found = diagnose(a_case(built))
        assert (found.suspects, found.confidence) == ((), 0.6)
        assert [doubt.kind for doubt in found.doubts] == ["may_have_given_up"]
        (other,) = found.alternatives
        assert (other.cause.value, tuple(other.suspects)) == ("behind_collective", (3,))
        candidate = ask("behind_collective", built)
        assert candidate.confidence < 0.5
        assert "ank 3" in candidate.summary

    @pytest.mark.parametrize("end", [{"signal": 6}, {"error": STORE}])
    def test_without_such_a_rank_there_is_no_candidate(self, end):
        found = diagnose(a_case([a_dead_rank(rank, **end) for rank in range(8)]))
        assert (found.suspects, found.alternatives, found.confidence) == ((), (), 0.9)

    def test_the_first_to_give_up_at_the_store_is_not_blamed(self):
        built = [a_dead_rank(rank, error=self.STORE) for rank in range(8)]
        first = a_dead_rank(5, error=self.STORE, age_s=4.2)
        assert named(picture_of(with_rank(built, first)).first_hand) == ""


class TestUnknownEnds:
    """An agent without rights does not know how the ranks of its node ended."""

    def beside(self, *unknown, age_s=3.0, **values):
        dead = [a_dead_rank(rank, **values) for rank in range(8)]
        return with_rank(dead, *(a_dead_rank(rank, age_s=age_s) for rank in unknown))

    @pytest.mark.parametrize("values", [{"code": 1}, {"signal": 6}, {"error": SYSTEM}])
    def test_ranks_are_not_blamed_for_an_end_that_is_known(self, values):
        assert named(picture_of(self.beside(0, 1, 2, 3, **values)).first_hand) == ""
        assert named(picture_of(self.beside(*range(7), **values)).first_hand) == ""

    def test_a_rank_that_differs_from_those_of_its_node_is_blamed(self):
        for values in ({"code": 3}, {"signal": 11}):
            built = self.beside(0, 1, 2, 3, error=REMOTE)
            assert answer(with_rank(built, a_dead_rank(6, **values))) == ("process_died", [6])

    def test_clearly_later_ends_are_no_reason_to_doubt(self):
        built = with_rank(self.beside(*range(8)), a_dead_rank(6, age_s=4.0, code=1))
        assert answer(built) == ("process_died", [6])

    def test_they_are_no_sure_cause(self):
        found = diagnose(a_case(self.beside(*range(7), error=REMOTE)))
        assert (found.suspects, found.confidence) == ((), 0.72)


def test_what_ends_after_a_cancelled_job_is_no_incident():
    late = [a_dead_rank(rank, code=1, age_s=2.0) for rank in range(4)]
    built = with_rank([a_dead_rank(rank, signal=15, age_s=3.0) for rank in range(8)], *late)
    assert picture_of(built).is_cancelled
    assert not is_reported(built)


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (1, "1 rank ended after losing its connection"),
        (2, "2 ranks ended after losing their connection"),
    ],
)
def test_one_rank_that_lost_its_connection_is_one(count, words):
    built = [a_dead_rank(rank, code=3) for rank in range(4)]
    lost = [a_dead_rank(rank, error=REMOTE) for rank in range(count)]
    assert words in diagnose(a_case(with_rank(built, *lost))).summary


def is_reported(built):
    return is_reported_at_the_end(diagnose(a_case(built)))


def named(found):
    return format_ranks(death.rank for death in found.blamed)
