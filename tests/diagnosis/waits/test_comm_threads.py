"""Collectives made in a thread of its own, for which every main thread waits at one place."""

import pytest

from tests.diagnosis.builders import (
    FETCHING,
    IN_LOCK,
    IN_TORCH_ALL_REDUCE,
    SAVING,
    a_case,
    a_rank,
    ranks_in,
    with_rank,
)
from tests.diagnosis.causes.asking import answer_of_case, named, reasons_of
from tests.diagnosis.causes.asking import ask_of_case as ask
from tests.diagnosis.recording import a_recorded_case, calls
from watchtower.diagnosis.diagnosis import diagnose

WORLD = {"w": range(4)}
BOOT = "Communicator.run /home/ann/job/comm.py:{} < Thread._bootstrap @threading.py:1002"
EVENT = "Condition.wait @threading.py:327 < Event.wait @threading.py:629"
AWAITING = f"{EVENT} < synchronize /home/ann/job/main.py:17 < <module> /home/ann/job/main.py:19"
REDUCING = f"all_reduce @torch/distributed/distributed_c10d.py:3252 < {BOOT.format(13)}"
POSTING = f"SocketIO.readinto @socket.py:706 < urlopen @urllib/request.py:216 < {BOOT.format(12)}"
IDLE = f"Queue.get @queue.py:171 < {BOOT.format(10)}"
GATHERING = REDUCING.replace("Communicator.run", "Saver.run").replace(":13 ", ":40 ")
PREFETCHED = f"Condition.wait @threading.py:327 < Queue.get @queue.py:171 < {IN_LOCK}"

CAME, STAYED = calls("all_reduce", before=30, open=1), calls("", before=30)


def waits(rank, *threads, stack=AWAITING):
    return a_rank(rank, stack, syscall="futex", threads=threads)


def job(*others, count=4, comm=REDUCING):
    built = [waits(rank, ("comm", comm)) for rank in range(count)]
    return with_rank(built, *others)


def recorded(built, *, late=1):
    made = {item.evidence.rank: {"w": CAME} for item in built} | {late: {"w": STAYED}}
    return a_recorded_case(built, {"w": range(len(built))}, made)


def test_the_rank_whose_communication_thread_has_ended_is_named_with_both_counts():
    diagnosis = diagnose(recorded(job(waits(1))))
    assert named(diagnosis) == ("lock_deadlock", [1])
    assert diagnosis.confidence == 0.85
    assert diagnosis.waiting == "0,2-3"
    *_, counts = reasons_of(ask("lock_deadlock", recorded(job(waits(1)))), "records")
    assert "ranks 0,2-3 made call number 31; the last call of rank 1 is number 30" in counts


def test_a_communication_thread_elsewhere_says_where_and_why():
    diagnosis = diagnose(recorded(job(waits(1, ("comm", POSTING)))))
    assert named(diagnosis) == ("network_wait", [1])
    assert diagnosis.suspects[0].where == "comm.py:12 in run"
    assert [item.ranks for item in diagnosis.evidence if item.source == "network"] == ["1"]
    assert diagnosis.confidence == 0.85


def quoted(case, cause):
    """Return where the other threads of a suspect are."""
    found = reasons_of(ask(cause, case), "threads")
    return [each.partition(": ")[2].split(";")[0] for each in found if "a lock" not in each]


MAIN_WAITS = "main thread waits for this at main.py:17 in synchronize"


def test_beside_the_communication_thread_main_is_quoted():
    assert quoted(recorded(job(waits(1, ("comm", POSTING)))), "network_wait") == [MAIN_WAITS]


def test_main_is_quoted_before_others_and_while_the_communication_thread_computes():
    packing = "pack /home/ann/job/comm.py:21 < " + BOOT.format(12)
    threads = (("comm", packing), *((f"s3_{n}", POSTING) for n in range(5)))
    spins = a_rank(1, AWAITING, syscall="", state="R", cpu=1.0, threads=threads)
    diagnosis = diagnose(recorded(job(spins)))
    assert diagnosis.suspects[0].where == "comm.py:21 in pack"
    assert quoted(recorded(job(spins)), "behind_collective")[0] == MAIN_WAITS


def test_an_idle_communication_thread_shows_main_where_it_waits():
    diagnosis = diagnose(recorded(job(waits(1, ("comm", IDLE)))))
    assert (diagnosis.suspects[0].rank, diagnosis.suspects[0].where) == (
        1,
        "main.py:17 in synchronize",
    )


def test_other_threads_of_the_culprit_are_not_taken_for_it():
    """Its thread has died; what a logger does is no place for the rank."""
    logs = "flush /home/ann/job/log.py:9 < Thread._bootstrap @threading.py:1002"
    diagnosis = diagnose(recorded(job(waits(1, ("logger", logs)))))
    assert diagnosis.suspects[0].where == "main.py:17 in synchronize"


def test_of_two_ranks_the_one_that_has_not_called_is_named():
    assert answer_of_case(recorded(job(waits(1), count=2)))[1] == [1]


def test_a_main_thread_elsewhere_is_named_and_the_others_wait_for_it():
    diagnosis = diagnose(recorded(job(a_rank(1, FETCHING, threads=(("comm", IDLE),)))))
    assert named(diagnosis) == (
        "dataloader_stall",
        [1],
    )
    assert (diagnosis.waiting, diagnosis.confidence) == ("0,2-3", 0.85)


def test_without_collective_logs_it_is_less_sure():
    diagnosis = diagnose(a_case(job(waits(1))))
    assert [suspect.rank for suspect in diagnosis.suspects] == [1]
    assert diagnosis.confidence == 0.75


def test_a_call_that_all_their_threads_have_come_to_names_no_rank():
    built = job()
    made = {rank: {"w": CAME} for rank in range(4)}
    assert answer_of_case(a_recorded_case(built, WORLD, made)) == ("symmetric_hang", [])


POOL = (
    "_WorkItem.run @concurrent/futures/thread.py:58 < _worker @concurrent/futures/thread.py:83"
    " < Thread._bootstrap @threading.py:1002"
)
SAVER = f"save_wrapper @torch/distributed/checkpoint/_async_thread_executor.py:30 < {POOL}"
SAVERS_GATHER = f"gather_object @torch/distributed/distributed_c10d.py:3631 < {SAVER}"
SAVER_OPENS = (
    "Path.open @pathlib.py:1044"
    f" < FileSystem.create_stream @torch/distributed/checkpoint/filesystem.py:520 < {SAVER}"
)
POOL_IDLE = (
    "_worker @concurrent/futures/thread.py:81 < Thread.run @threading.py:982"
    " < Thread._bootstrap @threading.py:1002"
)
MAIN = "train /home/ann/job/main.py:17 < <module> /home/ann/job/main.py:19"
RESULT = (
    f"Condition.wait @threading.py:327 < Future.result @concurrent/futures/_base.py:451 < {MAIN}"
)
JOIN = f"Thread.join @threading.py:1119 < {MAIN}"
MONITOR = "run @tqdm/_monitor.py:60 < Thread._bootstrap @threading.py:1002"


class TestTasksOfLibraries:
    """No frame of such a thread is the user's: only the main thread shows who waits for it."""

    def case(self, *last, stack=RESULT, gathers=SAVERS_GATHER):
        """Main threads wait, all but one of them for a thread that waits for other ranks."""
        monitor, idle = ("tqdm", MONITOR), ("pool", POOL_IDLE)
        built = [waits(r, monitor, idle, ("saver", gathers), stack=stack) for r in range(4)]
        last = (("saver", text) for text in last)
        return a_case(with_rank(built, waits(2, monitor, idle, *last, stack=stack)))

    @pytest.mark.parametrize("stack", [RESULT, JOIN, AWAITING])
    def test_the_rank_whose_task_saves_is_named_with_that_place(self, stack):
        diagnosis = diagnose(self.case(SAVER_OPENS, stack=stack))
        assert named(diagnosis) == ("checkpoint_stall", [2])
        assert diagnosis.suspects[0].where == "filesystem.py:520 in create_stream"
        assert diagnosis.waiting == "0-1,3"

    @pytest.mark.parametrize("stack", [RESULT, JOIN])
    def test_the_program_itself_may_be_an_installed_package(self, stack):
        installed = stack.replace("/home/ann/job/main.py", "@torchtitan/train.py")
        diagnosis = diagnose(self.case(SAVER_OPENS, stack=installed))
        assert named(diagnosis) == ("checkpoint_stall", [2])
        assert diagnosis.waiting == "0-1,3"

    @pytest.mark.parametrize("stack", [RESULT, JOIN, AWAITING])
    def test_without_its_task_the_main_thread_is_the_place(self, stack):
        diagnosis = diagnose(self.case(stack=stack))
        assert [suspect.rank for suspect in diagnosis.suspects] == [2]
        assert diagnosis.suspects[0].where == "main.py:17 in " + (
            "synchronize" if stack is AWAITING else "train"
        )

    def test_a_future_is_no_result_of_a_thread_that_the_program_began(self):
        logs = "flush /home/ann/job/log.py:9 < Thread._bootstrap @threading.py:1002"
        diagnosis = diagnose(self.case(logs, SAVER_OPENS))
        assert diagnosis.suspects[0].where == "filesystem.py:520 in create_stream"

    def test_if_all_tasks_wait_for_ranks_no_rank_is_named(self):
        assert answer_of_case(self.case(SAVERS_GATHER))[1] == []

    def test_a_task_that_saves_counts_as_main_threads_that_save(self):
        tasks = diagnose(self.case(SAVER_OPENS, gathers=SAVER_OPENS))
        mains = diagnose(a_case(ranks_in(4, SAVING, syscall="futex")))
        assert (tasks.cause, tasks.confidence) == (mains.cause, mains.confidence)


NESTED = (
    "Condition.wait @threading.py:327 < Future.result @concurrent/futures/_base.py:451"
    f" < batch /home/ann/job/main.py:10 < {POOL}"
)
READS = f"read /home/ann/job/main.py:5 < {POOL}"
MANAGES = "wait @multiprocessing/connection.py:930 < run @concurrent/futures/process.py:320"


class TestNestedTasks:
    """A task waits for another task of its own pool."""

    def late(self, *tasks):
        threads = tuple((f"pool_{index}", text) for index, text in enumerate(tasks))
        built = ranks_in(4, IN_TORCH_ALL_REDUCE)
        return a_case(with_rank(built, waits(2, *threads, stack=RESULT)))

    def test_without_a_free_thread_it_is_a_deadlock_and_the_advice_leads_on(self):
        diagnosis = diagnose(self.late(NESTED, NESTED))
        assert named(diagnosis) == ("lock_deadlock", [2])
        assert "all 2 tasks of its pools wait for other tasks" in diagnosis.summary.lower()
        assert "another task of its own pool" in " ".join(diagnosis.next_steps)
        assert "main thread" not in " ".join(diagnosis.next_steps)

    @pytest.mark.parametrize("other", [READS, MANAGES, SAVER_OPENS])
    def test_while_another_task_may_run_it_is_none(self, other):
        assert named(diagnose(self.late(NESTED, other)))[0] != "lock_deadlock"


IN_C = "train_step /home/ann/job/main.py:51 < <module> main.py:80"
"""A main thread that waits for other ranks in a call into C, as far as anybody knows."""


class TestOtherThreadsProveNothing:
    """Checkpoints are gathered in the background; the last rank is slow and not at fault."""

    def case(self, main, *stuck, count=4, stack=PREFETCHED):
        """Main threads wait for those of `stuck`; of the last rank a saver does, too."""
        gathers, saves = (("saver", GATHERING),), (("saver", SAVING),)
        built = ranks_in(count, main, syscall="futex", threads=gathers)
        built = with_rank(built, a_rank(count - 1, main, syscall="futex", threads=saves))
        built = with_rank(
            built, *(a_rank(r, stack, syscall="futex", threads=gathers) for r in stuck)
        )
        world = range(count)
        made = {r: {"w": STAYED if r in stuck else CAME, "saves": CAME} for r in world}
        made[count - 1]["saves"] = STAYED
        return a_recorded_case(built, {"w": world, "saves": world}, made)

    @pytest.mark.parametrize("stack", [IN_LOCK, PREFETCHED, FETCHING])
    def test_while_main_threads_are_in_collectives(self, stack):
        assert answer_of_case(self.case(IN_TORCH_ALL_REDUCE, 1, stack=stack))[1] == [1]

    def test_nor_while_most_in_locks_are_few_in_collectives(self):
        case = self.case(IN_TORCH_ALL_REDUCE, 0, 1, 2, count=5)
        assert 4 not in answer_of_case(case)[1]

    def test_nor_while_few_wait_for_a_thread(self):
        """All but rank 1 still save; it has come to the gather first."""
        saves = (("saver", SAVING),)
        built = ranks_in(4, IN_C, syscall="futex", threads=saves)
        built = with_rank(built, waits(1, ("saver", GATHERING), stack=PREFETCHED))
        made = {rank: {"w": CAME, "saves": STAYED} for rank in range(4)}
        made[1] = {"w": STAYED, "saves": CAME}
        case = a_recorded_case(built, {**WORLD, "saves": range(4)}, made)
        assert answer_of_case(case) == ("lock_deadlock", [1])

    def test_nor_while_some_are_in_another_call_beside_it(self):
        assert 4 not in answer_of_case(self.case(IN_C, 0, 1, 2, count=5))[1]
