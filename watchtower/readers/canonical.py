"""Turns py-spy's JSON into canonical threads: a stack has the same digest on every node."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import msgspec

from watchtower.wire.bounds import MAX_FRAMES, MAX_INTEGER, MAX_NAME, MAX_TEXT, MAX_THREADS
from watchtower.wire.dumps import DumpFailure, FailureKind, KernelWait, NativePlace, ThreadDump
from watchtower.wire.stacks import Frame, Stack, make_stack
from watchtower.writing.printable import printable

MAIN_THREAD = "MainThread"

MAX_OBJECTS = 131_072
"""Threads and frames in the output of py-spy; real dumps have hundreds. The limit bounds their
memory: 4 MB of empty ones would need 300 MB.
"""

_PACKAGES = re.compile(r"^.*/(?:site|dist)-packages/")
_STANDARD_LIBRARY = re.compile(
    r"^.*/lib(?:64)?/(?:python|pypy)3\.\d+t?/(?:lib-dynload/)?|^.*/python3\d+\.zip/"
)
_OWN_CLIENT = re.compile(r"^.*/(?=watchtower_heartbeat/[^/]+$)")
"""Our client is a library also where it is installed from a checkout, outside of site-packages."""

SPAWNING = "multiprocessing/"
"""Where the program of a process begins that multiprocessing has spawned: `python -c`, in the file
<string>, is not code of the user."""

GENERATED = "<generated>"
"""The file of frames in code that torch has generated. Its names contain counters and hashes, which
differ between ranks that run the same step."""

_GENERATED = re.compile(r"^<eval_with_key>|/c[a-z2-7]{51}\.py$")
"""Code of torch.fx, and files of torch's compiler: the letter c and a hash of their content."""

_ROOTS = {
    ("<module>", ""),
    ("_run_module_as_main", ""),
    ("_shutdown", "threading.py"),
    ("_exit_function", "multiprocessing/util.py"),
}
"""Outermost frames of a complete stack: the program, `python -m`, and the two functions that the
interpreter calls during its shutdown.
"""

_STARTS_TASKS = frozenset({"threading.py", "queue.py", "concurrent/futures/thread.py"})
"""Files of the only frames of a thread without a task."""


class _Frame(msgspec.Struct):
    name: str = ""
    filename: str = ""
    line: int = 0


class _Thread(msgspec.Struct):
    pid: int = 0
    thread_name: str | None = None
    os_thread_id: int | None = None
    active: bool = False
    owns_gil: bool = False
    frames: list[_Frame] = []


_DECODER = msgspec.json.Decoder(list[_Thread])


class BadDump(Exception):
    """The output of py-spy is not a valid list of threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Threads:
    """The threads of one process: main first, then the holder of the GIL, then the others."""

    threads: tuple[ThreadDump, ...]
    stacks: tuple[Stack, ...]
    whole: bool
    """True if the main thread's stack ends in a frame with which a program can begin."""
    main_digest: str
    os_ids: tuple[int, ...] = ()
    """Their ids in the kernel, in the same order; 0 if py-spy does not know one."""

    def waited_for(self, most: int) -> tuple[int, ...]:
        """Return the ids of the threads for which main may wait.

        Those that run user code come first, then those in which a library has something to do.
        """
        stacks = {stack.digest: stack for stack in self.stacks}
        others = [
            (os_id, stacks[thread.digest])
            for thread, os_id in zip(self.threads, self.os_ids, strict=False)
            if os_id and not thread.main
        ]
        users = [os_id for os_id, stack in others if _runs_user_code(stack)]
        busy = [os_id for os_id, stack in others if os_id not in users and _has_task(stack)]
        return tuple([*users, *busy][:most])

    def with_waits(
        self, places: Mapping[int, NativePlace], kernels: Mapping[int, KernelWait]
    ) -> Threads:
        """Return the threads with their places in native code and in the kernel, by id."""
        pairs = zip(self.threads, self.os_ids, strict=False)
        return replace(
            self,
            threads=tuple(
                replace(thread, native=places.get(os_id), kernel=kernels.get(os_id))
                for thread, os_id in pairs
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StackDump:
    """Threads, or why there are none. A torn dump has both."""

    threads: Threads | None = None
    failure: DumpFailure | None = None
    was_ended: bool = False
    """True if py-spy had to be ended: it was expensive, and will be again."""

    def with_waits(
        self, places: Mapping[int, NativePlace], kernels: Mapping[int, KernelWait]
    ) -> StackDump:
        """Return the dump with the places of some threads in native code and in the kernel, by
        their ids."""
        if self.threads is None:
            return self
        return replace(self, threads=self.threads.with_waits(places, kernels))


def failed(kind: FailureKind, help_text: str) -> StackDump:
    """Return a failed dump."""
    return StackDump(failure=DumpFailure(kind=kind, help_text=help_text[:MAX_TEXT]))


def _decode_threads(raw: bytes) -> list[_Thread]:
    """Return the threads in the output of `py-spy dump --json`. Raises BadDump."""
    if (objects := raw.count(b"{")) > MAX_OBJECTS:
        raise BadDump(f"py-spy printed {objects} threads and frames; the limit is {MAX_OBJECTS}")
    try:
        return _DECODER.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise BadDump(f"py-spy did not print a valid list of threads: {error}") from error


def parse_dump(raw: bytes, pid: int) -> Threads:
    """Parse the output of `py-spy dump --json` for one process. Raises BadDump."""
    threads = _decode_threads(raw)
    main = _find_main(threads, pid)
    ordered = sorted(threads, key=lambda each: (each is not main, not each.owns_gil))[:MAX_THREADS]
    stacks = [make_stack(canonical_frames(thread.frames)) for thread in ordered]
    dumps = tuple(
        ThreadDump(
            # A program that never imported `threading` has no thread names. Its only thread is
            # main.
            name=printable(thread.thread_name or (MAIN_THREAD if thread is main else ""), MAX_NAME),
            digest=stack.digest,
            main=thread is main,
            owns_gil=thread.owns_gil,
            active=thread.active,
        )
        for thread, stack in zip(ordered, stacks, strict=True)
    )
    main_stack = stacks[0] if main is not None else None
    return Threads(
        threads=dumps,
        stacks=tuple({stack.digest: stack for stack in stacks}.values()),
        whole=main_stack is not None and _is_whole(main_stack),
        main_digest=main_stack.digest if main_stack is not None else "",
        os_ids=tuple(max(0, thread.os_thread_id or 0) for thread in ordered),
    )


def canonical_frames(frames: Iterable[_Frame]) -> tuple[Frame, ...]:
    """Return frames with library files relative to their root. A stack that is too deep is cut in
    the middle.
    """
    all_frames = list(frames)
    if len(all_frames) > MAX_FRAMES:
        half = (MAX_FRAMES - 1) // 2
        cut = _Frame(name=f"... {len(all_frames) - 2 * half} frames cut ...")
        all_frames = [*all_frames[:half], cut, *all_frames[-half:]]
    made = [_canonical_frame(frame) for frame in all_frames]
    if len(made) > 1 and made[-1].file == "<string>" and made[-2].file.startswith(SPAWNING):
        made[-1] = replace(made[-1], library=True)
    return tuple(made)


def canonical_file(path: str) -> tuple[str, bool]:
    """Return the file's name, equal on every node, and whether it belongs to a library."""
    if _GENERATED.search(path):
        return GENERATED, True
    for pattern in (_PACKAGES, _STANDARD_LIBRARY, _OWN_CLIENT):
        if found := pattern.match(path):
            return path[found.end() :], True
    return path, path.startswith("<frozen ")


def _canonical_frame(frame: _Frame) -> Frame:
    file, library = canonical_file(frame.filename)
    return Frame(
        function=printable(frame.name, MAX_TEXT),
        file=printable(file, MAX_TEXT),
        line=min(max(frame.line, 0), MAX_INTEGER),
        library=library,
    )


def _find_main(threads: list[_Thread], pid: int) -> _Thread | None:
    """Return the thread whose id is the process's, else the one named MainThread.

    In a container the ids may differ, so that only the name identifies it.
    """
    for thread in threads:
        if thread.os_thread_id == pid:
            return thread
    for thread in threads:
        if thread.thread_name == MAIN_THREAD:
            return thread
    return None


def _runs_user_code(stack: Stack) -> bool:
    return any(frame.file and not frame.library for frame in stack.frames)


def _has_task(stack: Stack) -> bool:
    """Return whether a thread has other frames than those that start threads and wait for work."""
    return any(frame.file and frame.file not in _STARTS_TASKS for frame in stack.frames)


def _is_whole(stack: Stack) -> bool:
    if not stack.frames:
        return False
    root = stack.frames[-1]
    return (root.function, "") in _ROOTS or (root.function, root.file) in _ROOTS
