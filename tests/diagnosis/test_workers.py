"""The children of a suspect in its verdict: workers that feed it, programs it waits for."""

import pytest

from tests.diagnosis.builders import (
    FETCHING,
    IN_LOCK,
    IN_USER_CODE,
    a_case,
    a_child,
    a_rank,
    ranks_in,
    with_rank,
)
from tests.diagnosis.causes.asking import answer, ask, job_held_at, quotes
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.wire.dumps import ChildDump

IN_MP_QUEUE = (
    "Connection._recv @multiprocessing/connection.py:395"
    " < Queue.get @multiprocessing/queues.py:103 < main /job/main.py:15 < <module> /job/main.py:18"
)
IN_MP_PIPE = (
    "Connection.recv @multiprocessing/connection.py:250 < main /job/main.py:15"
    " < <module> /job/main.py:18"
)
IN_COMMUNICATE = (
    "_PollLikeSelector.select @selectors.py:415 < Popen._communicate @subprocess.py:2108"
    " < run @subprocess.py:550 < on_batch_end /job/main.py:10 < <module> /job/main.py:22"
)
CAT = {"syscall": "read", "target": "pipe:[7]"}


class TestChildren:
    def test_a_program_that_is_waited_for_is_named_with_its_own_wait(self):
        child = ChildDump(pid=18, kernel=a_child(18, **CAT).kernel, command="/bin/cat --token=x")
        finding = ask(
            "behind_collective", job_held_at(IN_COMMUNICATE, syscall="poll", children=(child,))
        )
        text = "it waits for its child 18 (cat), which is blocked in read() on pipe:[7]"
        assert f". I{text[1:]}. " in finding.summary
        assert quotes(finding, "children") == [f"rank 2: {text}"]
        assert "pid 4002" in finding.next_steps[0]

    def test_of_several_programs_three_are_named(self):
        children = tuple(a_child(pid, "Z") for pid in range(10, 15))
        finding = ask(
            "behind_collective", job_held_at(IN_USER_CODE, syscall="wait4", children=children)
        )
        assert quotes(finding, "children") == [
            "rank 2: it waits for one of its children: 10, which has exited and is not reaped "
            "(state Z); 11, which has exited and is not reaped (state Z); 12, which has exited and "
            "is not reaped (state Z); 2 more"
        ]

    def test_a_rank_that_waits_for_no_process_has_no_child_quoted(self):
        built = job_held_at(IN_LOCK, children=(a_child(18, "Z"),))
        assert quotes(ask("lock_deadlock", built), "children") == []

    def test_a_dead_worker_at_the_other_end_of_a_pipe_is_quoted(self):
        built = job_held_at(IN_MP_PIPE, **CAT, children=(a_child(18, "Z"),))
        verdict = diagnose(a_case(built))
        assert verdict.cause.value == "behind_collective"
        assert all(value in verdict.summary for value in ("worker pid 18", "(state Z)"))

    def test_a_lock_of_a_queue_of_processes_quotes_the_dead_worker(self):
        stack = IN_MP_QUEUE.replace("Connection._recv @multiprocessing/connection.py:395 < ", "")
        finding = ask("lock_deadlock", job_held_at(stack, children=(a_child(18, "Z"),)))
        assert quotes(finding, "children") == [
            "rank 2: its worker pid 18 has exited and is not reaped (state Z)"
        ]


class TestQueueOfADeadWorker:
    def test_is_a_data_loader(self):
        built = job_held_at(IN_MP_QUEUE, **CAT, children=(a_child(18, "Z"),))
        assert answer(built) == ("dataloader_stall", [2])
        finding = ask("dataloader_stall", built)
        assert finding.confidence == 0.8
        assert all(value in finding.summary for value in ("worker pid 18", "(state Z)"))
        assert all(value in finding.next_steps[0] for value in ("pid 18", "gpu-00"))

    @pytest.mark.parametrize(
        ("stack", "state"),
        [
            (IN_MP_QUEUE, "S"),
            (IN_MP_QUEUE, "T"),
            (IN_MP_PIPE, "Z"),
            (IN_MP_QUEUE.replace("multiprocessing/queues", "queue"), "Z"),
        ],
        ids=["alive", "stopped", "a pipe", "a queue of threads"],
    )
    def test_less_is_not(self, stack, state):
        built = job_held_at(stack, **CAT, children=(a_child(18, state),))
        assert ask("dataloader_stall", built) is None
        assert answer(built) == ("behind_collective", [2])

    def test_one_with_a_purpose_keeps_it(self):
        saving = IN_MP_QUEUE.replace("main /job/main.py:15", "save_checkpoint /job/main.py:15")
        built = job_held_at(saving, **CAT, children=(a_child(18, "Z"),))
        assert answer(built) == ("checkpoint_stall", [2])
        assert "worker pid 18" in ask("checkpoint_stall", built).summary

    def test_is_left_out_beside_ranks_whose_frames_say_it(self):
        dead = a_rank(2, IN_MP_QUEUE, **CAT, children=(a_child(18, "Z"),))
        built = with_rank(ranks_in(8), dead, a_rank(3, FETCHING, syscall="read"))
        finding = ask("dataloader_stall", built)
        assert [suspect.rank for suspect in finding.suspects] == [3]
