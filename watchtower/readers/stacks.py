"""Reads Python stacks: texts of py-spy, faulthandler, pystack and gdb's `py-bt`; JSON of py-spy.

py-spy's text has short names of files, innermost frame first. Whether such a file is a library is
known from its first folder. pystack writes the outermost frame first. A file of several processes
has none of their ranks. gdb's `bt` alone shows the interpreter instead of the program.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import BinaryIO

from watchtower.readers.canonical import BadDump, Threads, canonical_file, parse_dump
from watchtower.readers.findings import (
    NO_OWNER,
    FileFound,
    Finding,
    Known,
    Owner,
    Place,
    StacksFound,
)
from watchtower.readers.text_lines import (
    Line,
    chunks,
    owner_in_name,
    split_lines,
)
from watchtower.wire.bounds import MAX_FRAMES, MAX_NAME, MAX_RANK, MAX_TEXT, MAX_THREADS
from watchtower.wire.dumps import ThreadDump
from watchtower.wire.stacks import Frame, make_stack
from watchtower.writing.printable import printable

MAX_BYTES = 64 << 20
"""Bytes of a JSON of py-spy; real ones have less than 1 MB."""

MAX_PROCESSES = 4096
"""Processes in one text of py-spy: those of all ranks of a large node, and their workers."""

LIBRARIES = frozenset({
    "PIL", "accelerate", "apex", "colossalai", "cupy", "dask", "datasets", "deepspeed",
    "fairscale", "flash_attn", "fsspec", "grpc", "huggingface_hub", "jax", "jaxlib", "lightning",
    "lightning_fabric", "megatron", "mpi4py", "numpy", "pandas", "pyarrow", "pytorch_lightning",
    "ray", "requests", "s3fs", "scipy", "sglang", "tensorflow", "torch", "torchvision",
    "transformers", "triton", "trl", "urllib3", "verl", "vllm", "wandb", "webdataset", "xformers",
})  # fmt: skip
"""First folders of files that are libraries, where py-spy leaves out what is before."""

WORDS = (b" (most recent call first):",)
MAX_LINES = 2000
"""Lines of one dump of faulthandler in a log: it writes at most 100 frames of 100 threads, and
programs that train have some tens of threads with some tens of frames."""

MAX_DIGITS = 9
"""Digits of the number of a line."""

_PROCESS = re.compile(r"Process (\d{1,10}): (.{0,4000})")
_THREAD = re.compile(
    r"Thread (?P<id>0x[0-9a-fA-F]{1,16}|\d{1,12})(?:/\d{1,12})? "
    r'\((?P<state>active|idle|active\+gil|idle\+gil)\)(?:: "(?P<name>[^"]{0,256})")?'
)
_FAULT_THREAD = re.compile(
    r"(?P<current>Current thread|Thread) 0x[0-9a-fA-F]{1,16}(?: \[(?P<name>[^\]]{0,256})\])?"
    r" \(most recent call first\):"
)
_PYSTACK_THREAD = re.compile(
    r"Traceback for thread \d{1,10} \([^)]{0,64}\) \[(?P<marks>[^\]]{0,64})\]"
    r" \(most recent call last\):"
)
_GDB_THREAD = re.compile(
    r"Thread (?P<number>\d{1,6}) \((?:Thread 0x[0-9a-f]{1,16} \()?LWP (?P<id>\d{1,10})\)?"
    r'(?: "(?P<name>[^"]{0,64})")?\):?'
)
_GDB_PROCESS = re.compile(r"(?P<new>Attaching to|\[Inferior \d{1,4} \()process (?P<pid>\d{1,10})")
_GDB_STACK = "Traceback (most recent call first):"
_FILE_FRAME = re.compile(
    r'(?:    \(Python\)|  ?) ?File "(?P<file>[^"]{0,1000})", line (?P<line>\d{1,9}),?'
    r" in (?P<function>.{1,1000})$"
)
"""Of faulthandler, pystack, and gdb with a comma more."""
_PID = re.compile(rb'"pid"\s{0,8}:\s{0,8}(\d{1,10})')
_IN_COMMAND = re.compile(r"(?<![\w-])--(?:global[-_])?rank[= ](\d{1,7})\b")


@dataclass(slots=True)
class _Thread:
    name: str = ""
    active: bool = False
    owns_gil: bool = False
    current: bool = False
    is_outermost_first: bool = False
    frames: list[Frame] = field(default_factory=list)


@dataclass(slots=True)
class _Process:
    line: int
    pid: int = 0
    owner: Owner = NO_OWNER
    is_sampled: bool = False
    """py-spy wrote it, so that it is known which threads are on a CPU."""
    threads: list[_Thread] = field(default_factory=list)


def recognises_text(head: bytes) -> bool:
    """Return whether a file begins as a text of py-spy, faulthandler, pystack or gdb."""
    text = head[:8192].decode("utf-8", "replace")
    return bool(
        (_PROCESS.search(text) and "\nPython v" in text)
        or any(_FAULT_THREAD.match(line) for line in text[:512].splitlines())
        or _PYSTACK_THREAD.search(text[:512])
        or _GDB_THREAD.search(text)
        or text.startswith(_GDB_STACK)
    )


def recognises_json(head: bytes) -> bool:
    """Return whether a file begins as the JSON of py-spy."""
    return head.lstrip().startswith(b"[") and b'"thread_id"' in head and b'"frames"' in head


def read_json(name: str, stream: BinaryIO) -> FileFound:
    """Read what `py-spy dump --json` printed."""
    owner = owner_in_name(name)
    raw = stream.read(MAX_BYTES + 1)
    first = _PID.search(raw[:65536])
    pid = int(first[1]) if first else 0
    try:
        threads = parse_dump(raw[:MAX_BYTES], pid)
    except BadDump as error:
        return FileFound(name=name, form="stacks", owner=owner, trouble=f"is not read: {error}")
    made = StacksFound(place=Place(name), owner=owner, pid=pid, threads=threads, is_sampled=True)
    return FileFound(name=name, form="stacks", owner=owner, findings=(made,))


def read_text(name: str, stream: BinaryIO) -> FileFound:
    """Read a text of py-spy or of faulthandler, of one or several processes."""
    named = owner_in_name(name)
    lines = (line for chunk in chunks(stream) for line in split_lines(chunk))
    read = _read_processes((line.number, line.text) for line in lines)
    found = [process for process in read if any(each.frames for each in process.threads)]
    if len(found) > 1:
        named = NO_OWNER  # the name is that of the whole text
    findings = tuple(
        StacksFound(
            place=Place(name, each.line),
            owner=named if each.owner is NO_OWNER else each.owner,
            pid=each.pid,
            threads=_finish(each),
            is_sampled=each.is_sampled,
        )
        for each in found
    )
    trouble = "" if found else "has no Python stack: `py-spy dump --pid PID` writes one"
    return FileFound(name=name, form="stacks", owner=named, findings=findings, trouble=trouble)


def read_in_log(lines: Sequence[Line], place: Place, owner: Owner) -> Iterator[Finding]:
    """Yield the stacks that faulthandler wrote into a log, from the first of these lines on."""
    head = _FAULT_THREAD.search(lines[0].text)
    if head is None:
        return
    prefix = lines[0].text[: head.start()]
    own = [line._replace(text=line.text[len(prefix) :]) for line in lines]
    block = list(takewhile(_is_of_faulthandler, own))
    for process in _read_processes((line.number, line.text) for line in block):
        if any(each.frames for each in process.threads):
            threads = _finish(process)
            yield StacksFound(place=place, owner=owner, pid=0, threads=threads, lines=len(block))


def _is_of_faulthandler(line: Line) -> bool:
    text = line.text
    return bool(not text.strip() or _FAULT_THREAD.match(text) or _FILE_FRAME.match(text))


def _read_processes(lines: Iterable[tuple[int, str]]) -> Iterator[_Process]:
    process = _Process(1)
    count = 0
    for number, text in lines:
        if started := _start_process(process, number, text):
            yield process
            if (count := count + 1) > MAX_PROCESSES:
                return
            process = started
        else:
            _read_line(process, text)
    yield process


def _start_process(process: _Process, number: int, text: str) -> _Process | None:
    """Return the process that begins with this line, or that gdb detaches from after it."""
    if started := _PROCESS.match(text):
        return _Process(number, int(started[1]), _owner_in_command(started[2]), True)
    if seen := _GDB_PROCESS.match(text):
        if seen["new"].startswith("Attaching"):
            return _Process(number, int(seen["pid"]))
        process.pid = int(seen["pid"])
        return _Process(number + 1)
    return None


def _read_line(process: _Process, text: str) -> None:
    """Add a thread or a frame to the process."""
    if made := _read_thread(text):
        if len(process.threads) < MAX_THREADS:
            process.threads.append(made)
        return
    if text == _GDB_STACK and (not process.threads or process.threads[-1].frames):
        process.threads = [*process.threads, _Thread(current=True)][:MAX_THREADS]
    if process.threads and len(process.threads[-1].frames) < MAX_FRAMES:
        frame = _read_frame(text)
        process.threads[-1].frames.extend([frame] if frame else [])


def _read_thread(text: str) -> _Thread | None:
    if thread := _THREAD.match(text):
        state = thread["state"]
        return _Thread(thread["name"] or "", state.startswith("active"), state.endswith("gil"))
    if fault := _FAULT_THREAD.search(text):
        return _Thread(fault["name"] or "", current=fault["current"] != "Thread")
    if seen := _PYSTACK_THREAD.match(text):
        return _Thread(owns_gil="Has the GIL" in seen["marks"], is_outermost_first=True)
    if native := _GDB_THREAD.match(text):
        return _Thread(current=native["number"] == "1")
    return None


def _read_frame(text: str) -> Frame | None:
    """Return the frame of "    wait (threading.py:320)", or of a line with `File`."""
    if seen := _FILE_FRAME.match(text):
        return _make_frame(seen["function"], seen["file"], seen["line"])
    if not text.startswith("    ") or not text.endswith(")"):
        return None
    function, _, place = text[4:-1].rpartition(" (")
    file, _, line = place.rpartition(":")
    if not function or not file or not line.isdecimal() or len(line) > MAX_DIGITS:
        return None
    return _make_frame(function, file, line)


def _make_frame(function: str, name: str, line: str) -> Frame:
    file, is_library = canonical_file(name)
    return Frame(
        function=printable(function, MAX_TEXT),
        file=printable(file, MAX_TEXT),
        line=int(line),
        library=is_library or _is_short_library(file),
    )


def _is_short_library(file: str) -> bool:
    first, _, rest = file.partition("/")
    if not rest:
        return first.removesuffix(".py") in sys.stdlib_module_names
    return first in LIBRARIES or first in sys.stdlib_module_names


def _finish(process: _Process) -> Threads:
    """Return the threads of a process, the main one first. Without those of gdb in native code."""
    process.threads = [each for each in process.threads if each.frames or each.name]
    for each in process.threads:
        each.frames = each.frames[::-1] if each.is_outermost_first else each.frames
        each.is_outermost_first = False
    main = _find_main(process.threads)
    ordered = sorted(process.threads, key=lambda each: (each is not main, not each.owns_gil))
    stacks = [make_stack(tuple(thread.frames)) for thread in ordered]
    return Threads(
        threads=tuple(
            ThreadDump(
                name=printable(thread.name, MAX_NAME),
                digest=stack.digest,
                main=thread is main,
                owns_gil=thread.owns_gil,
                active=thread.active,
            )
            for thread, stack in zip(ordered, stacks, strict=True)
        ),
        stacks=tuple({stack.digest: stack for stack in stacks}.values()),
        whole=True,
        main_digest=stacks[0].digest if main is not None else "",
    )


def _find_main(threads: list[_Thread]) -> _Thread | None:
    """Return the thread that is named so, else one whose outermost frame is a module, else the
    current one."""
    named = [each for each in threads if each.name == "MainThread"]
    modules = [each for each in threads if each.frames and each.frames[-1].function == "<module>"]
    current = [each for each in threads if each.current]
    return next(iter([*named, *modules, *current, *threads]), None)


def _owner_in_command(command: str) -> Owner:
    found = _IN_COMMAND.search(command)
    is_rank = found is not None and int(found[1]) <= MAX_RANK
    return Owner(int(found[1]), Known.CONTENT) if found and is_rank else NO_OWNER
