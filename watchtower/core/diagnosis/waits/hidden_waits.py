"""Waits for other ranks that no frame names: in which classes of stacks and kernel waits they hide.

A call into C shows only the line that makes it. A rank in `irecv(...).wait()` sleeps in a futex
under the user's own line, exactly as at a lock, and a rank whose stream waits for a peer's send
sleeps in `synchronize`.
"""

from __future__ import annotations

from watchtower.core.reading.frames import WAITING_CLASSES, FrameClass

HIDES_ANY_CALL = frozenset({FrameClass.USER, FrameClass.NONE, FrameClass.OPTIMIZER})
"""Classes of stacks in which the kernel's wait may be that of a call into C."""

SHOWN_WAITS = WAITING_CLASSES | {FrameClass.BACKWARD}
"""Classes of stacks that show a wait for ranks; DDP's reducer waits inside of backward."""

MAY_SPIN = WAITING_CLASSES | {FrameClass.DEVICE}
"""Classes of stacks in which a rank waits for others though no log names the call, asleep or
not."""

MAY_BE_THE_CALL = SHOWN_WAITS | MAY_SPIN
"""Classes of stacks in which the thread that trains may be in the recorded call itself."""

SOCKETS = frozenset({"network", "local"})
"""Kernel waits for the other end of a socket, on another node and on this one."""

WAITS_IN_C = SOCKETS | {"lock"}
"""Kernel waits of a library that waits for another rank: a socket, or a futex."""

MAY_BE_FOR_RANKS = WAITS_IN_C | {"gpu", ""}
"""Kernel waits of a rank that may be in a call for other ranks as well."""
