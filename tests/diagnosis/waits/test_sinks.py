"""Ranks for which others wait and which may themselves wait for another one, unseen."""

from dataclasses import replace

import pytest

from tests.diagnosis.builders import (
    FETCHING,
    IN_LOCK,
    IN_TORCH_ALL_REDUCE,
    IN_USER_CODE,
    a_case,
    a_rank,
    ranks_in,
    with_rank,
)
from tests.diagnosis.causes.asking import answer_of_case, ask_of_case, named
from tests.diagnosis.recording import a_recorded_case, calls, peer
from watchtower.diagnosis.accusation import MIN_CONFIDENCE
from watchtower.diagnosis.diagnosis import diagnose

REPLICAS = {"dp0": [0, 2], "dp1": [1, 3]}
"""Two stages, twice: ranks 0 and 1 are one pipeline, 2 and 3 the other."""

INSIDE = calls("all_reduce", before=3, open=1)
STAYED = calls("", before=4)
IN_STAGE = "forward_step /home/ann/job/pipe.py:33 < train main.py:41 < <module> main.py:80"
RECEIVES = "wait @torch/distributed/distributed_c10d.py:9 < " + IN_STAGE
IN_SYNC = "synchronize @torch/cuda/__init__.py:801 < train main.py:41 < <module> main.py:80"


def pipeline(first, second, groups=None, made=None, transfers=None, queued=False):
    """Ranks 2 and 3 have come to their data parallel groups, 0 and 1 have not."""
    inside = calls("all_reduce", before=4, open=1, queued=queued)
    built = with_rank(ranks_in(4, IN_SYNC if queued else IN_TORCH_ALL_REDUCE), first, second)
    made = made or {
        0: {"dp0": STAYED},
        1: {"dp1": STAYED},
        2: {"dp0": inside},
        3: {"dp1": inside},
    }
    return a_recorded_case(built, groups or REPLICAS, made, transfers)


class TestFutexUnderTheUsersLine:
    """`irecv(...).wait()` of gloo looks like a lock."""

    waits = a_rank(1, IN_STAGE, syscall="futex")
    asleep = a_rank(0, IN_USER_CODE, syscall="clock_nanosleep")

    def test_the_stage_that_receives_is_not_named_with_the_one_that_does_not_send(self):
        diagnosis = diagnose(pipeline(self.asleep, self.waits))
        assert [suspect.rank for suspect in diagnosis.suspects] == [0]
        (other,) = diagnosis.alternatives
        assert (other.cause.value, other.suspects) == ("lock_deadlock", (1,))
        assert other.confidence < MIN_CONFIDENCE

    def test_the_advice_asks_whether_it_is_a_message_or_a_lock(self):
        diagnosis = ask_of_case("lock_deadlock", pipeline(self.asleep, self.waits))
        assert diagnosis.entries[0] == "read_lock_or_message"

    def test_nor_when_logs_show_only_the_stage_that_receives(self):
        made = {0: {"dp0": STAYED}, 1: {"dp1": STAYED}, 2: {"dp0": STAYED}}
        made[3] = {"dp1": calls("all_reduce", before=4, open=1)}
        behind_it = a_rank(2, IN_STAGE, syscall="futex")
        case = pipeline(self.asleep, self.waits, made=made)
        assert answer_of_case(case) == ("unknown", [])
        built = with_rank(ranks_in(4, IN_TORCH_ALL_REDUCE), self.asleep, self.waits, behind_it)
        assert answer_of_case(a_recorded_case(built, REPLICAS, made)) == ("unknown", [])

    def test_two_that_may_wait_for_each_other_are_not_named(self):
        sends = a_rank(0, IN_STAGE.replace(":33", ":35"), syscall="futex")
        assert answer_of_case(pipeline(sends, self.waits)) == ("unknown", [])

    def test_who_takes_messages_by_blocking_calls_is_at_a_lock(self):
        rows = {1: [peer(0, received=(40, 40), opens=False)], 0: [peer(1, sent=(40, 40))]}
        locked = a_rank(1, IN_LOCK, syscall="futex")
        assert 1 in answer_of_case(pipeline(self.asleep, locked, transfers=rows))[1]

    def test_of_one_group_both_are_named(self):
        """They have no calls but those of their group, for all that is known."""
        made = {r: {"w": calls("all_reduce", before=3, open=1)} for r in (2, 3)}
        made |= {r: {"w": calls("", before=3)} for r in (0, 1)}
        case = pipeline(a_rank(0, FETCHING), self.waits, {"w": [0, 1, 2, 3]}, made)
        assert sorted(answer_of_case(case)[1]) == [0, 1]

    def test_beside_a_group_of_all_ranks_only_the_one_that_does_not_send_is_named(self):
        """All of them share the world, and not the groups of their stages."""
        inside = {"w": calls("all_reduce", before=3, open=1)}
        made = {2: {"dp0": STAYED, **inside}, 3: {"dp1": STAYED, **inside}}
        made |= {r: {f"dp{r}": STAYED, "w": calls("", before=3)} for r in (0, 1)}
        groups = {**REPLICAS, "w": [0, 1, 2, 3]}
        case = pipeline(a_rank(0, FETCHING), self.waits, groups, made)
        assert answer_of_case(case) == ("dataloader_stall", [0])
        sends = a_rank(0, IN_STAGE.replace(":33", ":35"), syscall="futex")
        assert answer_of_case(pipeline(sends, self.waits, groups, made)) == ("unknown", [])

    def test_one_without_logs_at_the_place_of_those_that_wait_is_not_named(self):
        built = ranks_in(4, IN_STAGE, syscall="futex")
        made = {rank: {"w": INSIDE} for rank in (0, 2, 3)}
        assert answer_of_case(a_recorded_case(built, {"w": [0, 1, 2, 3]}, made)) == ("unknown", [])

    def test_alone_it_is_named(self):
        made = {rank: {"w": INSIDE} for rank in (0, 2, 3)} | {1: {"w": calls("", before=3)}}
        built = with_rank(ranks_in(4, IN_TORCH_ALL_REDUCE), self.waits)
        case = a_recorded_case(built, {"w": [0, 1, 2, 3]}, made)
        assert answer_of_case(case) == ("lock_deadlock", [1])

    def test_not_beside_a_group_that_hangs_though_all_have_come(self):
        """The link that keeps one stage's message may be the one that keeps the group."""
        made = {rank: {"dp0": INSIDE} for rank in (0, 2)}
        made |= {1: {"dp1": STAYED}, 3: {"dp1": calls("all_reduce", before=4, open=1)}}
        built = with_rank(ranks_in(4, IN_TORCH_ALL_REDUCE), self.waits)
        assert answer_of_case(a_recorded_case(built, REPLICAS, made)) == ("unknown", [])


class TestWaitForTheDevice:
    """On NCCL a receive is one more thing queued on the stream; no recorder shows it."""

    waits = a_rank(1, IN_SYNC)
    spins = a_rank(1, IN_SYNC, cpu=1.0, state="R", active=True)

    @pytest.mark.parametrize("waits", [waits, spins], ids=["asleep", "spinning"])
    def test_the_stage_whose_stream_waits_is_not_named_with_the_culprit(self, waits):
        asleep = a_rank(0, IN_USER_CODE, syscall="clock_nanosleep")
        assert answer_of_case(pipeline(asleep, waits, queued=True)) == ("behind_collective", [0])
        loading = a_rank(0, FETCHING)
        assert answer_of_case(pipeline(loading, waits, queued=True)) == ("dataloader_stall", [0])

    def test_two_streams_that_may_wait_for_each_other_are_not_named(self):
        case = pipeline(a_rank(0, IN_SYNC), self.waits, queued=True)
        assert answer_of_case(case) == ("unknown", [])

    def test_a_stream_that_alone_keeps_its_group_is_named(self):
        made = {
            rank: {"w": calls("all_reduce", before=3, open=1, queued=True)} for rank in range(4)
        }
        made[1] = {"w": calls("", before=3)}
        case = a_recorded_case(ranks_in(4, IN_SYNC), {"w": [0, 1, 2, 3]}, made)
        assert answer_of_case(case) == ("behind_collective", [1])


WORLD = {"w": [0, 1, 2, 3]}


def moving(built, groups, before, after):
    """Records of two moments: what the ranks had called at each dump."""
    first, second = (a_recorded_case(built, groups, made) for made in (before, after))
    ranks = tuple(
        replace(new, dumps=(old.dumps[0], *new.dumps[1:]))
        for old, new in zip(first.ranks, second.ranks, strict=True)
    )
    logs = {log.digest: log for log in (*first.group_logs, *second.group_logs)}
    return replace(second, ranks=ranks, group_logs=tuple(logs.values()))


class TestDumpsOfTwoMoments:
    """A slow job in which all ranks go on, one rank dumped before the others."""

    computes = a_rank(
        3, IN_USER_CODE, before=IN_TORCH_ALL_REDUCE, cpu=0.9, state="R", active=True, step=40
    )

    def job(self, *, own, others, rank=computes):
        made = ({0: others[at], 1: others[at], 2: others[at], 3: own[at]} for at in (0, 1))
        before, after = ({r: {"w": each} for r, each in of.items()} for of in made)
        return moving(with_rank(ranks_in(4, IN_TORCH_ALL_REDUCE), rank), WORLD, before, after)

    def test_no_rank_is_to_blame_while_all_go_on(self):
        inside = [calls("all_reduce", before=before, open=1) for before in (9, 10)]
        own = (calls("all_reduce", before=8, open=1), calls("all_reduce", before=8))
        assert answer_of_case(self.job(own=own, others=inside)) == ("unknown", [])

    def test_nor_who_goes_on_alone(self):
        own = (calls("all_reduce", before=8, open=1), calls("all_reduce", before=8))
        assert answer_of_case(self.job(own=own, others=[calls("x", before=9, open=1)] * 2))[1] == []

    def test_who_stays_while_the_others_stay_is_named(self):
        own = [calls("all_reduce", before=8)] * 2
        rank = a_rank(3, IN_USER_CODE, cpu=0.9, state="R", active=True)
        others = [calls("all_reduce", before=9, open=1)] * 2
        assert answer_of_case(self.job(own=own, others=others, rank=rank)) == ("busy_loop", [3])

    def test_without_logs_a_dump_that_found_it_in_a_collective_speaks_for_it(self):
        built = with_rank(ranks_in(4, IN_TORCH_ALL_REDUCE), self.computes)
        assert answer_of_case(a_case(built)) == ("unknown", [])

    def test_without_logs_no_rank_is_held_up_where_all_are_elsewhere_in_their_second_dump(self):
        came = ranks_in(4, IN_TORCH_ALL_REDUCE, before=IN_USER_CODE)
        rank = a_rank(3, IN_USER_CODE, before=FETCHING, cpu=0.9, state="R", active=True)
        assert answer_of_case(a_case(with_rank(came, rank))) == ("unknown", [])
        stay = with_rank(ranks_in(4, IN_TORCH_ALL_REDUCE), rank)
        assert answer_of_case(a_case(stay)) == ("busy_loop", [3])

    def test_who_gets_on_in_one_group_is_on_its_way_to_the_other(self):
        groups = {**WORLD, "dp": [2, 3]}
        inside = {rank: {"w": calls("all_reduce", before=9, open=1)} for rank in (0, 1)}
        inside[2] = {
            "w": calls("all_reduce", before=9, open=1),
            "dp": calls("all_gather", before=5, open=1),
        }
        own = (calls("all_reduce", before=8, open=1), calls("all_reduce", before=8))
        before, after = (inside | {3: {"w": each, "dp": calls("", before=5)}} for each in own)
        built = with_rank(ranks_in(4, IN_TORCH_ALL_REDUCE), self.computes)
        assert answer_of_case(moving(built, groups, before, after)) == ("unknown", [])

    def test_calls_of_another_group_change_nothing(self):
        """Rank 3 evaluates in a group of its own while the others wait for it."""
        groups = {**WORLD, "own": [3]}
        stays = {rank: {"w": calls("all_reduce", before=3, open=1)} for rank in (0, 1, 2)}
        before, after = (
            stays | {3: {"w": calls("", before=3), "own": calls("", before=at)}} for at in (7, 9)
        )
        built = with_rank(ranks_in(4, IN_TORCH_ALL_REDUCE), a_rank(3, FETCHING))
        assert answer_of_case(moving(built, groups, before, after)) == ("dataloader_stall", [3])


class TestCalledLongAgo:
    """All threads have run ahead of their GPUs, which hang in number 4."""

    spins = a_rank(3, IN_USER_CODE, cpu=1.0, state="R", active=True)

    @pytest.mark.parametrize("rank", [a_rank(3, FETCHING), spins], ids=["loads", "computes"])
    def test_what_a_thread_does_since_is_no_reason(self, rank):
        ahead = calls("all_reduce", before=9, open=7, queued=True)
        made = {r: {"w": ahead} for r in range(3)}
        made[3] = {"w": calls("all_reduce", before=7, open=5, queued=True)}
        case = a_recorded_case(with_rank(ranks_in(4, IN_SYNC), rank), WORLD, made)
        assert answer_of_case(case) == ("unknown", [])

    def test_who_has_not_called_is_named_beside_it(self):
        ahead = calls("all_reduce", before=4, open=2, queued=True)
        made = {r: {"w": ahead} for r in range(4)} | {2: {"w": calls("", before=2)}}
        built = with_rank(ranks_in(4, IN_SYNC), self.spins, a_rank(2, FETCHING))
        case = a_recorded_case(built, WORLD, made)
        assert answer_of_case(case) == ("dataloader_stall", [2])


class TestCallsOfNoRecorder:
    """Rank 3 waits in a call that is in no log; it is known not to have entered the others'."""

    @pytest.mark.parametrize("call", ["monitored_barrier", "wait"])
    def test_who_alone_is_there_is_named(self, call):
        made = {rank: {"w": INSIDE} for rank in (0, 1, 2)} | {3: {"w": calls("", before=3)}}
        stays = a_rank(3, IN_TORCH_ALL_REDUCE.replace("all_reduce", call))
        case = a_recorded_case(with_rank(ranks_in(4, IN_TORCH_ALL_REDUCE), stays), WORLD, made)
        diagnosis = diagnose(case)
        assert named(diagnosis) == (
            "behind_collective",
            [3],
        )
        assert diagnosis.confidence <= 0.8

    def test_not_while_it_gets_on(self):
        made = {rank: {"w": INSIDE} for rank in (0, 1, 2)} | {3: {"w": calls("", before=3)}}
        moves = a_rank(3, IN_TORCH_ALL_REDUCE, before=IN_STAGE)
        case = a_recorded_case(with_rank(ranks_in(4, IN_TORCH_ALL_REDUCE), moves), WORLD, made)
        assert answer_of_case(case) == ("unknown", [])

    def test_not_beside_a_culprit_that_it_may_wait_for(self):
        waits = a_rank(1, RECEIVES)
        asleep = a_rank(0, IN_USER_CODE, syscall="clock_nanosleep")
        assert answer_of_case(pipeline(asleep, waits)) == ("behind_collective", [0])
