"""Allows an agent of the same user to read our stacks although Yama forbids it, on request."""

import os

PR_SET_PTRACER = 0x59616D61
PR_SET_PTRACER_ANY = 2**64 - 1


def allow_any_tracer() -> None:
    """Allow the same user to trace this process and its forks. Silent if that is refused."""
    try:
        import ctypes  # slow to import, so only on request

        prctl = ctypes.CDLL(None).prctl
        arguments = (
            ctypes.c_int(PR_SET_PTRACER),
            *(ctypes.c_ulong(value) for value in (PR_SET_PTRACER_ANY, 0, 0, 0)),
        )
        prctl(*arguments)
        # Children do not inherit the permission, and an agent reads data loader workers too.
        os.register_at_fork(after_in_child=lambda: prctl(*arguments))
    except Exception:
        return
