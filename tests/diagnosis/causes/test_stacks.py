"""dataloader_stall, checkpoint_stall, lock_deadlock, busy_loop, network_wait, behind_collective."""

import pytest

from tests.diagnosis.builders import (
    FETCHING,
    IN_ALL_REDUCE,
    IN_BARRIER,
    IN_DDP_BACKWARD,
    IN_HIDDEN_WAIT,
    IN_LOCK,
    IN_MULTI_LOADER,
    IN_USER_CODE,
    IN_WORKER,
    REQUESTING,
    SAVING,
    a_child,
    a_failure,
    a_missing_rank,
    a_rank,
    ranks_in,
    with_rank,
)
from tests.diagnosis.causes.asking import abstains, answer, ask, ranks_of, reasons_of
from watchtower.diagnosis.accusation import MIN_CONFIDENCE

IDLE = "Event.wait @threading.py:629 < run /job/monitor.py:8"
IDLE_WORKER = (
    "Queue.get @multiprocessing/queues.py:113 < _worker_loop @torch/utils/data/_utils/worker.py:309"
    " < Process.run @multiprocessing/process.py:108 < <module> /home/ann/job/main.py:80"
)


def job_with(*others, count=8, stack=IN_ALL_REDUCE):
    return with_rank(ranks_in(count, stack), *others)


class TestDataloaderStall:
    def test_wins_with_the_file_it_reads_and_the_waiting_ranks(self):
        built = job_with(a_rank(3, FETCHING, syscall="read", target="/mnt/shards/0042.tar"))
        assert answer(built) == ("dataloader_stall", [3])
        finding = ask("dataloader_stall", built)
        assert "/mnt/shards/0042.tar" in reasons_of(finding, "kernel")[0]
        assert ranks_of(finding, "peers") == [(0, 1, 2, 4, 5, 6, 7)]
        assert finding.entries == ("look_at_mount", "restart_before_step")

    def test_without_a_file_it_points_at_the_code(self):
        finding = ask("dataloader_stall", job_with(a_rank(3, FETCHING, node="", step=None)))
        assert finding.entries == ("read_code", "restart_before_step")

    def test_in_a_file_system_it_points_at_the_storage(self):
        stuck = a_rank(3, FETCHING, syscall="read", kernel={"wchan": "request_wait_answer"})
        finding = ask("dataloader_stall", job_with(stuck))
        assert finding.entries == ("look_at_storage", "restart_before_step")

    def test_names_the_worker_that_is_stopped(self):
        children = (a_child(4801, "S", IDLE_WORKER), a_child(4802, "T", IN_WORKER))
        stuck = a_rank(3, IN_MULTI_LOADER, children=children, child_stacks=(IN_WORKER, IDLE_WORKER))
        finding = ask("dataloader_stall", job_with(stuck))
        place = ("4802", "state T", "pictures.py:12 in __getitem__")
        assert all(value in finding.summary for value in place)
        assert "pid 4802" in finding.next_steps[0]
        assert any(item.source == "children" for item in finding.evidence)

    def test_names_the_worker_that_stays_in_user_code(self):
        children = (a_child(4802, "S", IN_WORKER, syscall="futex"),)
        stuck = a_rank(3, IN_MULTI_LOADER, children=children, child_stacks=(IN_WORKER,))
        assert "pid 4802 is still at pictures.py:12 in __getitem__, waiting for a lock" in (
            ask("dataloader_stall", job_with(stuck)).summary
        )
        quiet = a_rank(
            3, IN_MULTI_LOADER, children=(a_child(4802, "S", IN_WORKER),), child_stacks=(IN_WORKER,)
        )
        assert "is still at pictures.py:12 in __getitem__. " in (
            ask("dataloader_stall", job_with(quiet)).summary
        )

    def test_a_worker_that_waits_for_work_is_not_named(self):
        children = (a_child(4801, "S", IDLE_WORKER), a_child(4803))
        stuck = a_rank(3, IN_MULTI_LOADER, children=children, child_stacks=(IDLE_WORKER,))
        assert "worker" not in ask("dataloader_stall", job_with(stuck)).summary

    def test_a_worker_seen_once_is_not_named_unless_it_cannot_run(self):
        children = (a_child(4802, "S", IN_WORKER),)
        once = a_rank(3, IN_MULTI_LOADER, dumps=1, children=children, child_stacks=(IN_WORKER,))
        assert "worker" not in ask("dataloader_stall", job_with(once)).summary

    def test_many_ranks_may_starve_of_one_storage(self):
        built = job_with(*(a_rank(rank, FETCHING) for rank in range(5)))
        assert answer(built) == ("dataloader_stall", [0, 1, 2, 3, 4])
        assert (
            "The same is true for ranks 1-4. 3 ranks wait for ranks 0-4"
            in ask("dataloader_stall", built).summary
        )

    def test_it_is_not_the_same_for_a_rank_in_another_place(self):
        others = [a_rank(rank, FETCHING) for rank in range(1, 5)]
        reads = a_rank(0, FETCHING, syscall="read", kernel={"wchan": "pipe_read"})
        assert (
            "Ranks 1-4 are also suspected, in another place. 3 ranks wait for ranks 0-4"
            in ask("dataloader_stall", job_with(reads, *others)).summary
        )

    def test_a_whole_job_in_its_data_loader_is_less_sure(self):
        assert ask("dataloader_stall", ranks_in(8, FETCHING)).confidence == 0.55

    def test_loses_a_collective_called_by_the_data_loader(self):
        inside = IN_ALL_REDUCE.split(" < Trainer")[0] + " < " + FETCHING
        assert ask("dataloader_stall", job_with(a_rank(3, inside))) is None

    def test_loses_two_steps_ahead_of_those_that_wait(self):
        assert abstains("dataloader_stall", job_with(a_rank(3, FETCHING, step=44)))


class TestCheckpointStall:
    def test_wins_motionless(self):
        built = with_rank(
            ranks_in(8, IN_BARRIER), a_rank(0, SAVING, syscall="write", target="/mnt/out.fifo")
        )
        assert answer(built) == ("checkpoint_stall", [0])
        finding = ask("checkpoint_stall", built)
        assert all(value in finding.summary for value in ("No data", "7 ranks", "barrier"))
        assert all(value in finding.next_steps[0] for value in ("/mnt/out.fifo", "gpu-00"))

    def test_says_when_data_moves(self):
        finding = ask("checkpoint_stall", job_with(a_rank(0, SAVING, written=1e7, state="R")))
        assert "It is moving data" in finding.summary
        assert finding.entries == ("wait_for_save", "checkpoint_is_older")

    def test_the_jobs_own_word_is_enough(self):
        built = job_with(a_rank(0, IN_USER_CODE, phase="checkpoint", node=""))
        assert answer(built) == ("checkpoint_stall", [0])

    def test_loses_a_data_loader_in_that_phase(self):
        assert ask("checkpoint_stall", job_with(a_rank(0, FETCHING, phase="checkpoint"))) is None

    def test_loses_activation_checkpointing(self):
        recompute = "checkpoint @torch/utils/checkpoint.py:480 < " + IN_USER_CODE
        assert ask("checkpoint_stall", job_with(a_rank(0, recompute))) is None


class TestLockDeadlock:
    def test_wins_a_lock_taken_twice(self):
        built = job_with(a_rank(3, IN_LOCK, syscall="futex"))
        assert answer(built) == ("lock_deadlock", [3])
        finding = ask("lock_deadlock", built)
        assert "no other Python thread" in " ".join(item.text for item in finding.evidence)

    def test_wins_beside_threads_that_wait_too(self):
        built = job_with(a_rank(3, IN_LOCK, syscall="futex", threads=(("monitor", IDLE),)))
        finding = ask("lock_deadlock", built)
        assert "also unchanged: 1 other Python threads" in " ".join(
            item.text for item in finding.evidence
        )

    def test_loses_when_another_thread_holds_the_gil(self):
        threads = (("native", IN_USER_CODE),)
        held = a_rank(3, IN_LOCK, syscall="futex", threads=threads, gil="native")
        assert ask("lock_deadlock", job_with(held)) is None

    @pytest.mark.parametrize(
        "values",
        [
            {"syscall": "clock_nanosleep"},
            {"before": IN_USER_CODE},
            {"dumps": 1},
            {"cpu": 1.0},
            {"state": "R"},
        ],
    )
    def test_loses_what_sleeps_moves_or_was_seen_once(self, values):
        built = job_with(a_rank(3, IN_LOCK, **{"syscall": "futex", **values}))
        assert ask("lock_deadlock", built) is None

    def test_loses_when_another_thread_gets_on(self):
        from dataclasses import replace

        rank = a_rank(3, IN_LOCK, syscall="futex", threads=(("helper", IDLE),))
        first, second = rank.evidence.dumps
        moved = (first.threads[0], replace(first.threads[1], digest="other"))
        dumps = (replace(first, threads=moved), second)
        built = job_with(replace(rank, evidence=replace(rank.evidence, dumps=dumps)))
        assert ask("lock_deadlock", built) is None

    def test_loses_a_hidden_collective_of_most_ranks(self):
        built = with_rank(
            ranks_in(8, IN_HIDDEN_WAIT, syscall="futex"), a_rank(3, FETCHING, syscall="read")
        )
        assert answer(built) == ("dataloader_stall", [3])
        assert ask("lock_deadlock", built) is None

    def test_loses_a_queue_of_the_data_loader(self):
        queue = "Queue.get @queue.py:171 < " + FETCHING
        assert ask("lock_deadlock", job_with(a_rank(3, queue, syscall="futex"))) is None


class TestBusyLoop:
    def spinning(self, rank=3, stack=IN_USER_CODE, **values):
        values = {"state": "R", "syscall": "", "active": True, "cpu": 0.97, **values}
        return a_rank(rank, stack, **values)

    def test_wins_a_core_of_cpu_in_user_code(self):
        built = job_with(self.spinning())
        assert answer(built) == ("busy_loop", [3])
        assert "uses 1.0 CPU cores" in ask("busy_loop", built).summary

    def test_wins_on_a_crowded_machine_when_every_look_finds_it_running(self):
        assert answer(job_with(self.spinning(cpu=0.3))) == ("busy_loop", [3])

    def test_loses_a_rank_that_sleeps_while_its_children_work(self):
        built = job_with(self.spinning(state="S", active=False, syscall="wait4"))
        assert ask("busy_loop", built) is None

    def test_loses_a_rank_that_hardly_runs(self):
        assert ask("busy_loop", job_with(self.spinning(cpu=0.05))) is None

    def test_loses_a_busy_data_loader_to_the_finer_cause(self):
        assert answer(job_with(self.spinning(stack=FETCHING))) == ("dataloader_stall", [3])

    def test_wins_where_only_a_name_sounds_like_loading_data(self):
        stack = "NegativeSampler.draw @model.py:18 < forward @model.py:32 < <module> @train.py:9"
        assert answer(job_with(self.spinning(stack=stack))) == ("busy_loop", [3])
        asleep = a_rank(3, stack, syscall="clock_nanosleep")
        assert answer(job_with(asleep)) == ("dataloader_stall", [3])

    @pytest.mark.parametrize(
        "seen",
        [{"dumps": 1}, {"before": IN_USER_CODE.replace("main.py:42", "main.py:39")}],
        ids=["one look", "another call"],
    )
    def test_is_less_sure_unless_two_looks_show_it_at_one_place(self, seen):
        glimpsed = ask("busy_loop", job_with(self.spinning(step=40, **seen)))
        assert MIN_CONFIDENCE < glimpsed.confidence <= 0.85
        stays = IN_USER_CODE.replace("loss.py:17", "loss.py:18")
        for before in (IN_USER_CODE, stays):
            finding = ask("busy_loop", job_with(self.spinning(step=40, before=before)))
            assert finding.confidence > 0.9

    def test_loses_when_most_ranks_compute(self):
        built = [self.spinning(rank) for rank in range(7)]
        assert abstains("busy_loop", [*built, a_rank(7)])


class TestNetworkWait:
    def test_wins_a_service_that_does_not_answer(self):
        target = "tcp 10.0.0.7:41000 -> 10.9.9.9:443"
        built = job_with(a_rank(3, REQUESTING, syscall="recvfrom", target=target))
        assert answer(built) == ("network_wait", [3])
        assert target in ask("network_wait", built).next_steps[0]

    def test_wins_a_socket_in_user_code(self):
        built = job_with(a_rank(3, IN_USER_CODE, syscall="recvfrom"))
        assert answer(built) == ("network_wait", [3])
        assert "which service rank 3" in ask("network_wait", built).next_steps[0]

    def test_loses_a_download_that_gets_on(self):
        built = job_with(a_rank(3, REQUESTING, before=IN_USER_CODE))
        assert ask("network_wait", built) is None

    def test_loses_a_busy_rank(self):
        built = job_with(a_rank(3, IN_USER_CODE, syscall="", state="R", active=True))
        assert ask("network_wait", built) is None

    def test_loses_a_hand_written_ring_that_nobody_knows(self):
        built = with_rank(
            ranks_in(2, IN_USER_CODE), a_rank(1, IN_HIDDEN_WAIT, syscall="clock_nanosleep")
        )
        assert abstains("network_wait", built)


class TestBehindCollective:
    def test_wins_when_nothing_finer_is_seen(self):
        built = job_with(a_rank(3, IN_USER_CODE, syscall="clock_nanosleep"))
        assert answer(built) == ("behind_collective", [3])
        assert ask("behind_collective", built).confidence == 0.8

    def test_says_when_the_rank_moves(self):
        built = job_with(a_rank(3, IN_USER_CODE, syscall="wait4", written=1e7))
        assert "It uses CPU or moves data" in ask("behind_collective", built).summary

    def test_loses_to_a_finer_cause_and_is_then_no_alternative(self):
        from tests.diagnosis.builders import a_case
        from watchtower.diagnosis.diagnosis import diagnose

        diagnosis = diagnose(a_case(job_with(a_rank(3, FETCHING))))
        assert diagnosis.cause.value == "dataloader_stall"
        assert diagnosis.alternatives == ()

    def test_of_two_ranks_it_is_less_sure(self):
        built = job_with(a_rank(1, IN_USER_CODE), count=2)
        assert ask("behind_collective", built).confidence <= 0.6

    def test_loses_when_one_rank_waits_and_the_others_do_not(self):
        built = with_rank(ranks_in(8, IN_USER_CODE), a_rank(3))
        assert answer(built) == ("unknown", [])

    def test_loses_a_lower_step_inside_the_collective(self):
        built = job_with(a_rank(3, IN_ALL_REDUCE, step=40))
        assert answer(built) == ("symmetric_hang", [])

    def test_a_rank_that_does_not_answer_is_a_candidate_only(self):
        built = job_with(a_rank(3, failure=a_failure()), stack=IN_DDP_BACKWARD)
        finding = ask("behind_collective", built)
        assert [suspect.rank for suspect in finding.suspects] == [3]
        assert "has made no step for 9 s" in finding.summary
        assert finding.confidence == 0.45
        assert answer(built) == ("unknown", [])

    def test_nobody_waits_nobody_is_a_candidate(self):
        assert ask("behind_collective", ranks_in(4, dumps=0)) is None
        assert ask("behind_collective", ranks_in(4)) is None
        assert ask("behind_collective", [a_missing_rank(0)]) is None


HOLDING = "hold_gil /home/ann/job/native.py:12 < Thread.run @threading.py:982"
WAITING = (
    "Condition.wait @threading.py:327 < Event.wait @threading.py:629"
    " < train main.py:50 < <module> main.py:80"
)
IN_NATIVE = "hold_gil /home/ann/job/native.py:12 < train main.py:48 < <module> main.py:80"


def test_a_native_thread_that_keeps_the_lock_is_named_with_its_place():
    held = a_rank(2, WAITING, threads=(("native-holder", HOLDING),), gil="native-holder")
    built = with_rank(ranks_in(4), held)
    assert answer(built) == ("gil_held", [2])
    finding = ask("gil_held", built)
    assert finding.suspects[0].where == "native.py:12 in hold_gil"
    assert "`native-holder`" in finding.summary


def test_the_main_thread_asleep_with_the_lock_is_named():
    held = a_rank(2, IN_NATIVE, gil="MainThread", syscall="clock_nanosleep")
    assert answer(with_rank(ranks_in(4), held)) == ("gil_held", [2])


def test_the_main_thread_at_work_in_python_owns_the_lock_by_right():
    busy = a_rank(2, IN_USER_CODE, gil="MainThread", state="R", active=True, cpu=1.0)
    assert answer(with_rank(ranks_in(4), busy)) == ("busy_loop", [2])


def test_one_look_proves_nothing():
    held = a_rank(2, WAITING, threads=(("holder", HOLDING),), gil="holder", dumps=1)
    assert abstains("gil_held", with_rank(ranks_in(4), held))
