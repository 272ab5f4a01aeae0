from dataclasses import replace

import pytest

from tests.diagnosis.builders import (
    FETCHING,
    IN_ALL_REDUCE,
    IN_DDP_BACKWARD,
    IN_TORCH_INIT,
    IN_USER_CODE,
    a_dead_rank,
    a_failure,
    a_kernel,
    a_missing_rank,
    a_native,
    a_rank,
    a_silent_rank,
    picture_of,
)
from watchtower.diagnosis.position import Place, Shape
from watchtower.evidence.case import Presence
from watchtower.wire.report import ProcessState

ON_DEVICE = "synchronize @torch/cuda/__init__.py:900 < train /job/main.py:3"


def position_of(*args, **values):
    return picture_of([a_rank(0, *args, **values)]).by_rank[0]


def place_of(*args, **values):
    return position_of(*args, **values).place


def test_a_rank_in_a_collective_or_in_set_up_waits():
    assert place_of(IN_ALL_REDUCE) is Place.INSIDE
    assert place_of(IN_TORCH_INIT) is Place.INSIDE


def test_a_rank_elsewhere_is_behind():
    assert place_of(FETCHING) is Place.ELSEWHERE


def test_a_stopped_or_traced_rank_is_held_wherever_it_was():
    assert place_of(IN_ALL_REDUCE, state="T") is Place.CANNOT_RUN
    assert place_of(IN_ALL_REDUCE, state="t") is Place.CANNOT_RUN


def test_a_rank_without_a_stack_is_unknown_and_live():
    position = position_of(dumps=0)
    assert position.place is Place.UNSEEN
    assert position.live
    assert position.last_dump is None
    assert position_of(failure=a_failure()).place is Place.UNSEEN


def test_absent_ranks_are_not_live():
    built = [a_missing_rank(0), a_silent_rank(1), a_dead_rank(2, code=0)]
    picture = picture_of([*built, a_rank(3, state="Z", syscall="")])
    places = [item.place for item in picture.by_rank.values()]
    assert places == [Place.ABSENT, Place.UNSEEN, Place.ABSENT, Place.ABSENT]
    assert picture.live == ()


class TestBackward:
    """DDP on gloo waits inside backward, and no Python frame says so."""

    def test_idle_asleep_and_unchanged_waits(self):
        assert place_of(IN_DDP_BACKWARD, syscall="futex") is Place.INSIDE

    def test_on_a_cpu_is_behind(self):
        assert place_of(IN_DDP_BACKWARD, active=True, state="R") is Place.ELSEWHERE
        assert place_of(IN_DDP_BACKWARD, cpu=0.9) is Place.ELSEWHERE

    @pytest.mark.parametrize(
        "values", [{"dumps": 1}, {"before": IN_USER_CODE}, {"cpu": 0.1}, {"written": 1e6}]
    )
    def test_anything_between_is_left_open(self, values):
        assert place_of(IN_DDP_BACKWARD, **values) is Place.UNSEEN


def test_a_wait_for_the_device_waits_when_it_stays():
    assert place_of(ON_DEVICE, active=True, state="R", cpu=1.0) is Place.INSIDE
    assert place_of(ON_DEVICE, dumps=1) is Place.UNSEEN


def test_two_dumps_tell_a_shape():
    loop = "poll @x.py:1 < " + FETCHING
    assert position_of(FETCHING).shape is Shape.SAME
    assert position_of(FETCHING, before=loop).shape is Shape.NEAR
    assert position_of(FETCHING, before=IN_USER_CODE).shape is Shape.CHANGED
    assert position_of(FETCHING, dumps=1).shape is Shape.UNKNOWN


def test_a_loop_around_a_timeout_counts_as_unchanged_only_asleep():
    loop = "poll @x.py:1 < " + FETCHING
    assert position_of(FETCHING, before=loop).unchanged
    assert not position_of(FETCHING, before=loop, active=True).unchanged


def test_cpu_or_storage_traffic_is_movement():
    assert position_of(cpu=0.06).moving
    assert position_of(written=1e6).moving
    assert not position_of(cpu=0.01, written=4096.0).moving


def test_in_state_d_the_cpu_of_helper_threads_is_no_movement():
    assert not position_of(FETCHING, state="D", cpu=0.9).moving
    assert position_of(FETCHING, state="D", written=1e6).moving
    assert position_of(FETCHING, state="D", dumps=1, cpu=0.9).moving


def test_the_report_is_newer_than_the_dumps():
    position = position_of(state="T")
    later = picture_of([a_rank(0, state="T", **{"presence": Presence.LIVE})])
    assert position.state is later.by_rank[0].state is ProcessState.STOPPED


def test_without_a_state_in_the_report_the_dump_says_it():
    built = a_rank(0, state="T")
    evidence = built.evidence
    assert evidence.dumps[0].kernel.state is ProcessState.STOPPED
    from dataclasses import replace

    silent = replace(built, evidence=replace(evidence, state=ProcessState.OTHER))
    assert picture_of([silent]).by_rank[0].place is Place.CANNOT_RUN


def test_training_in_another_thread_than_the_main_one_is_found():
    idle = "wait @threading.py:331 < main_loop @ray/_private/worker.py:879"
    position = position_of(idle, threads=(("trainer", IN_ALL_REDUCE),))
    assert position.place is Place.INSIDE
    assert position_of(idle, threads=(("other", idle),)).frame_class.value == "server"


def test_the_kernel_wait_of_that_thread_counts():
    idle = "wait @threading.py:331 < main_loop @ray/_private/worker.py:879"
    kernel = a_kernel("S", "recvfrom", "tcp 10.0.0.1:40000 -> 10.0.0.9:443")
    threads = {"threads": (("trainer", IN_USER_CODE),), "syscall": "futex"}
    position = position_of(idle, thread_values={"kernel": kernel}, **threads)
    assert position.wait.wait_class == "network"
    assert position.kernel.target == kernel.target
    unread = position_of(idle, **threads)
    assert (unread.wait.wait_class, unread.kernel.syscall) == ("", "")


def test_a_dump_without_a_main_thread_shows_its_first():
    from watchtower.evidence.threads import find_thread
    from watchtower.wire.dumps import KernelWait, RankDump, ThreadDump

    thread = ThreadDump(name="a", digest="x")
    dump = RankDump(rank=0, pid=1, start_time=1, kernel=KernelWait(), threads=(thread,))
    assert find_thread(dump, {}) is thread


def test_words_of_the_page():
    position = position_of(step=41, phase="eval", age_s=7.0)
    assert (position.step, position.phase, position.age_s) == (41, "eval", 7.0)
    bare = position_of(step=None)
    assert (bare.step, bare.phase, bare.age_s) == (None, "", 9.0)
    assert position_of(step=-1).step is None


IN_LOADER = "Loader.read /job/data.py:9 < evaluate /job/main.py:20 < <module> main.py:80"
IN_MODEL = "Model.call /job/model.py:31 < evaluate /job/main.py:22 < <module> main.py:80"
IN_EVALUATE = "sleep @time.py:1 < evaluate /job/main.py:21 < <module> main.py:80"


def counted(run_s: float, switches: int, running: bool = False):
    """The place of a training thread that has run for so long, and was switched so often."""
    return a_native("python", run_ns=int(run_s * 1e9), switches=switches, running=running)


def works(*args, natives=(None, None), cpu=0.2, **values):
    built = a_rank(0, *args, cpu=cpu, **values)
    dumps = (
        replace(dump, native=native)
        for dump, native in zip(built.evidence.dumps, natives, strict=True)
    )
    built = replace(built, evidence=built.evidence.with_dumps(tuple(dumps)))
    return picture_of([built]).by_rank[0].works


def test_a_rank_in_two_functions_of_one_loop_works():
    assert works(IN_MODEL, before=IN_LOADER)
    assert works(IN_MODEL, before=IN_LOADER, cpu=1.0, active=True, state="R")
    assert not works(IN_MODEL, before=IN_LOADER, cpu=0.0)


@pytest.mark.parametrize("before", [IN_EVALUATE, IN_EVALUATE.replace("21", "23"), IN_MODEL])
def test_a_rank_in_one_function_and_what_that_calls_may_loop_for_ever(before):
    loop = IN_EVALUATE.removeprefix("sleep @time.py:1 < ")
    assert not works(loop, before=before, cpu=1.0, active=True, state="R")


@pytest.mark.parametrize(
    ("run_s", "switches", "running", "expected"),
    [
        (0.17, 25, False, True),  # 8 ms of work between two waits
        (0.30, 3000, False, False),  # it asks every 0.2 ms whether something has happened
        (0.06, 7, False, True),  # the same work on a busy machine
        (0.03, 1, False, False),  # a retry once a second
        (1.0, 4, True, False),  # it never waits
    ],
)
def test_a_rank_works_that_waits_and_computes_in_turn(run_s, switches, running, expected):
    natives = counted(5.0, 700, running), counted(5.0 + run_s, 700 + switches, running)
    assert works(IN_EVALUATE, natives=natives) is expected


def test_counters_of_two_threads_are_not_compared():
    other = replace(counted(9.0, 800), thread="pt_autograd_0")
    assert not works(IN_EVALUATE, natives=(counted(5.0, 700), other))
    assert not works(IN_EVALUATE, natives=(a_native("python"), counted(9.0, 800)))
