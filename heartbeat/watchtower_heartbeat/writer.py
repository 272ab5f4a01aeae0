"""Makes the shared memory of a page (a memfd, or a file if no pid namespace is shared), and writes
values into it. This module only knows the order of the stores.
"""

from __future__ import annotations

import mmap
import os
from _thread import RLock

from watchtower_heartbeat import layout
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


WORD = 8

# A cold write takes a microsecond. If the lock is not free for this long, its owner hangs. Then a
# lost value is better than a delay of the training.
LOCK_PATIENCE_S = 0.1


def blank_image() -> bytearray:
    """Return the bytes of a new page."""
    image = bytearray(layout.PAGE_SIZE)
    image[: len(layout.MAGIC)] = layout.MAGIC
    with memoryview(image) as data, data.cast("q") as words:
        words[layout.VERSION_AT // WORD] = layout.VERSION
        words[layout.SIZE_AT // WORD] = layout.PAGE_SIZE
        words[layout.STEP_AT // WORD] = layout.UNKNOWN
        words[layout.STEP_BEGUN_AT // WORD] = layout.UNKNOWN
        for name in layout.STARTS_UNKNOWN:
            words[layout.COLD_WORDS[name] // WORD] = layout.UNKNOWN
    return image


def pad_text(text: str, size: int) -> bytes:
    """Return `text` as exactly `size` bytes: cut between characters, with at least one NUL at the
    end.
    """
    # Each character has at least one byte, so cutting before encoding loses nothing that fits.
    raw = text[:size].replace("\0", " ").encode("utf-8", "replace")[: size - 1]
    return raw.decode("utf-8", "ignore").encode("utf-8").ljust(size, b"\0")


class PageWriter:
    """Writes one page. `hot` has the three words of a heartbeat: step, time, step begun.

    `transfers` has the words from the first row of transfers to `transfers_left_out`.
    """

    def __init__(self, memory: mmap.mmap | bytearray) -> None:
        """`memory`: a page of `layout.PAGE_SIZE` bytes with the content of `blank_image()`."""
        self._bytes = memoryview(memory)
        self._words = self._bytes.cast("q")
        self.hot = self._words[layout.STEP_AT // WORD : layout.STEP_BEGUN_AT // WORD + 1]
        self.transfers = self._words[
            layout.TRANSFERS_AT // WORD : layout.TRANSFERS_LEFT_OUT_AT // WORD + 1
        ]
        # Re-entrant, because a signal handler may interrupt a write and write itself.
        self._lock = RLock()

    def write(self, **fields: int | str) -> None:
        """Store cold fields by name. A reader sees all of them or none.

        Raises KeyError for an unknown name, TypeError or ValueError for a value that does not fit.
        The page stays readable then.
        """
        if not self._lock.acquire(True, LOCK_PATIENCE_S):
            return
        words = self._words
        try:
            words[layout.COLD_BEGUN_AT // WORD] += 1
            for name, value in fields.items():
                self._store(name, value)
        finally:
            # Copied, not incremented: after an interrupted write, this makes the page valid again.
            words[layout.COLD_DONE_AT // WORD] = words[layout.COLD_BEGUN_AT // WORD]
            self._lock.release()

    def _store(self, name: str, value: int | str) -> None:
        if isinstance(value, str):
            offset, size = layout.COLD_TEXTS[name]
            self._bytes[offset : offset + size] = pad_text(value, size)
        else:
            self._words[layout.COLD_WORDS[name] // WORD] = value

    def release(self) -> None:
        """Release the memory, so that it can be unmapped. Later writes raise."""
        for view in (self.hot, self.transfers, self._words, self._bytes):
            view.release()
