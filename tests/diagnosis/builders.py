"""Builders of cases: defaults hide what does not matter, one line says what does."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from watchtower.diagnosis.picture import Picture, take_picture
from watchtower.evidence.case import Case, NodeEvidence, Presence, RankEvidence, join_case
from watchtower.jobs.case_inputs import CaseInputs, split_case
from watchtower.wire.dumps import (
    ChildDump,
    DumpBatch,
    DumpFailure,
    FailureKind,
    KernelWait,
    NativeKind,
    NativePlace,
    RankDump,
    SentBatch,
    ThreadDump,
)
from watchtower.wire.report import Beat, Ending, EndingKind, Movement, ProcessState
from watchtower.wire.stacks import Frame, Stack, make_stack

RANKS_PER_NODE = 4

# What the main thread of a rank shows, innermost first; @ marks libraries.
RING = "_read ring.py:131 < _receive ring.py:124 < Ring.all_reduce ring.py:88"
MAIN = "Trainer.train train.py:52 < main train.py:130 < <module> train.py:134"
IN_ALL_REDUCE = f"Ring.{RING} < Trainer.train_step train.py:63 < {MAIN}"
IN_BARRIER = f"Ring.{RING} < Ring.barrier ring.py:104 < Checkpointer.save checkpoint.py:21 < {MAIN}"
IN_INIT = (
    "_follow ring.py:52 < _rendezvous ring.py:31 < init_process_group ring.py:20"
    " < Trainer.setup train.py:41 < main train.py:129 < <module> train.py:134"
)
IN_TORCH_INIT = (
    "_create_c10d_store @torch/distributed/rendezvous.py:189"
    " < _env_rendezvous_handler @torch/distributed/rendezvous.py:258"
    " < init_process_group @torch/distributed/distributed_c10d.py:1775"
    " < _exception_logger.<locals>.wrapper @torch/distributed/c10d_logger.py:81"
    " < setup /home/ann/job/main.py:14 < <module> /home/ann/job/main.py:80"
)
IN_TORCH_ALL_REDUCE = (
    "all_reduce @torch/distributed/distributed_c10d.py:2911"
    " < _exception_logger.<locals>.wrapper @torch/distributed/c10d_logger.py:81"
    " < train /home/ann/job/main.py:41 < <module> /home/ann/job/main.py:80"
)
IN_DDP_BACKWARD = (
    "_engine_run_backward @torch/autograd/graph.py:829"
    " < backward @torch/autograd/__init__.py:347 < Tensor.backward @torch/_tensor.py:626"
    " < train /home/ann/job/main.py:44 < <module> /home/ann/job/main.py:80"
)
FETCHING = (
    "ShardReader.read /home/ann/job/data.py:31 < ShardReader.__next__ /home/ann/job/data.py:88"
    " < train /home/ann/job/main.py:38 < <module> /home/ann/job/main.py:80"
)
IN_USER_CODE = (
    "score /home/ann/job/loss.py:17 < train /home/ann/job/main.py:42 < <module> main.py:80"
)
IN_LOCK = (
    "Metrics.flush /home/ann/job/metrics.py:33 < Metrics.record metrics.py:27 < train main.py:49"
    " < <module> main.py:80"
)
SAVING = (
    "save @torch/serialization.py:944 < save_all /home/ann/job/main.py:60 < <module> main.py:80"
)
REQUESTING = (
    "SocketIO.readinto @socket.py:706 < HTTPResponse._read_status @http/client.py:286"
    " < request @requests/api.py:59 < register /home/ann/job/tracking.py:22 < <module> main.py:80"
)
IN_HIDDEN_WAIT = "train_step /home/ann/job/main.py:51 < train main.py:40 < <module> main.py:80"
IN_MULTI_LOADER = (
    "_PollLikeSelector.select @selectors.py:415 < wait @multiprocessing/connection.py:930"
    " < Connection._poll @multiprocessing/connection.py:440"
    " < Queue.get @multiprocessing/queues.py:113"
    " < _MultiProcessingDataLoaderIter._try_get_data @torch/utils/data/dataloader.py:1243"
    " < _MultiProcessingDataLoaderIter._next_data @torch/utils/data/dataloader.py:1412"
    " < train /home/ann/job/main.py:38 < <module> /home/ann/job/main.py:80"
)
IN_WORKER = (
    "Pictures.__getitem__ /home/ann/job/pictures.py:12"
    " < _MapDatasetFetcher.fetch @torch/utils/data/_utils/fetch.py:52"
    " < _worker_loop @torch/utils/data/_utils/worker.py:349"
    " < Process.run @multiprocessing/process.py:108 < <module> /home/ann/job/main.py:80"
)


@dataclass(frozen=True)
class Built:
    """A rank's evidence with the stacks that its dumps name."""

    evidence: RankEvidence
    stacks: tuple[Stack, ...] = ()


def with_loops(built: Built, loops: dict[int, tuple[int, ...]]) -> Built:
    """Say, by line, in which loops the user's frames of a rank lie: their source was read."""
    stacks = tuple(
        replace(
            stack,
            frames=tuple(
                frame
                if frame.library
                else replace(frame, has_source=True, loops=loops.get(frame.line, ()))
                for frame in stack.frames
            ),
        )
        for stack in built.stacks
    )
    return replace(built, stacks=stacks)


def frames(text: str) -> tuple[Frame, ...]:
    """Read "f a.py:1 < g @lib/b.py:2", innermost first; @ marks a library."""
    return tuple(_frame(piece) for piece in text.split(" < ")) if text else ()


def _frame(text: str) -> Frame:
    match = re.fullmatch(r"(\S+) (@?)(\S+):(\d+)", text)
    assert match, text
    function, library, file, line = match.groups()
    return Frame(function=function, file=file, line=int(line), library=bool(library))


def a_stack(text: str) -> Stack:
    return make_stack(frames(text))


def a_kernel(state: str = "S", syscall: str = "", target: str = "", **values: Any) -> KernelWait:
    return KernelWait(state=ProcessState(state), syscall=syscall, target=target, **values)


def a_thread(stack: str, name: str = "MainThread", **values: Any) -> ThreadDump:
    values.setdefault("main", name == "MainThread")
    return ThreadDump(name=name, digest=a_stack(stack).digest, **values)


def a_child(pid: int, state: str = "S", stack: str = "", **kernel: Any) -> ChildDump:
    threads = (a_thread(stack),) if stack else ()
    return ChildDump(pid=pid, kernel=a_kernel(state, **kernel), threads=threads)


def a_failure(kind: FailureKind = FailureKind.TIMEOUT, help_text: str = "") -> DumpFailure:
    return DumpFailure(kind=kind, help_text=help_text)


def a_native(kind: str, **values: Any) -> NativePlace:
    """Where a training thread is in native code, such as "device_wait"."""
    return NativePlace(kind=NativeKind(kind), **values)


POLLS = a_native("device_wait", library="libcuda.so.1", running=True)
"""A training thread that polls for its device."""

RECEIVING = (
    "recv @torch/distributed/distributed_c10d.py:2480"
    " < train /home/ann/job/main.py:41 < <module> /home/ann/job/main.py:80"
)


def a_rank(
    rank: int,
    stack: str = IN_ALL_REDUCE,
    *,
    before: str | None = None,
    dumps: int = 2,
    state: str = "S",
    syscall: str = "recvfrom",
    target: str = "",
    kernel: dict[str, Any] | None = None,
    cpu: float = 0.0,
    written: float = 0.0,
    active: bool = False,
    step: int | None = 41,
    age_s: float = 9.0,
    phase: str = "",
    threads: tuple[tuple[str, str], ...] = (),
    thread_values: dict[str, Any] | None = None,
    gil: str = "",
    children: tuple[ChildDump, ...] = (),
    child_stacks: tuple[str, ...] = (),
    failure: DumpFailure | None = None,
    native: NativePlace | None = None,
    watchdog: NativePlace | None = None,
    **values: Any,
) -> Built:
    """A live rank. `before` is its stack in the first of two dumps, `threads` are (name, stack)."""
    texts = [before if before is not None else stack, stack][2 - dumps :]
    others = tuple(
        a_thread(text, name, owns_gil=name == gil, **(thread_values or {}))
        for name, text in threads
    )
    taken = tuple(
        RankDump(
            rank=rank,
            pid=4000 + rank,
            start_time=1,
            kernel=a_kernel(state, syscall, target, **(kernel or {})),
            threads=(a_thread(text, active=active, owns_gil=gil == "MainThread"), *others)
            if text and not failure
            else (),
            children=children,
            failure=failure,
            native=native,
            watchdog=watchdog,
        )
        for text in texts
    )
    values = {
        "node": f"gpu-{rank // RANKS_PER_NODE:02d}",
        "pid": 4000 + rank,
        "local_rank": rank % RANKS_PER_NODE,
        "state": ProcessState(state),
        "presence": Presence.LIVE,
        "beat": None if step is None else Beat(step=step, age_s=age_s, phase=phase),
        "movement": Movement(cpu_cores=cpu, write_bytes_per_s=written),
        "dumps": taken,
        **values,
    }
    named = [*texts, *(text for _, text in threads), *child_stacks]
    return Built(RankEvidence(rank=rank, **values), tuple(a_stack(text) for text in named if text))


def ranks_in(count: int, stack: str = IN_ALL_REDUCE, **values: Any) -> list[Built]:
    return [a_rank(rank, stack, **values) for rank in range(count)]


def with_rank(built: list[Built], *others: Built) -> list[Built]:
    """Replace the ranks that `others` give."""
    new = {item.evidence.rank: item for item in others}
    return [new.get(item.evidence.rank, item) for item in built]


def a_dead_rank(
    rank: int,
    *,
    code: int | None = None,
    signal: int | None = None,
    error: str = "",
    oom: bool = False,
    age_s: float = 3.0,
    raised_before_s: float = 0.0,
    **values: Any,
) -> Built:
    """A rank that ended; `error` is "Type: text"."""
    kind = EndingKind.SIGNAL if signal is not None else EndingKind.EXIT
    name, _, text = error.partition(": ")
    if code is None and signal is None:
        kind, code = (EndingKind.EXIT, 1) if error else (EndingKind.UNKNOWN, None)
    ending = Ending(
        kind=kind,
        code=signal if signal is not None else code,
        age_s=age_s,
        exception_type=name,
        exception_text=text,
        oom_killed=oom,
        raised_before_s=raised_before_s,
    )
    values = {"presence": Presence.ENDED, "ended": ending, "dumps": 0, **values}
    return a_rank(rank, "", state="?", syscall="", **values)


def a_missing_rank(rank: int) -> Built:
    return Built(RankEvidence(rank=rank, presence=Presence.MISSING))


def a_silent_rank(rank: int) -> Built:
    return a_rank(rank, presence=Presence.SILENT, dumps=0)


def a_case(built: Iterable[Built], **values: Any) -> Case:
    """A case of these ranks, in the order of their numbers."""
    ordered = sorted(built, key=lambda item: item.evidence.rank)
    names = sorted({item.evidence.node for item in ordered} - {""})
    stacks = {stack.digest: stack for item in ordered for stack in item.stacks}
    values = {
        "job": "llama-70b",
        "generation": 1,
        "world_size": len(ordered),
        "typical_step_s": 1.0,
        "stalled_for_s": 9.0,
        "settle_s": 2.0,
        "moving_cpu_cores": 0.05,
        "nodes": tuple(NodeEvidence(node=name, silent_for_s=0.5) for name in names),
        "stacks": tuple(stacks.values()),
        **values,
    }
    return Case(ranks=tuple(item.evidence for item in ordered), **values)


def picture_of(built: Iterable[Built], **values: Any) -> Picture:
    return take_picture(a_case(built, **values))


def without_dumps(case: Case, ranks: Iterable[int]) -> Case:
    """Take the dumps of these ranks away."""
    gone = set(ranks)
    return replace(
        case,
        ranks=tuple(replace(item, dumps=()) if item.rank in gone else item for item in case.ranks),
    )


def as_sent(batch: DumpBatch) -> SentBatch:
    """A batch as it comes from an agent."""
    return SentBatch(batch, msgspec.json.encode(batch))


def case_of(inputs: CaseInputs) -> Case:
    """Make the case of these inputs, as the process of the diagnosis does."""
    parts, bodies = split_case(inputs)
    return join_case(parts, [msgspec.json.decode(body, type=DumpBatch) for body in bodies])
