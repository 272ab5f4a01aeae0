"""Lets an agent of the same user read our stacks where Yama would forbid it, when asked to."""

import os

PR_SET_PTRACER = 0x59616D61
PR_SET_PTRACER_ANY = 2**64 - 1


def allow_any_tracer() -> None:
    """Permit this process and its forks to be traced by the same user; silent where refused."""
    try:
        import ctypes  # slow to import, so only on request

        prctl = ctypes.CDLL(None).prctl
        arguments = (
            ctypes.c_int(PR_SET_PTRACER),
            *(ctypes.c_ulong(value) for value in (PR_SET_PTRACER_ANY, 0, 0, 0)),
        )
        prctl(*arguments)
        # The permission is not inherited, and a data loader's workers are worth a check too.
        os.register_at_fork(after_in_child=lambda: prctl(*arguments))
    except Exception:
        return
