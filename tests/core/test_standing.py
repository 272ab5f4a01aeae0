import pytest

from tests.core.builders import (
    FETCHING,
    IN_ALL_REDUCE,
    IN_DDP_BACKWARD,
    IN_TORCH_INIT,
    IN_USER_CODE,
    a_dead_rank,
    a_failure,
    a_missing_rank,
    a_rank,
    a_silent_rank,
    standings_of,
)
from watchtower.core.case import Presence
from watchtower.core.diagnosis.standing import Place, Shape
from watchtower.wire.report import ProcessState

ON_DEVICE = "synchronize @torch/cuda/__init__.py:900 < train /job/main.py:3"


def standing_of(*args, **values):
    return standings_of([a_rank(0, *args, **values)]).by_rank[0]


def place_of(*args, **values):
    return standing_of(*args, **values).place


def test_a_rank_in_a_collective_or_in_set_up_waits():
    assert place_of(IN_ALL_REDUCE) is Place.WAITING
    assert place_of(IN_TORCH_INIT) is Place.WAITING


def test_a_rank_elsewhere_is_behind():
    assert place_of(FETCHING) is Place.BEHIND


def test_a_stopped_or_traced_rank_is_held_wherever_it_was():
    assert place_of(IN_ALL_REDUCE, state="T") is Place.HELD
    assert place_of(IN_ALL_REDUCE, state="t") is Place.HELD


def test_a_rank_without_a_stack_is_unknown_and_live():
    standing = standing_of(dumps=0)
    assert standing.place is Place.UNKNOWN
    assert standing.live
    assert standing.last_dump is None
    assert standing_of(failure=a_failure()).place is Place.UNKNOWN


def test_absent_ranks_are_not_live():
    built = [a_missing_rank(0), a_silent_rank(1), a_dead_rank(2, code=0)]
    standings = standings_of([*built, a_rank(3, state="Z", syscall="")])
    places = [item.place for item in standings.by_rank.values()]
    assert places == [Place.MISSING, Place.UNKNOWN, Place.GONE, Place.GONE]
    assert standings.live == ()


class TestBackward:
    """DDP on gloo waits inside backward, and no Python frame says so."""

    def test_idle_asleep_and_unchanged_waits(self):
        assert place_of(IN_DDP_BACKWARD, syscall="futex") is Place.WAITING

    def test_on_a_cpu_is_behind(self):
        assert place_of(IN_DDP_BACKWARD, active=True, state="R") is Place.BEHIND
        assert place_of(IN_DDP_BACKWARD, cpu=0.9) is Place.BEHIND

    @pytest.mark.parametrize(
        "values", [{"dumps": 1}, {"before": IN_USER_CODE}, {"cpu": 0.1}, {"written": 1e6}]
    )
    def test_anything_between_is_left_open(self, values):
        assert place_of(IN_DDP_BACKWARD, **values) is Place.UNKNOWN


def test_a_wait_for_the_device_waits_when_it_stays():
    assert place_of(ON_DEVICE, active=True, state="R", cpu=1.0) is Place.WAITING
    assert place_of(ON_DEVICE, dumps=1) is Place.UNKNOWN


def test_two_dumps_tell_a_shape():
    loop = "poll @x.py:1 < " + FETCHING
    assert standing_of(FETCHING).shape is Shape.SAME
    assert standing_of(FETCHING, before=loop).shape is Shape.NEAR
    assert standing_of(FETCHING, before=IN_USER_CODE).shape is Shape.CHANGED
    assert standing_of(FETCHING, dumps=1).shape is Shape.UNKNOWN


def test_a_loop_around_a_timeout_counts_as_unchanged_only_asleep():
    loop = "poll @x.py:1 < " + FETCHING
    assert standing_of(FETCHING, before=loop).unchanged
    assert not standing_of(FETCHING, before=loop, active=True).unchanged


def test_cpu_or_storage_traffic_is_movement():
    assert standing_of(cpu=0.06).moving
    assert standing_of(written=1e6).moving
    assert not standing_of(cpu=0.01, written=4096.0).moving


def test_the_report_is_newer_than_the_dumps():
    standing = standing_of(state="T")
    later = standings_of([a_rank(0, state="T", **{"presence": Presence.LIVE})])
    assert standing.state is later.by_rank[0].state is ProcessState.STOPPED


def test_without_a_state_in_the_report_the_dump_says_it():
    built = a_rank(0, state="T")
    evidence = built.evidence
    assert evidence.dumps[0].kernel.state is ProcessState.STOPPED
    from dataclasses import replace

    silent = replace(built, evidence=replace(evidence, state=ProcessState.OTHER))
    assert standings_of([silent]).by_rank[0].place is Place.HELD


def test_training_in_another_thread_than_the_main_one_is_found():
    idle = "wait @threading.py:331 < main_loop @ray/_private/worker.py:879"
    standing = standing_of(idle, threads=(("trainer", IN_ALL_REDUCE),))
    assert standing.place is Place.WAITING
    assert standing_of(idle, threads=(("other", idle),)).frame_class.value == "lock"


def test_a_dump_without_a_main_thread_shows_its_first():
    from watchtower.core.reading.threads import find_thread
    from watchtower.wire.dumps import KernelWait, RankDump, ThreadDump

    thread = ThreadDump(name="a", digest="x")
    dump = RankDump(rank=0, pid=1, start_time=1, kernel=KernelWait(), threads=(thread,))
    assert find_thread(dump, {}) is thread


def test_words_of_the_page():
    standing = standing_of(step=41, phase="eval", age_s=7.0)
    assert (standing.step, standing.phase, standing.age_s) == (41, "eval", 7.0)
    bare = standing_of(step=None)
    assert (bare.step, bare.phase, bare.age_s) == (None, "", 9.0)
    assert standing_of(step=-1).step is None
