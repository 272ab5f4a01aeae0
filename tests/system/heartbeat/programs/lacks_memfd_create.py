"""A Python built against an old C library: the function is missing, the system call is not."""

import os
import runpy

del os.memfd_create
runpy.run_path(os.path.join(os.path.dirname(__file__), "obeys.py"))
