"""Compiles kernels when they are first needed, in a child process of the rank."""

import fcntl
import os
import subprocess
import sys
import time

KERNEL = "def kernel_{0}(x):\n    return (x * {0} + 1) % 65521\n"
KERNELS = 200  # in one source file


def compile_kernels(seconds):
    """Compile for this many seconds. The rank only waits for the compiler."""
    subprocess.run([sys.executable, __file__, str(seconds)], check=True)


def compile_once(folder, seconds):
    """Compile if no other rank has. The first takes the lock of the cache, the others wait."""
    kernels = os.path.join(folder, "kernels")
    with open(f"{kernels}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(kernels):
            compile_kernels(seconds)
            open(kernels, "x", encoding="utf-8").close()


def main():
    until = time.monotonic() + float(sys.argv[1])
    source = "".join(KERNEL.format(number) for number in range(KERNELS))
    while time.monotonic() < until:
        compile(source, "kernels.py", "exec")


if __name__ == "__main__":
    main()
