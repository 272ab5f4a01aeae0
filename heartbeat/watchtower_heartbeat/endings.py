"""Notes how this process ends, as far as Python's hooks can tell.

`sys.excepthook` hears of an exception as it happens. `atexit` comes later and hears of nothing, so
it reads what the interpreter left behind: a program that replaced the hook is noted then. What
no hook hears (`os._exit`, signals) leaves no note, and the agent has the exit status.
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
        """Where the note goes."""

        def note_end(self, **fields: int | str) -> None:
            """Write down how the process ends; the last note stays."""

        def has_note(self) -> bool:
            """Say whether an end was noted already."""

        def close(self) -> None:
            """Remove what would stay behind in a directory."""


# Enough for the first line of any message that is meant to be read.
MESSAGE_LOOKED_AT = 4096

_watching = False


def watch(page: Ending) -> None:
    """Install the hooks, once per process; the hook that was there is still called."""
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
    atexit.register(_say_last_words, page)


def _note(page: Ending, value: BaseException) -> None:
    try:
        page.note_end(**describe(value))
    except Exception:  # the traceback must still be printed
        return


def describe(value: BaseException) -> dict[str, int | str]:
    """Return the page's fields for a process that ends by this exception."""
    if isinstance(value, SystemExit):
        return {"ended": layout.ENDED_EXIT, "exit_code": exit_code_of(value.code)}
    return {
        "ended": layout.ENDED_EXCEPTION,
        "exception_type": type_name(type(value)),
        "exception_message": first_line(value),
    }


def exit_code_of(code: object) -> int:
    """Return what the shell will see for `sys.exit(code)`."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def type_name(kind: type[BaseException]) -> str:
    """Return `ValueError` or `torch.OutOfMemoryError`: the module, unless Python's own."""
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def first_line(value: BaseException) -> str:
    """Return the first line of the message that says something; "" if it has none."""
    try:
        lines = str(value)[:MESSAGE_LOOKED_AT].strip().splitlines()
    except Exception:  # the author's __str__ is not ours to trust
        return ""
    return lines[0] if lines else ""


def _say_last_words(page: Ending) -> None:
    left_behind = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    try:
        if page.has_note():
            pass
        elif isinstance(left_behind, BaseException):
            _note(page, left_behind)
        elif not _is_multiprocessing_child():
            page.note_end(ended=layout.ENDED_FINISHED)
        page.close()
    except Exception:  # nobody could do anything about it any more
        return


def _is_multiprocessing_child() -> bool:
    # Its exceptions are caught and printed by multiprocessing: they seem to be an orderly shutdown.
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None
