"""The other threads of a suspect's process that a verdict quotes."""

from tests.diagnosis.builders import (
    FETCHING,
    IN_LOCK,
    IN_USER_CODE,
)
from tests.diagnosis.causes.asking import answer, ask, job_held_at, quotes, reasons_of

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
