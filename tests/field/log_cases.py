"""Cases with logs: torch's watchdog, monitored barriers, mismatches, tracebacks, torchrun."""

from __future__ import annotations

from tests.field.field_case import FieldCase, enqueued, watchdog

GAVE_UP = (
    "Traceback (most recent call last):\n"
    '  File "/home/ann/train.py", line 63, in <module>\n'
    "    main()\n"
    "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 0.\n"
)
ECC = "ERROR trainer: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
OUT_OF_DATA = (
    "Traceback (most recent call last):\n"
    '  File "/home/ann/train.py", line 63, in <module>\n'
    "    main()\n"
    '  File "/home/ann/data.py", line 8, in load\n'
    "    return self.shards[at]\n"
    "           ~~~~~~~~~~~^^^^\n"
    "KeyError: 'shard-0042'\n"
)
FINGERPRINT = (
    "Rank {} is running collective: CollectiveFingerPrint(SequenceNumber={}, OpType={}, "
    "TensorShape=[{}], TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float))"
)


def mismatch(rank: int, number: int, operation: str, other: int, its: str) -> str:
    """Return the text of TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    own, their = (
        FINGERPRINT.format(rank, number, operation, 10),
        FINGERPRINT.format(other, number, its, 10),
    )
    return (
        f"[rank{rank}]: RuntimeError: Detected mismatch between collectives on ranks. {own}, "
        f"but {their}.\n"
    )


def table(*rows: tuple[int, int, str]) -> str:
    """Return torchrun's table of ranks, exit codes and times; the first row is its "root cause"."""
    first, *others = [
        f"  time      : 2026-06-26_06:{at}\n  host      : gpu-0\n"
        f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: {900 + rank})\n"
        f"  error_file: <N/A>\n  traceback : Signal {-code} received by PID {900 + rank}\n"
        for rank, code, at in rows
    ]
    listed = "".join(f"[{at}]:\n{text}" for at, text in enumerate(others, 1))
    return (
        f"=====\ntrain.py FAILED\n-----\nFailures:\n{listed or '  <NO_OTHER_FAILURES>'}\n-----\n"
        f"Root Cause (first observed failure):\n[0]:\n{first}=====\n"
    )


LOG_CASES = (
    FieldCase(
        name="error_line_without_traceback",
        report="a trainer logs the error of one rank, and the others write on",
        files={f"rank{rank}.log": f"step 80\n{ECC if rank == 2 else ''}" for rank in range(4)},
        suspects=frozenset({2}),
        cause="exception",
        words=("could not correct",),
    ),
    FieldCase(
        name="error_line_that_a_job_survived",
        report="rank 3 wrote that it had no memory left, went on, and waits like the others",
        files={
            **{f"rank{rank}.log": watchdog(rank, 808) for rank in range(5)},
            "rank3.log": "CUDA out of memory: the batch is left out\nstep 807\n" + watchdog(3, 808),
            "rank5.log": "step 807\n",
        },
        suspects=frozenset({5}),
    ),
    FieldCase(
        name="watchdog_silent_rank",
        report="a log per rank; one rank's log ends with a step",
        files={
            **{f"rank{rank}.log": watchdog(rank, 808) for rank in range(7)},
            "rank7.log": "step 807 loss 2.1\n",
        },
        suspects=frozenset({7}),
        cause="behind_collective",
        words=("silence",),
    ),
    FieldCase(
        name="watchdog_rank_without_a_file",
        report="seven of eight ranks' logs, and the numbers do not show the eighth",
        files={
            **{f"rank{rank}.log": watchdog(rank, 808) for rank in range(6)},
            "rank7.log": watchdog(7, 808),
        },
        candidates=frozenset({6}),
    ),
    FieldCase(
        name="watchdog_one_mixed_log",
        report="all ranks in one file, with colours and a time of the shipper; rank 2 wrote steps",
        files={
            "job.log": "".join(
                f"2026-06-26T06:14:0{rank}Z \x1b[32m[rank{rank}]: step 807\x1b[0m\n"
                for rank in range(8)
            )
            + "".join(
                "2026-06-26T06:24:44Z \x1b[31m" + watchdog(rank, 808)
                for rank in range(8)
                if rank != 2
            )
        },
        suspects=frozenset({2}),
    ),
    FieldCase(
        name="watchdog_of_torch_1_13",
        report="OFA#271, pytorch 1.13: only [Rank R], without a prefix and without sizes",
        files={
            f"slurm-71-{rank}.out": (
                f"[E ProcessGroupNCCL.cpp:821] [Rank {rank}] Watchdog caught collective operation "
                f"timeout: WorkNCCL(SeqNum={5 if rank != 3 else 4}, OpType=ALLREDUCE, "
                "Timeout(ms)=1800000) ran for 1803000 milliseconds before timing out.\n"
            )
            for rank in range(4)
        },
        suspects=frozenset({3}),
    ),
    FieldCase(
        name="watchdog_of_one_rank_behind",
        report="pytorch#118369: one rank is thousands of calls behind",
        files={
            f"rank{rank}.log": watchdog(rank, 96_117 if rank < 7 else 64_088) for rank in range(8)
        },
        suspects=frozenset({7}),
    ),
    FieldCase(
        name="watchdog_same_call_everywhere",
        report="equal numbers on all ranks: no rank may be named",
        files={
            f"rank{rank}.log": watchdog(rank, 42, "BROADCAST") + enqueued(rank, 42, 42, 41)
            for rank in range(4)
        },
        cause="unknown",
    ),
    FieldCase(
        name="watchdog_another_operation",
        report="one rank gathers while the others reduce: the same number, another operation",
        files={
            f"rank{rank}.log": watchdog(rank, 17, "ALLGATHER" if rank == 1 else "ALLREDUCE")
            for rank in range(4)
        },
        suspects=frozenset({1}),
    ),
    FieldCase(
        name="watchdog_numbers_of_two_kinds",
        report="verl#3873: last enqueued 26, last completed 126; the numbers do not fit together",
        files={f"rank{rank}.log": enqueued(rank, 27, 26, 126) for rank in range(4)},
        cause="unknown",
    ),
    FieldCase(
        name="watchdog_and_most_ranks_are_silent",
        report="the launcher ended most ranks before their watchdogs wrote",
        files={
            **{f"rank{rank}.log": watchdog(rank, 808) for rank in range(2)},
            **{f"rank{rank}.log": "step 807\n" for rank in range(2, 8)},
        },
        candidates=frozenset({2}),
    ),
    FieldCase(
        name="watchdog_and_its_traceback",
        report="ranks that waited raise an error as a consequence; the silent one is the cause",
        files={
            **{f"rank{rank}.log": watchdog(rank, 808) + GAVE_UP for rank in range(3)},
            "rank3.log": "step 807\nvalidating ...\n",
        },
        suspects=frozenset({3}),
    ),
    FieldCase(
        name="traceback_of_one_rank",
        report="one rank raised an error of its own, and the others waited for it",
        files={
            **{f"rank{rank}.log": watchdog(rank, 808) + GAVE_UP for rank in range(3)},
            "rank3.log": "step 807\n" + OUT_OF_DATA,
        },
        suspects=frozenset({3}),
        cause="exception",
        words=("KeyError",),
    ),
    FieldCase(
        name="traceback_that_the_program_survived",
        report="an error that was printed and handled long ago accuses no rank",
        files={
            f"rank{rank}.log": (OUT_OF_DATA + "step\n" * 900 if rank == 0 else "step\n" * 900)
            + (watchdog(rank, 808) if rank != 2 else "")
            for rank in range(4)
        },
        suspects=frozenset({2}),
        cause="behind_collective",
    ),
    FieldCase(
        name="watchdog_of_a_group",
        report="torch 2.5: the line has the rank in the group, and its prefix the global one",
        files={
            f"rank{rank}.log": watchdog(
                rank, 31 if rank != 6 else 30, group="3(tp)", group_rank=rank - 4
            )
            for rank in range(4, 8)
        },
        suspects=frozenset({6}),
    ),
    FieldCase(
        name="watchdog_of_srun_label",
        report="srun --label: the number in front is the global rank; torn lines between",
        files={
            "slurm-88.out": "".join(
                f"{rank}: " + watchdog(rank, 808, prefix="") if rank != 1 else "1: step 807\n"
                for rank in range(4)
            )
            + "[rank2]:[E626 06:24:44.9 ProcessGroupNCCL.cpp:616] [Rank 2] Watchdog caught coll\n"
            + "2: epoch 3:  41%|####      | 807/1970\r2: epoch 3:  41%|####      | 808/1970\n"
        },
        suspects=frozenset({1}),
    ),
    FieldCase(
        name="watchdog_in_a_container",
        report="kubectl logs --prefix, with a time: the rank is behind them",
        files={
            "pods.txt": "".join(
                f"[pod/train-worker-{rank}/pytorch] 2026-06-26T06:24:44.91Z " + watchdog(rank, 70)
                for rank in range(4)
                if rank != 3
            )
            + "[pod/train-worker-3/pytorch] 2026-06-26T06:14:44.91Z [rank3]: saving\n"
        },
        suspects=frozenset({3}),
    ),
    FieldCase(
        name="watchdog_that_is_stuck",
        report="ArcticTraining#219: the watchdog of one rank does not come back from a call",
        files={
            **{f"rank{rank}.log": watchdog(rank, 8) for rank in range(3)},
            "rank3.log": "[rank3]:[F626 06:24:44.9 ProcessGroupNCCL.cpp:1557] [PG ID 0 PG GUID 0 "
            "Rank 3] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress "
            "in monitoring enqueued collectives.\n",
        },
        candidates=frozenset({3}),
    ),
    FieldCase(
        name="monitored_barrier",
        report="nccl#849: rank 0 names four ranks",
        files={
            "job.log": "[rank0]: RuntimeError: [Rank 0]: Ranks 4, 5, 6, 7 failed to pass "
            "monitoredBarrier in 60000 ms\n"
        },
        suspects=frozenset({4, 5, 6, 7}),
    ),
    FieldCase(
        name="monitored_barrier_victims",
        report="pytorch#121606: ranks that came blame rank 0, which named rank 2",
        files={
            "rank0.log": "RuntimeError: [Rank 0]: Rank 2 failed to pass monitoredBarrier in 9 ms\n",
            **{
                f"rank{rank}.log": f"RuntimeError: Rank {rank} successfully reached "
                "monitoredBarrier, but received errors while waiting for send/recv from rank 0. "
                "Please check rank 0 logs for faulty rank.\n"
                for rank in (1, 3)
            },
        },
        suspects=frozenset({2}),
    ),
    FieldCase(
        name="mismatch_of_collectives",
        report="TORCH_DISTRIBUTED_DEBUG=DETAIL: three ranks name the fourth",
        files={
            "job.log": "".join(mismatch(rank, 12, "ALLREDUCE", 3, "BROADCAST") for rank in range(3))
            + mismatch(3, 12, "BROADCAST", 0, "ALLREDUCE")
        },
        suspects=frozenset({3}),
    ),
    FieldCase(
        name="torchrun_table",
        report="the first rank that ended was aborted by its watchdog; rank 2 was killed later",
        files={
            "job.log": watchdog(0, 30)
            + watchdog(1, 30)
            + watchdog(3, 30)
            + table((0, -6, "24:44"), (2, -9, "24:40"), (1, -6, "24:45"), (3, -6, "24:45"))
        },
        suspects=frozenset({2}),
        cause="process_died",
    ),
    FieldCase(
        name="two_runs_in_each_file",
        report="rank 2 held up the first run; after a restart, rank 1 is silent",
        files={
            f"rank{rank}.log": watchdog(rank, 29 if rank == 2 else 30)
            + GAVE_UP
            + "loading the checkpoint\n"
            + (watchdog(rank, 12) if rank != 1 else "step 11\n")
            for rank in range(4)
        },
        suspects=frozenset({1}),
    ),
    FieldCase(
        name="two_runs_in_one_mixed_log",
        report="torchrun restarts the ranks into the same output; its table is of the first run",
        files={
            "job.log": "".join(watchdog(rank, 30) for rank in range(4) if rank != 2)
            + table((2, -9, "24:40"), (0, -6, "24:44"))
            + "".join(f"[rank{rank}]: step 11\n" for rank in range(4))
            + "".join(watchdog(rank, 12) for rank in range(4) if rank != 1)
        },
        suspects=frozenset({1}),
    ),
    FieldCase(
        name="an_error_before_a_restart",
        report="the error ended the first run; in the second one, rank 0 is silent",
        files={
            "job.log": "[rank3]: "
            + OUT_OF_DATA.replace("\n", "\n[rank3]: ", 6)
            + table((3, 1, "24:40"))
            + "W0626 run.py:793] Setting OMP_NUM_THREADS environment variable for each process\n"
            + "".join(f"[rank{rank}]: step 11\n" for rank in range(4))
            + "".join(watchdog(rank, 12) for rank in range(4) if rank != 0)
        },
        suspects=frozenset({0}),
        cause="behind_collective",
    ),
    FieldCase(
        name="the_same_error_in_the_last_run",
        report="the launcher started once: the error of rank 3 is why the others gave up",
        files={
            "job.log": "W0626 run.py:793] Setting OMP_NUM_THREADS environment variable\n"
            + "".join(f"[rank{rank}]: step 11\n" for rank in range(4))
            + "[rank3]: "
            + OUT_OF_DATA.replace("\n", "\n[rank3]: ", 6)
            + "".join(watchdog(rank, 12) for rank in range(3))
        },
        suspects=frozenset({3}),
        cause="exception",
    ),
    FieldCase(
        name="folders_of_two_attempts",
        report="torchrun --log-dir makes a folder for each restart: the last one counts",
        files={
            f"run/attempt_{attempt}/{rank}/stderr.log": f"[rank{rank}]: step\n"
            + (watchdog(rank, number) if rank != silent else "")
            for attempt, number, silent in ((0, 30, 2), (1, 30, 1))
            for rank in range(4)
        },
        suspects=frozenset({1}),
    ),
    FieldCase(
        name="a_number_of_ranks_in_one_line",
        report="a line of another tool has a larger number: ranks that no file shows are not named",
        files={
            "job.log": "config: world_size=9\n" + "".join(watchdog(rank, 8) for rank in range(8))
        },
        cause="unknown",
    ),
    FieldCase(
        name="a_number_of_ranks_that_two_ranks_wrote",
        report="the last rank wrote nothing, and two others wrote how many there are",
        files={
            "job.log": "".join(f"[rank{rank}]: world_size=9\n" for rank in (0, 1))
            + "".join(watchdog(rank, 8) for rank in range(8))
        },
        suspects=frozenset({8}),
    ),
    FieldCase(
        name="a_traceback_between_two_chunks",
        report="logs are read in parts of 1 MB; an error may lie on the border",
        files={
            **{f"rank{rank}.log": watchdog(rank, 808) + GAVE_UP for rank in range(3)},
            "rank3.log": "x" * 39 + "\n" + ("step 80" * 11 + "..\n") * 13_106 + OUT_OF_DATA,
        },
        suspects=frozenset({3}),
        cause="exception",
        words=("KeyError",),
    ),
    FieldCase(
        name="mpirun_with_tags",
        report="mpirun --tag-output: the second number is the rank; torch 1.13 writes none",
        files={
            "job.log": "".join(
                f"[1,{rank}]<stderr>:" + watchdog(rank, 70, prefix="")
                if rank != 1
                else "[1,1]<stdout>:step 69\n"
                for rank in range(4)
            )
        },
        suspects=frozenset({1}),
    ),
    FieldCase(
        name="vllm_worker_with_an_error",
        report="vllm#27313: the engine waits for its workers, one of which raised an error",
        files={
            "vllm.log": "(EngineCore_DP0 pid=70) INFO 06-26 06:24:44 [shm_broadcast.py:466] No "
            "available shared memory broadcast block found in 60 seconds.\n"
            + "".join(
                "(Worker_TP3 pid=74) ERROR 06-26 06:23:40 " + line + "\n"
                for line in OUT_OF_DATA.splitlines()
            )
            + "".join(
                f"(Worker_TP{rank} pid={71 + rank}) " + watchdog(rank, 12, prefix="")
                for rank in range(3)
            )
        },
        suspects=frozenset({3}),
        cause="exception",
    ),
    FieldCase(
        name="vllm_waits_and_nothing_else",
        report="vllm#46611: only the engine writes; it may compile, and no worker can be named",
        files={
            "vllm.log": "(EngineCore_DP0 pid=70) INFO 06-26 06:24:44 [shm_broadcast.py:466] No "
            "available shared memory broadcast block found in 60 seconds.\n" * 5
        },
    ),
    FieldCase(
        name="sglang_scheduler_with_an_error",
        report="sglang#1693: one scheduler raised an error, and the others wait for it",
        files={
            "sglang.log": "".join(
                "[2026-06-26 06:23:40 TP1] " + line + "\n" for line in OUT_OF_DATA.splitlines()
            )
            + "".join(
                f"[2026-06-26 06:24:44 TP{rank}] " + watchdog(rank, 12, prefix="")
                for rank in range(4)
                if rank != 1
            )
        },
        suspects=frozenset({1}),
        cause="exception",
    ),
    FieldCase(
        name="steps_that_begin_with_a_number",
        report="a number and a colon after a word is no prefix: it accuses no rank",
        files={
            f"rank{rank}.log": "".join(f"step {step}: loss 2.1\n" for step in range(50))
            + watchdog(rank, 70, prefix="")
            for rank in range(4)
        },
        cause="unknown",
    ),
)
