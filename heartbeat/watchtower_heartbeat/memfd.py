"""Makes the shared memory of a page: a memfd, or a file if no pid namespace is shared."""

from __future__ import annotations

import mmap
import os

from watchtower_heartbeat.layout import MEMFD_NAME, PAGE_SIZE

MFD_CLOEXEC = 0x1
MFD_ALLOW_SEALING = 0x2
MFD_NOEXEC_SEAL = 0x8
F_ADD_SEALS = 1033
F_SEAL_SEAL_SHRINK_GROW = 0x7

# The number of memfd_create, for Python built against a C library without it.
SYSCALLS = {"x86_64": 319, "aarch64": 279, "ppc64le": 360, "s390x": 350, "riscv64": 279}


def open_memfd(image: bytes, directory: str = "") -> tuple[mmap.mmap, str]:
    """Return mapped memory with the content `image`, and the path of its file ("" for a memfd).

    The mapping owns the only descriptor, which is closed on exec. Raises OSError.
    """
    descriptor, path = _create_file(directory) if directory else (create_memfd(MEMFD_NAME), "")
    try:
        if descriptor < 3:
            # Descriptors 0 to 2 are standard streams: the program would print into the page.
            raise OSError("a standard stream is closed")
        # Written, not only resized: a full file system then fails here. A later store would cause a
        # SIGBUS.
        if os.write(descriptor, image) != PAGE_SIZE:
            raise OSError("the file system is full")
        if not path:
            _seal(descriptor)
        return mmap.mmap(descriptor, PAGE_SIZE), path
    except BaseException:
        if path:
            os.unlink(path)
        raise
    finally:
        os.close(descriptor)  # mmap has a duplicate of its own


def create_memfd(name: str) -> int:
    """Return the descriptor of a new memfd that can be sealed; closed on exec. Raises OSError."""
    try:
        return _memfd_create(name, MFD_CLOEXEC | MFD_NOEXEC_SEAL)
    except OSError:  # before Linux 6.3; newer kernels may require the flag
        return _memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)


def _memfd_create(name: str, flags: int) -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, flags)
    import ctypes  # slow to import, so only here

    number = SYSCALLS.get(os.uname().machine)
    if number is None:
        raise OSError("memfd_create is not supported on this machine")
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.syscall(
        ctypes.c_long(number), ctypes.c_char_p(name.encode()), ctypes.c_uint(flags)
    )
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return descriptor


def _seal(descriptor: int) -> None:
    """Forbid every change of size: a shortened page would kill the training process by SIGBUS."""
    try:
        import fcntl

        fcntl.fcntl(descriptor, F_ADD_SEALS, F_SEAL_SEAL_SHRINK_GROW)
    except (ImportError, OSError):  # only a safeguard; the page works without it
        return


def _create_file(directory: str) -> tuple[int, str]:
    # The pid alone is not unique: several containers may share the directory.
    name = f"{MEMFD_NAME}.{os.uname().nodename}.{os.getpid()}.{os.urandom(4).hex()}"
    path = os.path.join(os.path.abspath(directory), name)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    # Readable by its owner only, because the message of an exception may be private.
    return os.open(path, flags, 0o600), path
