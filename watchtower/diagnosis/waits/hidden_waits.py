"""Waits for other ranks that no frame names: in which kernel waits they hide.

A call into C shows only the line that makes it. A rank in `irecv(...).wait()` sleeps in a futex
under the user's own line, exactly as at a lock, and a rank whose stream waits for a peer's send
sleeps in `synchronize`. The classes of such stacks are traits (`reading/frame_class.py`).
"""

from __future__ import annotations

SOCKETS = frozenset({"network", "local"})
"""Kernel waits for the other end of a socket, on another node and on this one."""

WAITS_IN_C = SOCKETS | {"lock"}
"""Kernel waits of a library that waits for another rank: a socket, or a futex."""

MAY_BE_FOR_RANKS = WAITS_IN_C | {"gpu", ""}
"""Kernel waits of a rank that may be in a call for other ranks as well."""
