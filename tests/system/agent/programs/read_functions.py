"""Reads the native functions of a process with the rights of whoever runs it, and prints them."""

import dataclasses
import json
import sys

from agent.children import ChildRunner
from agent.dumpers.native_functions import Moment, NativeFunctionReader
from agent.procfs import Proc

pid, start_time = int(sys.argv[1]), int(sys.argv[2])
reader = NativeFunctionReader(Proc(), ChildRunner(), sys.argv[3])
reader.read(pid, start_time, "uid:1000")
found = reader.recall(pid, start_time, Moment())
assert found is not None
print(json.dumps(dataclasses.asdict(found)))
