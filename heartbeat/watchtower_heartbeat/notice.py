"""One line on stderr when something cannot work, and never the same one twice."""

import select
import sys

MAX_BYTES = 4096
"""What a pipe that can be written to takes without waiting (PIPE_BUF of Linux, pipe(7))."""

_said: set[str] = set()


def say_once(topic: str, text: str) -> None:
    """Print `text` unless this topic was talked about before; never raises.

    Says nothing where stderr is full: a training process does not wait for who reads its log.
    """
    if topic in _said:
        return
    _said.add(topic)
    try:
        if _takes_more():
            line = f"watchtower-heartbeat: {text}"
            print(line[: MAX_BYTES // 4 - 1], file=sys.stderr, flush=True)
    except Exception:  # stderr may be closed; there is nobody left to tell
        return


def _takes_more() -> bool:
    try:
        descriptor = sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):  # not a file: a notebook's, or a test's
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return any(event & select.POLLOUT for _, event in poll.poll(0))
