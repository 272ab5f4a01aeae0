"""Other threads and children of a suspect: which are quoted, and what a rank waits for."""

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
from tests.diagnosis.causes.asking import answer, ask, job_held_at, quotes, reasons_of
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.wire.dumps import ChildDump

ROOT = " < Thread.run @threading.py:982 < Thread._bootstrap @threading.py:1002"
IN_POST = (
    "SocketIO.readinto @socket.py:706 < getresponse @http/client.py:1386"
    f" < _send /job/run.py:12{ROOT}"
)
IN_QUEUE = (
    f"Condition.wait @threading.py:327 < Queue.get @queue.py:171 < _work /job/pool.py:7{ROOT}"
)
IN_UPLOAD = f"upload_part /job/save.py:11 < _worker @concurrent/futures/thread.py:83{ROOT}"
IDLE_IN_POOL = f"_worker @concurrent/futures/thread.py:81{ROOT}"
AS_COMPLETED = (
    "Condition.wait @threading.py:327 < as_completed @concurrent/futures/_base.py:243"
    " < complete /job/save.py:16 < save_checkpoint /job/save.py:18 < <module> main.py:80"
)
JOINING = "Thread.join @threading.py:1119 < emit /job/log.py:10 < <module> /job/main.py:80"
LOGGING = f"Handler.acquire @logging/__init__.py:927 < _ship /job/log.py:11{ROOT}"


def threads_of(asked):
    return [each.split()[3] for each in reasons_of(asked, "threads") if "a lock in" not in each]


class TestThreads:
    def test_a_lock_quotes_the_thread_that_waits_for_the_network(self):
        built = job_held_at(IN_LOCK, threads=(("work", IN_QUEUE), ("sender", IN_POST)))
        finding = ask("lock_deadlock", built)
        assert threads_of(finding) == ["sender", "work"]
        assert all("is still at" in each for each in reasons_of(finding, "threads")[-2:])
        assert "thread sender" in finding.summary
        assert "thread work" not in finding.summary

    def test_a_checkpoint_quotes_the_upload_and_no_idle_thread_of_its_pool(self):
        threads = (("s3_3", IDLE_IN_POOL), ("s3_2", IN_UPLOAD))
        built = job_held_at(AS_COMPLETED, threads=threads)
        assert answer(built) == ("checkpoint_stall", [2])
        finding = ask("checkpoint_stall", built)
        assert threads_of(finding) == ["s3_2"]

    def test_they_weigh_nothing(self):
        built = job_held_at(AS_COMPLETED, threads=(("s3_2", IN_UPLOAD),))
        alone = ask("checkpoint_stall", job_held_at(AS_COMPLETED))
        assert ask("checkpoint_stall", built).confidence == alone.confidence

    def test_main_is_quoted_where_another_thread_trains(self):
        finding = ask("behind_collective", job_held_at(JOINING, threads=(("ship", LOGGING),)))
        (main,) = reasons_of(finding, "threads")
        assert main.startswith("rank 2: main thread")

    def test_a_rank_that_waits_for_no_thread_has_none_quoted(self):
        built = job_held_at(IN_USER_CODE, syscall="clock_nanosleep", threads=(("s", IN_POST),))
        assert threads_of(ask("behind_collective", built)) == []
        awake = job_held_at(FETCHING, state="R", active=True, threads=(("s", IN_POST),))
        assert threads_of(ask("dataloader_stall", awake)) == []

    def test_three_of_many_are_quoted(self):
        threads = tuple((f"s3_{n}", IN_UPLOAD) for n in range(40))
        finding = ask("checkpoint_stall", job_held_at(AS_COMPLETED, threads=threads))
        assert len(threads_of(finding)) == 3

    def test_names_are_cleaned_and_cut(self):
        threads = (("a`\n\x1b[31m\u202e" + "x" * 90, IN_UPLOAD),)
        finding = ask("checkpoint_stall", job_held_at(AS_COMPLETED, threads=threads))
        (text,) = quotes(finding, "threads")
        assert text.startswith("rank 2: thread a' [31m xxx")
        assert len(text) < 120

    def test_a_thread_seen_once_is_not_said_to_stay(self):
        built = job_held_at(AS_COMPLETED, dumps=1, threads=(("s3_2", IN_UPLOAD),))
        (upload,) = reasons_of(ask("checkpoint_stall", built), "threads")
        assert "thread s3_2 is at" in upload


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
        child = ChildDump(pid=18, kernel=a_child(18, **CAT).kernel, command="cat")
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
