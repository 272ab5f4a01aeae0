"""What ranks do before they join: they import many modules, or try again until a service is up."""

import importlib
import os
import socket
import sys
import tempfile
import time

FUNCTIONS = 400  # in one generated module: a tenth of a second to compile
FUNCTION = "def operator_{0}(values):\n    return [value * {0} % 65521 for value in values]\n"
FIRST_DELAY_S = 0.5
UNUSED_PORT = 9  # discard: no machine of a cluster listens there


def import_modules(seconds):
    """Import modules for this many seconds: read from disk, compiled and run, one by one."""
    until = time.monotonic() + seconds
    source = "".join(FUNCTION.format(number) for number in range(FUNCTIONS))
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, folder)
        number = 0
        while time.monotonic() < until:
            name = f"operators_{os.getpid()}_{number}"
            with open(os.path.join(folder, f"{name}.py"), "w", encoding="utf-8") as file:
                file.write(source)
            importlib.invalidate_caches()
            importlib.import_module(name)
            number += 1
        sys.path.remove(folder)


def reach_service(seconds):
    """Try to reach a service that comes up after this many seconds, less and less often."""
    until, delay_s = time.monotonic() + seconds, FIRST_DELAY_S
    while not is_up(until):
        time.sleep(min(delay_s, max(0.0, until - time.monotonic())))
        delay_s *= 2


def is_up(until):
    """Really connect, and be refused, until the service is up."""
    with socket.socket() as client:
        client.connect_ex(("127.0.0.1", UNUSED_PORT))
    return time.monotonic() >= until
