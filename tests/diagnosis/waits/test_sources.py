"""Every wait has a source: what shows that a rank waits."""

from dataclasses import replace

import pytest

from tests.diagnosis.builders import (
    FETCHING,
    IN_TORCH_ALL_REDUCE,
    Built,
    a_case,
    a_child,
    a_dead_rank,
    a_rank,
    ranks_in,
    with_rank,
)
from tests.diagnosis.causes.asking import named
from tests.diagnosis.recording import a_recorded_case, calls
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.diagnosis.picture import take_picture
from watchtower.diagnosis.position import Place
from watchtower.diagnosis.waits import sources
from watchtower.diagnosis.waits.sources import COLLECTIVE_LOG, GAVE_UP, PRESUMED, STACK, Source

WORLD = {"w": range(4)}
INSIDE, BEFORE = calls("all_reduce", before=3, open=1), calls("", before=3)
IN_C = "train_step /home/ann/job/main.py:51 < <module> /home/ann/job/main.py:80"
STAGE = "stage /home/ann/job/pipe.py:{} < <module> /home/ann/job/pipe.py:13"
BOOT = "Communicator.run /home/ann/job/comm.py:13 < Thread._bootstrap @threading.py:1002"
REDUCING = f"all_reduce @torch/distributed/distributed_c10d.py:3252 < {BOOT}"
MAIN = "synchronize /home/ann/job/main.py:17 < <module> main.py:19"
AWAITING = f"Event.wait @threading.py:629 < {MAIN}"


def sources_of(case):
    picture = take_picture(case)
    return [(edge.source, edge.ranks) for edge in picture.edges]


def test_a_stack_shows_the_ranks_in_a_collective():
    case = a_case(with_rank(ranks_in(4, IN_TORCH_ALL_REDUCE), a_rank(2, FETCHING)))
    assert sources_of(case) == [(STACK, (0, 1, 3))]


def test_a_collective_log_shows_waits_that_no_stack_names():
    built = with_rank(ranks_in(4, IN_C, syscall="futex"), a_rank(2, FETCHING))
    made = {rank: {"w": BEFORE if rank == 2 else INSIDE} for rank in range(4)}
    assert sources_of(a_recorded_case(built, WORLD, made)) == [(COLLECTIVE_LOG, (0, 1, 3))]


def test_a_communication_thread_shows_that_its_main_thread_waits():
    comm = (("comm", REDUCING),)
    built = ranks_in(4, AWAITING, syscall="futex", threads=comm)
    case = a_case(with_rank(built, a_rank(1, AWAITING, syscall="futex")))
    assert sources_of(case) == [("communication thread", (0, 2, 3))]


ANSWER = (
    "Connection._recv @multiprocessing/connection.py:395"
    " < _wait_for_response @torch/distributed/checkpoint/_async_process_executor.py:166"
    " < save /home/ann/job/main.py:60 < <module> /home/ann/job/main.py:80"
)
OF_CHILD = "<module> <string>:1"
GATHERS = f"gather_object @torch/distributed/distributed_c10d.py:3631 < {OF_CHILD}"
OPENS = f"create_stream @torch/distributed/checkpoint/filesystem.py:520 < {OF_CHILD}"


def beside_child(rank, child, stack=ANSWER, **values):
    values = {"syscall": "read", "target": "unix socket", **values}
    return a_rank(rank, stack, children=(a_child(7, stack=child),), child_stacks=(child,), **values)


class TestChildren:
    """A library saves in a process of its own, which has its own process groups."""

    def case(self, *others):
        return a_case(with_rank([beside_child(rank, GATHERS) for rank in range(4)], *others))

    def test_a_rank_whose_child_waits_for_others_waits(self):
        case = self.case(beside_child(2, OPENS))
        assert sources_of(case) == [("child process", (0, 1, 3))]
        assert named(diagnose(case)) == ("checkpoint_stall", [2])

    def test_not_while_a_rank_waits_itself(self):
        built = ranks_in(4, IN_TORCH_ALL_REDUCE)
        case = a_case(with_rank(built, beside_child(1, GATHERS), beside_child(2, OPENS)))
        assert sources_of(case) == [(STACK, (0, 3))]

    @pytest.mark.parametrize(
        ("stack", "values"),
        [
            (FETCHING, {}),
            (ANSWER, {"syscall": "futex", "target": ""}),
            (ANSWER, {"cpu": 1.0}),
            (ANSWER, {"before": IN_C}),
        ],
        ids=["loads", "at a lock", "works", "moved"],
    )
    def test_not_if_the_rank_has_no_reason_to_wait_for_its_child(self, stack, values):
        case = self.case(beside_child(2, GATHERS, stack, **values))
        assert sources_of(case) == [("child process", (0, 1, 3))]


def test_a_majority_at_one_place_is_presumed_to_wait():
    case = a_case(with_rank(ranks_in(4, IN_C, syscall="futex"), a_rank(2, FETCHING)))
    assert sources_of(case) == [(PRESUMED, (0, 1, 3))]


def test_a_majority_in_one_function_is_presumed_to_wait():
    built = with_rank(
        ranks_in(4, STAGE.format(12), syscall="futex"),
        a_rank(3, STAGE.format(10), syscall="futex"),
        a_rank(2, f"slot /home/ann/job/s.py:7 < {STAGE.format(11)}", syscall="pselect6"),
    )
    assert sources_of(a_case(built)) == [(PRESUMED, (0, 1, 3))]


def test_ranks_that_waited_and_ended_gave_up():
    waited = a_rank(1, IN_TORCH_ALL_REDUCE)
    dead = replace(a_dead_rank(1, code=1).evidence, dumps=waited.evidence.dumps)
    case = a_case([a_rank(0, FETCHING), Built(dead, waited.stacks)])
    picture = take_picture(case)
    assert sources_of(case) == [(GAVE_UP, (1,))]
    assert [item.rank for item in picture.gave_up] == [1]
    assert not picture.waiting


def test_another_source_is_one_more_entry_in_the_tuple(monkeypatch):
    """Then the rank waits, call unknown, and the picture shows the name of the source."""

    def find_waits_for_devices(positions):
        by_rank = dict(positions.by_rank)
        by_rank[2] = replace(by_rank[2], place=Place.CALL_UNKNOWN)
        return replace(positions, by_rank=by_rank), [2]

    another = Source("device queue", find_waits_for_devices)
    monkeypatch.setattr(sources, "SOURCES", (*sources.SOURCES, another))
    picture = take_picture(a_case(with_rank(ranks_in(4), a_rank(2, FETCHING))))
    assert [item.rank for item in picture.waiting] == [0, 1, 2, 3]
    assert picture.shown_by("device queue") == (picture.by_rank[2],)
