"""Records how this process ends, as far as Python's hooks can detect it.

`sys.excepthook` is called when an exception ends the program. `atexit` runs later without the
exception, so it reads what the interpreter stored: this also works if the program replaced the
hook. Other ends (`os._exit`, signals) call no hook; for them the agent has the exit status.
"""

from __future__ import annotations

import atexit
import sys

from watchtower_heartbeat import layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Protocol

    class Ending(Protocol):
        """The page on which the end is recorded."""

        def note_end(self, **fields: int | str) -> None:
            """Record how the process ends. The last call counts."""

        def has_note(self) -> bool:
            """Return whether an end was recorded."""

        def close(self) -> None:
            """Remove the page's file, if it has one."""


MAX_END = 4096
"""Characters of each end of a message in which lines are chosen."""

ROOM = layout.COLD_TEXTS["exception_message"][1] - 1
"""Bytes of all lines together."""

MAX_LAST = 200
"""Bytes of the last one of several lines."""

_watching = False


def watch(page: Ending) -> None:
    """Install the hooks, once per process. The previous hook is still called."""
    global _watching
    if _watching:
        return
    _watching = True
    previous = sys.excepthook

    def note_and_pass_on(
        kind: type[BaseException], value: BaseException, trace: TracebackType | None
    ) -> None:
        _note(page, value)
        previous(kind, value, trace)

    sys.excepthook = note_and_pass_on
    atexit.register(_record_end, page)


def _note(page: Ending, value: BaseException) -> None:
    try:
        page.note_end(**describe(value))
    except Exception:  # the traceback must still be printed
        return


def describe(value: BaseException) -> dict[str, int | str]:
    """Return the page's fields for a process that this exception ends."""
    if isinstance(value, SystemExit):
        return {"ended": layout.ENDED_EXIT, "exit_code": exit_code_of(value.code)}
    return {
        "ended": layout.ENDED_EXCEPTION,
        "exception_type": type_name(type(value)),
        "exception_message": choose_lines(value),
    }


def exit_code_of(code: object) -> int:
    """Return the exit code that the shell gets for `sys.exit(code)`."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def type_name(kind: type[BaseException]) -> str:
    """Return `ValueError` or `torch.OutOfMemoryError`: without the module for built-in types."""
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def choose_lines(value: BaseException) -> str:
    """Return the lines of the message that carry its meaning; "" for an empty message.

    The first line, the last one, and as many between them as fit: libraries put the cause into the
    last line, and what they made of it into the first one.
    """
    try:
        text = str(value)
    except Exception:  # a __str__ of the program may fail
        return ""
    if len(text) > 2 * MAX_END:
        text = f"{text[:MAX_END]}\n{text[-MAX_END:]}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) < 2:
        return "".join(lines)
    last = _cut(lines[-1], MAX_LAST)
    kept = [_cut(lines[0], ROOM - MAX_LAST - 1)]
    left = ROOM - _size(kept[0]) - 1 - _size(last)
    for line in lines[1:-1]:
        left -= _size(line) + 1
        if left < 0:
            break
        kept.append(line)
    return "\n".join([*kept, last])


def _size(line: str) -> int:
    return len(line.encode("utf-8", "replace"))


def _cut(line: str, size: int) -> str:
    """Return the beginning of a line, of at most `size` bytes."""
    return line[:size].encode("utf-8", "replace")[:size].decode("utf-8", "ignore")


def _record_end(page: Ending) -> None:
    left_behind = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    try:
        if page.has_note():
            pass
        elif isinstance(left_behind, BaseException):
            _note(page, left_behind)
        elif not _is_multiprocessing_child():
            page.note_end(ended=layout.ENDED_FINISHED)
        page.close()
    except Exception:  # the process ends; no error can be handled any more
        return


def _is_multiprocessing_child() -> bool:
    # multiprocessing catches and prints its exceptions, so its end always seems normal.
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None
