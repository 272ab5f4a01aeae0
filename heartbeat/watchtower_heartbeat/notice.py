"""Prints one line on stderr if something cannot work, and never the same line twice."""

import select
import sys

MAX_BYTES = 4096
"""The bytes that a writable pipe accepts without waiting (PIPE_BUF of Linux, pipe(7))."""

_warned: set[str] = set()


def warn_once(topic: str, text: str) -> None:
    """Print `text`, but only once per topic. Never raises.

    Prints nothing if stderr is full: a training process must not wait for the reader of its log.
    """
    if topic in _warned:
        return
    _warned.add(topic)
    try:
        if _is_writable():
            line = f"watchtower-heartbeat: {text}"
            print(line[: MAX_BYTES // 4 - 1], file=sys.stderr, flush=True)
    except Exception:  # stderr may be closed
        return


def _is_writable() -> bool:
    try:
        descriptor = sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):  # not a file: in a notebook or a test
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return any(event & select.POLLOUT for _, event in poll.poll(0))
