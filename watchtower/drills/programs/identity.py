"""A program that gets its rank as arguments and sets it at run time, under a title of its own.

Programs of mp.spawn, Ray and vLLM do this. Their ranks are in the environment of the process only
as it is now, not as it was at the start.
"""

import ctypes
import os

FIRST_ARGUMENT, LAST_VARIABLE = 45, 48
"""Positions in /proc/self/stat behind the name: where arguments begin, and where the environment
ends (arg_start, env_end of proc_pid_stat(5))."""


def take_identity(rank, world_size, local_rank):
    """Set the variables of a rank, and a title, as workers do that a program has started."""
    os.environ.update(RANK=rank, WORLD_SIZE=world_size, LOCAL_RANK=local_rank)
    set_title(f"trainer::worker_{rank}")


def set_title(title):
    """Set the title that ps shows, as setproctitle does.

    The environment moves to other memory, because the title is written over it.
    """
    libc = ctypes.CDLL(None)
    libc.strdup.restype, libc.strdup.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    variables = [f"{name}={value}".encode() for name, value in os.environ.items()]
    moved = (ctypes.c_void_p * (len(variables) + 1))(*map(libc.strdup, variables), None)
    KEPT.append(moved)
    ctypes.c_void_p.in_dll(libc, "environ").value = ctypes.addressof(moved)
    with open("/proc/self/stat", "rb") as file:
        places = [int(word) for word in file.read().rpartition(b")")[2].split()[1:]]
    start, end = places[FIRST_ARGUMENT - 1], places[LAST_VARIABLE - 1]
    area = title.encode()[: end - start - 1].ljust(end - start, b"\0")
    ctypes.memmove(start, area, len(area))


KEPT = []
"""Arrays that the C library uses, so that they are not freed."""
