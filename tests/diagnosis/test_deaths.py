import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.diagnosis.builders import (
    IN_ALL_REDUCE,
    a_case,
    a_dead_rank,
    a_missing_rank,
    a_rank,
    picture_of,
    ranks_in,
    with_rank,
)
from watchtower.diagnosis.picture import take_picture
from watchtower.evidence.exits import DeathKind, classify_ending
from watchtower.wire.report import Ending, EndingKind
from watchtower.writing.ranksets import format_ranks


def kind_of(**values):
    return classify_ending(a_dead_rank(0, **values).evidence.ended).value


def culprits(*dead, count=8, stack=IN_ALL_REDUCE):
    found = picture_of(with_rank(ranks_in(count, stack), *dead)).first_hand
    return format_ranks(death.rank for death in found.blamed)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"signal": 9, "oom": True}, "oom"),
        ({"signal": 11}, "crash"),
        ({"code": 139}, "crash"),
        ({"signal": 60}, "crash"),
        ({"signal": 9}, "killed"),
        ({"code": 137}, "killed"),
        ({"signal": 6}, "aborted"),
        ({"signal": 15}, "terminated"),
        ({"code": 143}, "terminated"),
        ({"code": 3}, "exit_code"),
        ({"code": 1}, "exit_one"),
        ({"code": 0}, "clean"),
        ({}, "vanished"),
        ({"error": "ValueError: bad shard"}, "own_exception"),
        ({"error": "KeyboardInterrupt"}, "terminated"),
        ({"error": "ConnectionResetError: [Errno 104]"}, "consequential"),
        ({"error": "torch.distributed.DistBackendError: NCCL error in ..."}, "own_exception"),
        ({"error": "DistBackendError: NCCL error in: x | ncclRemoteError: y"}, "consequential"),
        ({"error": "RuntimeError: [pair.cc:553] Connection closed by peer"}, "consequential"),
        (
            {"error": "RuntimeError: Timed out waiting 1800000ms for recv operation"},
            "consequential",
        ),
        ({"error": "RuntimeError: CUDA out of memory"}, "own_exception"),
        ({"error": "TimeoutError: peer 3 timed out"}, "consequential"),
    ],
)
def test_endings_are_told_apart(values, expected):
    assert kind_of(**values) == expected


def test_an_exit_without_a_code_left_a_page_that_says_finished():
    assert classify_ending(None) is DeathKind.VANISHED
    assert classify_ending(Ending(kind=EndingKind.EXIT, age_s=1)) is DeathKind.CLEAN
    assert classify_ending(Ending(kind=EndingKind.OTHER, age_s=1, code=4)) is DeathKind.VANISHED


def test_a_bare_exit_beats_connection_errors_that_were_seen_before_it():
    victims = [a_dead_rank(rank, error="EOFError", age_s=3.1) for rank in (1, 2)]
    assert culprits(a_dead_rank(3, code=3, age_s=3.0), *victims) == "3"


def test_a_terminated_rank_beats_peers_that_lost_their_connection_before_its_end_was_seen():
    # A launcher reacts to processes that are gone, and these were still there.
    lost = {"error": "ConnectionResetError: [Errno 104]", "raised_before_s": 1.0}
    victims = [a_dead_rank(rank, age_s=2.2, **lost) for rank in (0, 2)]
    ended = a_dead_rank(1, signal=15, age_s=2.9)
    assert culprits(ended, *victims, count=4) == "1"
    gone = [a_dead_rank(rank, age_s=3.1, **lost) for rank in (0, 2)]
    assert culprits(ended, *gone, count=4) == "0,2"


def test_an_exception_beats_the_launchers_kills():
    others = [a_dead_rank(rank, signal=9, age_s=2.5) for rank in range(8) if rank != 5]
    assert culprits(a_dead_rank(5, error="ValueError: x", age_s=3.0), *others) == "5"


def test_an_oom_kill_beats_a_crash():
    assert culprits(a_dead_rank(1, signal=11, age_s=4), a_dead_rank(2, signal=9, oom=True)) == "2"


def test_deaths_further_apart_than_the_settling_time_are_ordered_by_time():
    assert culprits(a_dead_rank(1, code=3, age_s=9), a_dead_rank(2, signal=11, age_s=3)) == "1"


def test_a_slow_death_still_explains_victims_that_were_faster():
    fast = a_dead_rank(1, error="BrokenPipeError: x", age_s=9)
    assert culprits(fast, a_dead_rank(2, error="ValueError: x", age_s=3)) == "2"


def test_equal_deaths_on_one_node_are_ordered_by_time():
    dead = [a_dead_rank(1, error="ValueError: a", age_s=3.2), a_dead_rank(2, error="OSError: b")]
    assert culprits(*dead) == "1"


def test_equal_deaths_at_one_moment_on_two_nodes_have_no_order():
    dead = [a_dead_rank(1, code=4, age_s=3.2), a_dead_rank(6, code=5, age_s=3.0)]
    assert culprits(*dead) == "1,6"
    assert culprits(a_dead_rank(1, code=4, age_s=4.2), a_dead_rank(6, code=5, age_s=3.0)) == "1"


def test_the_same_exception_on_many_ranks_is_one_fault():
    dead = [a_dead_rank(rank, error="KeyError: lr", age_s=3 + rank / 10) for rank in (1, 2, 3)]
    assert culprits(*dead) == "1-3"


def test_a_process_that_vanished_has_no_exception_to_share():
    dead = [a_dead_rank(1, age_s=3.1), a_dead_rank(2, age_s=3.0)]
    assert culprits(*dead) == "1"


def test_ranks_that_left_with_0_are_no_culprits():
    assert culprits(a_dead_rank(1, code=0)) == ""


class TestTerminated:
    """A signal that a scheduler or a launcher sends, to some ranks only."""

    def victims(self, *but, **values):
        lost = {"error": "ConnectionResetError: [Errno 104]", "age_s": 2.8, **values}
        return [a_dead_rank(rank, **lost) for rank in range(8) if rank not in but]

    def test_one_that_came_before_every_lost_connection_is_named(self):
        assert culprits(a_dead_rank(3, signal=15, age_s=3.0), *self.victims(3)) == "3"

    def test_also_as_an_interrupt_or_the_exit_code_of_a_shell(self):
        for values in ({"error": "KeyboardInterrupt"}, {"code": 143}, {"signal": 2}):
            assert culprits(a_dead_rank(3, age_s=3.0, **values), *self.victims(3)) == "3"

    def test_also_if_nobody_reported_what_the_peers_raised(self):
        peers = self.victims(3, error="", code=1)
        assert culprits(a_dead_rank(3, signal=15, age_s=3.0), *peers) == "3"

    def test_one_whose_peers_wait_is_named(self):
        assert culprits(a_dead_rank(3, signal=15, age_s=3.0)) == "3"

    def test_those_that_the_launcher_ends_for_it_are_not(self):
        """As under torchrun: on the node at once, on the other one when a rank fails there."""
        near = [a_dead_rank(rank, signal=15, age_s=4.85) for rank in (0, 1, 2)]
        far = [a_dead_rank(4, error="RuntimeError: Connection closed by peer", age_s=3.0)]
        far += [a_dead_rank(rank, signal=15, age_s=2.8) for rank in (5, 6, 7)]
        assert culprits(a_dead_rank(3, signal=15, age_s=5.0), *near, *far) == "3"

    @pytest.mark.parametrize("near", [1, 3])
    def test_those_that_had_lost_it_when_the_launcher_ended_them_are_not_either(self, near):
        """As under torchrun: peers on its node raise a lost connection, then they are asked."""
        lost = "RuntimeError: Connection closed by peer"
        count = 2 * (near + 1)
        dead = [a_dead_rank(rank, error=lost, signal=15, age_s=3.7) for rank in range(near)]
        dead += [a_dead_rank(near, signal=15, age_s=3.8)]
        dead += [a_dead_rank(near + 1, error=lost, age_s=2.1)]
        dead += [a_dead_rank(r, error=lost, signal=15, age_s=2.0) for r in range(near + 2, count)]
        assert culprits(*dead, count=count) == str(near)

    def test_one_after_a_lost_connection_is_a_launchers(self):
        first = a_dead_rank(2, error="ConnectionResetError: s3", age_s=3.2)
        rest = [a_dead_rank(rank, signal=15, age_s=3.0) for rank in range(8) if rank != 2]
        assert culprits(first, *rest) == "2"

    def test_several_at_the_moment_of_another_death_are_a_launchers(self):
        for count in (3, 7):
            asked = [a_dead_rank(rank, signal=15, age_s=3.0) for rank in range(1, count + 1)]
            assert culprits(a_dead_rank(0, code=1, age_s=3.0), *asked) == "0"

    def test_most_ranks_at_once_are_a_cancelled_job_though_some_live(self):
        dead = [a_dead_rank(rank, signal=15) for rank in range(7)]
        assert culprits(*dead) == ""
        assert not cancelled(a_case(with_rank(ranks_in(8), *dead)))

    def test_a_later_own_end_does_not_explain_it(self):
        late = a_dead_rank(2, code=1, age_s=1.0)
        dead = [a_dead_rank(rank, signal=15) for rank in range(8)]
        assert cancelled(a_case(with_rank(dead, late)))


class TestLauncher:
    """A launcher ends what a death has left."""

    def killed(self, *but, age_s=2.5):
        return [a_dead_rank(rank, signal=9, age_s=age_s) for rank in range(8) if rank not in but]

    def test_an_abort_explains_the_kills_that_follow(self):
        assert culprits(a_dead_rank(3, signal=6, age_s=3.0), *self.killed(3)) == "3"

    def test_a_kill_explains_the_kills_that_follow(self):
        assert culprits(a_dead_rank(3, signal=9, age_s=3.0), *self.killed(3)) == "3"

    def test_several_kills_on_another_node_follow_the_death_reported_before_them(self):
        assert culprits(a_dead_rank(3, signal=6, age_s=2.7), *self.killed(3)) == "3"

    @pytest.mark.parametrize("gap_s", [0.02, 0.1, 0.3])
    def test_kills_on_a_busy_machine_take_a_while(self, gap_s):
        ages = {rank: 2.6 - gap_s * place for place, rank in enumerate((7, 0, 5, 4))}
        killed = [a_dead_rank(rank, signal=9, age_s=age_s) for rank, age_s in ages.items()]
        assert culprits(a_dead_rank(2, signal=6, age_s=2.9), *killed) == "2"

    def test_an_abort_at_the_very_moment_of_several_kills_explains_them(self):
        assert culprits(a_dead_rank(3, signal=6, age_s=2.5), *self.killed(3)) == "3"

    def test_a_kill_on_another_node_at_that_moment_has_no_order(self):
        abort = a_dead_rank(3, signal=6, age_s=3.0)
        assert culprits(abort, a_dead_rank(6, signal=9, age_s=2.8)) == "6"
        assert culprits(abort, a_dead_rank(6, signal=9, age_s=2.4)) == "3"

    def test_lost_connections_before_the_kills_change_nothing(self):
        lost = [a_dead_rank(rank, error="EOFError", age_s=2.9) for rank in (0, 4)]
        assert culprits(a_dead_rank(3, code=3, age_s=3.0), *self.killed(0, 3, 4), *lost) == "3"


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ({"signal": 6}, {"error": "ValueError: x"}),
        ({"code": 3}, {"signal": 11}),
        ({"signal": 15}, {"code": 1}),
        ({}, {"code": 7}),
    ],
)
def test_on_one_node_time_decides_before_kind(earlier, later):
    first = a_dead_rank(1, age_s=3.2, **earlier)
    assert culprits(first, a_dead_rank(2, age_s=3.0, **later)) == "1"
    if earlier != {"signal": 15}:
        assert culprits(first, a_dead_rank(2, age_s=3.19, **later)) == "2"


FIRST_HAND = st.sampled_from(
    [
        {"signal": 9, "oom": True},
        {"signal": 11},
        {"error": "ValueError: bad shard"},
        {"code": 3},
        {"signal": 9},
        {"code": 1},
        {"signal": 6},
    ]
)
LOST_S = st.floats(0.1, 0.5)
LAUNCHER_S = st.floats(0.6, 4.0)


@st.composite
def ended_by_a_launcher(draw, first_hand):
    """One rank dies; of its peers some lose their connections, some wait, some are ended."""
    culprit = draw(st.integers(0, 7))
    reaction_s = draw(LAUNCHER_S)
    dead = [a_dead_rank(culprit, age_s=5.0, **draw(first_hand))]
    for rank in set(range(8)) - {culprit}:
        became = draw(st.sampled_from(["lost", "lost, asked", "waits", "asked", "killed"]))
        if became.startswith("lost"):
            signal = 15 if became.endswith("asked") else None
            age_s = 5.0 - draw(LOST_S)
            dead.append(a_dead_rank(rank, error="EOFError", signal=signal, age_s=age_s))
        elif became != "waits":
            signal, patience_s = (15, 0.0) if became == "asked" else (9, 0.3)
            spread_s = draw(st.floats(0, 0.2))
            age_s = 5.0 - reaction_s - patience_s - spread_s
            dead.append(a_dead_rank(rank, signal=signal, age_s=age_s))
    return culprit, dead


@settings(deadline=None)
@given(ended_by_a_launcher(FIRST_HAND))
def test_whatever_the_launcher_ends_afterwards_the_first_death_is_named(scene):
    culprit, dead = scene
    assert culprits(*dead) == str(culprit)


@settings(deadline=None)
@given(ended_by_a_launcher(st.just({"signal": 15})))
def test_a_rank_terminated_alone_is_named_if_the_others_are_not_terminated_at_once(scene):
    culprit, dead = scene
    asked = [item for item in dead if classify_ending(item.evidence.ended) is DeathKind.TERMINATED]
    assume(2 * len(asked) <= 8)
    assert culprits(*dead) == str(culprit)


@settings(deadline=None)
@given(st.data())
def test_ended_ranks_are_either_one_launchers_or_first_hand(data):
    kinds = [{"signal": 15}, {"signal": 9}, {"code": 0}, {"error": "EOFError"}]
    dead = [
        a_dead_rank(rank, age_s=data.draw(st.floats(1, 6)), **data.draw(st.sampled_from(kinds)))
        for rank in range(data.draw(st.integers(1, 8)))
    ]
    case = a_case(with_rank(ranks_in(8), *dead))
    picture = take_picture(case)
    outside = picture.ended_from_outside
    assert not (outside and picture.first_hand.deaths)
    assert not picture.is_cancelled or outside


def cancelled(case):
    return take_picture(case).is_cancelled


def all_stopped(case):
    return take_picture(case).is_suspended


class TestCancelled:
    def all_dead(self, **values):
        return [a_dead_rank(rank, **values) for rank in range(8)]

    def test_sigterm_to_all_is_a_cancelled_job(self):
        case = a_case(self.all_dead(signal=15))
        assert cancelled(case)
        assert picture_of(self.all_dead(signal=15)).first_hand.deaths == ()

    def test_some_may_die_of_the_broken_connection_or_leave_with_0(self):
        dead = [a_dead_rank(2, error="EOFError", age_s=2.9), a_dead_rank(5, code=0, age_s=2.8)]
        assert cancelled(a_case(with_rank(self.all_dead(signal=15), *dead)))

    def test_nodes_are_asked_one_after_the_other_while_connections_break(self):
        """The launchers of a cancelled job: a signal ended ranks that had lost their peers."""
        lost = "RuntimeError: Connection closed by peer"
        later = [a_dead_rank(rank, error=lost, signal=15, age_s=2.6) for rank in (4, 5)]
        later += [a_dead_rank(rank, signal=15, age_s=2.5) for rank in (6, 7)]
        assert cancelled(a_case(with_rank(self.all_dead(signal=15, age_s=3.0), *later)))
        # A rank that ended by itself: there, the launcher reacted to it.
        later[0] = a_dead_rank(4, error=lost, age_s=2.8)
        first = [a_dead_rank(1, signal=15, age_s=3.1)]
        dead = with_rank(self.all_dead(signal=15, age_s=3.0), *later, *first)
        assert not cancelled(a_case(dead))
        assert culprits(*dead) == "1"

    def test_nodes_may_be_asked_seconds_apart(self):
        later = [a_dead_rank(rank, signal=15, age_s=3.0) for rank in range(4, 8)]
        assert cancelled(a_case(with_rank(self.all_dead(signal=15, age_s=8.0), *later)))

    def test_the_scheduler_may_have_to_kill_the_rest(self):
        dead = a_dead_rank(2, signal=9, age_s=0.1)
        assert cancelled(a_case(with_rank(self.all_dead(signal=15), dead)))

    def test_sigkill_to_all_at_once_is_a_cancelled_job(self):
        victim = a_dead_rank(2, error="EOFError", age_s=2.8)
        assert cancelled(a_case(with_rank(self.all_dead(signal=9, age_s=3.0), victim)))

    def test_one_rank_killed_and_the_others_somewhat_later_is_not(self):
        first = a_dead_rank(2, signal=9, age_s=4.0)
        assert not cancelled(a_case(with_rank(self.all_dead(signal=9, age_s=3.0), first)))

    @pytest.mark.parametrize(
        "values",
        [
            {"error": "ValueError: x"},
            {"code": 3},
            {"signal": 9, "age_s": 3.5},
            {"error": "ConnectionResetError: s3", "age_s": 3.2},
        ],
    )
    def test_a_death_with_a_reason_of_its_own_is_not(self, values):
        assert not cancelled(a_case(with_rank(self.all_dead(signal=15), a_dead_rank(2, **values))))

    def test_a_job_with_survivors_is_not(self):
        assert not cancelled(a_case(with_rank(self.all_dead(signal=15), a_rank(2))))
        assert not cancelled(a_case(with_rank(self.all_dead(signal=15), a_missing_rank(2))))

    def test_signals_spread_over_minutes_are_not(self):
        dead = a_dead_rank(2, signal=15, age_s=60)
        assert not cancelled(a_case(with_rank(self.all_dead(signal=15), dead)))

    def test_a_job_that_finished_is_not(self):
        assert not cancelled(a_case(self.all_dead(code=0)))

    def test_an_empty_job_is_not(self):
        assert not cancelled(a_case([]))


def test_all_ranks_stopped_is_a_suspended_job():
    assert all_stopped(a_case(ranks_in(4, state="T")))
    assert not all_stopped(a_case(with_rank(ranks_in(4, state="T"), a_rank(2))))
    assert not all_stopped(a_case([a_missing_rank(0)]))
