"""One rank writes a checkpoint; all ranks wait until it is on disk."""

import os
import shutil
import time

CHUNK = b"\x5a" * 65536
CHUNK_S = 0.1


class Checkpointer:
    def __init__(self, rank, folder, barrier, writer=0):
        self.path = os.path.join(folder, f"checkpoint-{rank}.bin")
        self.is_writer = rank == writer
        self.barrier = barrier

    def save(self, seconds):
        if self.is_writer:
            self.write(seconds)
        self.barrier()

    def write(self, seconds):
        """Write chunks for this many seconds. Each is on disk before the next one."""
        until = time.monotonic() + seconds
        with open(self.path, "wb") as file:
            while time.monotonic() < until:
                file.write(CHUNK)
                file.flush()
                os.fsync(file.fileno())
                time.sleep(CHUNK_S)
        os.unlink(self.path)

    def upload(self, source):
        """Start a program that uploads its input.

        The child opens its input before it executes the program. posix_spawn waits for that like
        vfork: in the kernel, where only SIGKILL is handled.
        """
        actions = [(os.POSIX_SPAWN_OPEN, 0, source, os.O_RDONLY, 0)]
        os.posix_spawn(shutil.which("cat"), ["cat"], os.environ, file_actions=actions)
