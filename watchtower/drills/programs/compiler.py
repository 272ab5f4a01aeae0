"""Compiles kernels when they are first needed, in a child process of the rank."""

import subprocess
import sys
import time

KERNEL = "def kernel_{0}(x):\n    return (x * {0} + 1) % 65521\n"
KERNELS = 200  # in one source file


def compile_kernels(seconds):
    """Compile for this many seconds. The rank only waits for the compiler."""
    subprocess.run([sys.executable, __file__, str(seconds)], check=True)


def main():
    until = time.monotonic() + float(sys.argv[1])
    source = "".join(KERNEL.format(number) for number in range(KERNELS))
    while time.monotonic() < until:
        compile(source, "kernels.py", "exec")


if __name__ == "__main__":
    main()
