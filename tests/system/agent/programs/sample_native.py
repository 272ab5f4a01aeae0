"""Samples a process until it was found in known places often enough, or for as long as allowed.

Prints how often it was found in which kind of place, and failures.
"""

import json
import sys
import time
from collections import Counter

import msgspec

from agent.dumpers.native_child import sample_processes
from agent.dumpers.native_places import ThreadSamples, find_place

pid, wanted, until = int(sys.argv[1]), int(sys.argv[2]), time.monotonic() + float(sys.argv[3])
kinds, failures = Counter[str](), Counter[str]()
while kinds.total() - kinds["unknown"] < wanted and time.monotonic() < until:
    threads = dict(sample_processes([pid]))[pid]
    failures.update(thread.failure for thread in threads if thread.failure)
    place = find_place(msgspec.convert([each.answer() for each in threads], list[ThreadSamples]))
    kinds[f"{place.kind.value} {place.library}" if place else "unknown"] += 1
print(json.dumps({"kinds": kinds, "failures": failures}))
