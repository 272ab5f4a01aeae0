"""One line on stderr when something cannot work, and never the same one twice."""

import sys

_said: set[str] = set()


def say_once(topic: str, text: str) -> None:
    """Print `text` unless this topic was talked about before; never raises."""
    if topic in _said:
        return
    _said.add(topic)
    try:
        print(f"watchtower-heartbeat: {text}", file=sys.stderr, flush=True)
    except Exception:  # stderr may be closed or full; there is nobody left to tell
        return
