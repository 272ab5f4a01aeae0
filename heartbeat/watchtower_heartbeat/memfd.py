"""Makes the shared memory of a page: a memfd, or a file where no pid namespace is shared."""

from __future__ import annotations

import mmap
import os

from watchtower_heartbeat.layout import MEMFD_NAME, PAGE_SIZE

MFD_CLOEXEC = 0x1
MFD_ALLOW_SEALING = 0x2
MFD_NOEXEC_SEAL = 0x8
F_ADD_SEALS = 1033
F_SEAL_SEAL_SHRINK_GROW = 0x7

# The number of memfd_create, for Pythons that were built against a C library without it.
SYSCALLS = {"x86_64": 319, "aarch64": 279, "ppc64le": 360, "s390x": 350, "riscv64": 279}


def open_memfd(image: bytes, directory: str = "") -> tuple[mmap.mmap, str]:
    """Return mapped memory that starts as `image`, and the path of its file ("" for a memfd).

    The mapping owns the only descriptor; it is not inherited over exec. Raises OSError.
    """
    descriptor, path = _create_file(directory) if directory else (create_memfd(MEMFD_NAME), "")
    try:
        if descriptor < 3:
            # The next thing this program prints would land in the page.
            raise OSError("a standard stream is closed")
        # Written, not only sized: a full file system fails here and not at some later store,
        # where it would be a SIGBUS.
        if os.write(descriptor, image) != PAGE_SIZE:
            raise OSError("no room for one page")
        if not path:
            _seal(descriptor)
        return mmap.mmap(descriptor, PAGE_SIZE), path
    except BaseException:
        if path:
            os.unlink(path)
        raise
    finally:
        os.close(descriptor)  # mmap keeps a duplicate of its own


def create_memfd(name: str) -> int:
    """Return the descriptor of a new memfd that can be sealed; closed on exec. Raises OSError."""
    try:
        return _memfd_create(name, MFD_CLOEXEC | MFD_NOEXEC_SEAL)
    except OSError:  # before Linux 6.3; newer ones may insist on it
        return _memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)


def _memfd_create(name: str, flags: int) -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, flags)
    import ctypes  # slow to import, so only here

    number = SYSCALLS.get(os.uname().machine)
    if number is None:
        raise OSError("no memfd_create for this machine")
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.syscall(
        ctypes.c_long(number), ctypes.c_char_p(name.encode()), ctypes.c_uint(flags)
    )
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return descriptor


def _seal(descriptor: int) -> None:
    """Forbid every change of size: a page cut short would kill the training process by SIGBUS."""
    try:
        import fcntl

        fcntl.fcntl(descriptor, F_ADD_SEALS, F_SEAL_SEAL_SHRINK_GROW)
    except (ImportError, OSError):  # a safeguard; the page works without it
        return


def _create_file(directory: str) -> tuple[int, str]:
    # The pid alone is not unique: several containers may share the directory.
    name = f"{MEMFD_NAME}.{os.uname().nodename}.{os.getpid()}.{os.urandom(4).hex()}"
    path = os.path.join(os.path.abspath(directory), name)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    # Its owner only: the message of an exception may hold something private.
    return os.open(path, flags, 0o600), path
