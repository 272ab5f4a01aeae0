"""Imports the modules that its arguments name, and then forks a rank for each line that it reads.

A line is a list in JSON: the program of the rank, and its environment.
"""

import importlib
import json
import os
import runpy
import sys

for name in sys.argv[1:]:
    importlib.import_module(name)
lines = os.fdopen(0, "rb", buffering=0, closefd=False)  # reads nothing that is for a rank
while line := lines.readline():
    program, environment = json.loads(line)
    rank = os.fork()
    if rank == 0:
        os.environ.clear()
        os.environ.update(environment)
        sys.argv[:] = [program]
        print(os.getpid(), flush=True)
        runpy.run_path(program, run_name="__main__")
        break
    _, status = os.waitpid(rank, 0)
    print("ended", os.waitstatus_to_exitcode(status), flush=True)
