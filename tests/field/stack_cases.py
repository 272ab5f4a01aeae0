"""Cases with stacks: texts and JSON of py-spy, faulthandler."""

from __future__ import annotations

import json

from tests.field.field_case import FieldCase

IN_ALL_REDUCE = (
    ("all_reduce", "torch/distributed/distributed_c10d.py", 2911),
    ("wrapper", "torch/distributed/c10d_logger.py", 81),
    ("train_step", "train.py", 63),
    ("<module>", "train.py", 134),
)
IN_ITERATOR = (
    ("wait", "threading.py", 302),
    ("get", "queue.py", 170),
    ("__next__", "fairseq/data/iterators.py", 648),
    ("train", "fairseq_cli/train.py", 284),
    ("<module>", "train.py", 14),
)


def py_spy(pid: int, frames: tuple[tuple[str, str, int], ...], *, state: str = "idle") -> str:
    """Return the text of `py-spy dump` of one process."""
    lines = "".join(f"    {name} ({file}:{line})\n" for name, file, line in frames)
    return (
        f"Process {pid}: python -u train.py\nPython v3.10.12 (/usr/bin/python3.10)\n\n"
        f'Thread {pid} ({state}): "MainThread"\n{lines}'
        'Thread 0x7F01 (idle): "Thread-1"\n    wait (threading.py:320)\n\n'
    )


def py_spy_json(pid: int, frames: tuple[tuple[str, str, int], ...]) -> str:
    """Return what `py-spy dump --json` prints of one process."""
    rows = [
        {"name": name, "filename": f"/usr/lib/python3.11/site-packages/{file}", "line": line}
        if "/" in file
        else {"name": name, "filename": f"/home/ann/{file}", "line": line}
        for name, file, line in frames
    ]
    thread = {"pid": pid, "thread_id": 140, "os_thread_id": pid, "thread_name": "MainThread"}
    return json.dumps([{**thread, "active": False, "owns_gil": False, "frames": rows}])


def faulthandler(frames: tuple[tuple[str, str, int], ...]) -> str:
    """Return what faulthandler writes of a process that a timeout of its own dumps."""
    lines = "".join(
        f'  File "/opt/lib/python3.11/site-packages/{file}", line {line} in {name}\n'
        if "/" in file
        else f'  File "/home/ann/{file}", line {line} in {name}\n'
        for name, file, line in frames
    )
    other = '  File "/opt/lib/python3.11/threading.py", line 331 in wait\n'
    return (
        f"Thread 0x00007f01 (most recent call first):\n{other}\n"
        f"Thread 0x00007f02 (most recent call first):\n{lines}"
    )


def pystack(pid: int, frames: tuple[tuple[str, str, int], ...], *, native: bool = False) -> str:
    """Return what `pystack remote` prints of a process: the outermost frame first."""
    beside = '    (C) File "Python/ceval.c", line 5, in eval (/usr/lib/libpython3.11.so)\n'
    lines = "".join(
        f'{beside * native}    (Python) File "{_path(file)}", line {line}, in {name}\n'
        "        call()\n"
        for name, file, line in reversed(frames)
    )
    return (
        f"Traceback for thread {pid + 1} (python) [] (most recent call last):\n"
        '    (Python) File "/usr/lib/python3.11/threading.py", line 331, in wait\n'
        f"        waiter.acquire()\n\n"
        f"Traceback for thread {pid} (python) [Has the GIL] (most recent call last):\n{lines}"
    )


def gdb(pid: int, frames: tuple[tuple[str, str, int], ...] = ()) -> str:
    """Return what gdb prints of a process: `thread apply all bt`, then `py-bt`, if it has it."""
    native = (
        "#0  0x00007f12d81fff7b in __futex_abstimed_wait (sem=0x29baad90) at ./nptl/futex.c:57\n"
        "#1  0x000000000052b9e0 in _PyEval_EvalFrameDefault ()\n#2  0x00007 in ?? ()\n\n"
    )
    lines = "".join(
        f'  File "{_path(file)}", line {line}, in {name}\n    call()\n'
        for name, file, line in frames
    )
    python = (
        "Traceback (most recent call first):\n"
        f"  <built-in method acquire of _thread.lock object at remote 0x7f01>\n{lines}"
        if frames
        else 'Undefined command: "py-bt".  Try "help".\n'
    )
    return (
        f"[New LWP {pid + 1}]\n[Thread debugging using libthread_db enabled]\n\n"
        f'Thread 2 (Thread 0x7f12d7ebe6c0 (LWP {pid + 1}) "python3"):\n{native}'
        f'Thread 1 (Thread 0x7f12d81792c0 (LWP {pid}) "python3"):\n{native}'
        f"{python}[Inferior 1 (process {pid}) detached]\n"
    )


def _path(file: str) -> str:
    return f"/opt/lib/python3.11/site-packages/{file}" if "/" in file else f"/home/ann/{file}"


IN_PARSE = (("parse", "data.py", 8), ("<module>", "t.py", 9))

STACK_CASES = (
    FieldCase(
        name="pystack_texts",
        report="pystack remote of each rank; the outermost frame comes first",
        files={
            f"rank{rank}.txt": pystack(100 + rank, IN_ALL_REDUCE if rank != 2 else IN_PARSE)
            for rank in range(4)
        },
        suspects=frozenset({2}),
    ),
    FieldCase(
        name="pystack_texts_with_native_frames",
        report="pystack remote --native",
        files={
            f"rank{rank}.txt": pystack(
                100 + rank, IN_ALL_REDUCE if rank != 2 else IN_PARSE, native=True
            )
            for rank in range(4)
        },
        suspects=frozenset({2}),
    ),
    FieldCase(
        name="gdb_py_bt",
        report="gdb with python3-dbg: thread apply all bt, and py-bt of each rank",
        files={
            f"gdb_rank{rank}.txt": gdb(100 + rank, IN_ALL_REDUCE if rank != 3 else IN_PARSE)
            for rank in range(4)
        },
        suspects=frozenset({3}),
    ),
    FieldCase(
        name="gdb_of_a_node_in_one_text",
        report="a loop of gdb over all processes of a node, into one file",
        files={
            "gdb.txt": "".join(
                gdb(100 + rank, IN_ALL_REDUCE if rank != 1 else IN_PARSE) for rank in range(4)
            )
        },
        suspects=frozenset({1}),
    ),
    FieldCase(
        name="py_spy_twice_without_frames",
        report="py-spy was run twice; once, it found no frame of the main thread of rank 1",
        files={
            "rank1.txt": "Process 7: python train.py\nPython v3.11.4 (python3)\n\n"
            'Thread 7 (idle): "MainThread"\nThread 8 (idle): "T1"\n    wait (threading.py:3)\n'
            'Process 7: python train.py\nThread 7 (idle): "MainThread"\n    run (train.py:3)\n',
        },
    ),
    FieldCase(
        name="gdb_without_py_bt",
        report="native stacks show the interpreter: no rank may be named",
        files={f"gdb_rank{rank}.txt": gdb(100 + rank) for rank in range(4)},
    ),
    FieldCase(
        name="faulthandler_in_logs",
        report="faulthandler.dump_traceback_later writes into the output of each rank",
        files={
            f"rank{rank}.log": "step 80\nTimeout (0:05:00)!\n"
            + faulthandler(IN_ALL_REDUCE if rank != 1 else IN_PARSE)
            for rank in range(4)
        },
        suspects=frozenset({1}),
    ),
    FieldCase(
        name="faulthandler_in_one_mixed_log",
        report="the lines of all ranks have a prefix",
        files={
            "job.log": "".join(
                f"[rank{rank}]: {line}\n"
                for rank in range(4)
                for line in faulthandler(IN_ALL_REDUCE if rank else IN_PARSE).splitlines()
            )
        },
        suspects=frozenset({0}),
    ),
    FieldCase(
        name="py_spy_texts",
        report="pytorch#87995: rank 0 waits for its buffered iterator, the others in all_reduce",
        files={
            f"rank{rank}.txt": py_spy(100 + rank, IN_ALL_REDUCE if rank else IN_ITERATOR)
            for rank in range(8)
        },
        suspects=frozenset({0}),
    ),
    FieldCase(
        name="py_spy_of_a_node_in_one_text",
        report="one text with all processes of a node, without any rank",
        files={
            "stacks.txt": "".join(
                py_spy(4000 + rank, IN_ALL_REDUCE if rank != 5 else IN_ITERATOR)
                for rank in range(8)
            )
        },
        suspects=frozenset({5}),
    ),
    FieldCase(
        name="py_spy_json",
        report="py-spy dump --json of each rank",
        files={
            f"spy.{rank}.json": py_spy_json(
                100 + rank,
                IN_ALL_REDUCE if rank != 2 else (("load", "data.py", 8), ("<module>", "t.py", 9)),
            )
            for rank in range(4)
        },
        suspects=frozenset({2}),
    ),
    FieldCase(
        name="faulthandler_texts",
        report="faulthandler.dump_traceback_later in each rank",
        files={
            f"fault_rank{rank}.txt": faulthandler(
                IN_ALL_REDUCE if rank != 1 else (("parse", "data.py", 8), ("<module>", "t.py", 9))
            )
            for rank in range(4)
        },
        suspects=frozenset({1}),
    ),
    FieldCase(
        name="all_stacks_in_one_call",
        report="all ranks are in the same call: no rank may be named",
        files={f"rank{rank}.txt": py_spy(100 + rank, IN_ALL_REDUCE) for rank in range(8)},
    ),
)
