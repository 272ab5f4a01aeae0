"""Samples a process again and again, and prints how often it was found in which kind of place."""

import json
import sys
from collections import Counter

import msgspec

from agent.dumpers.native_child import sample_processes
from agent.dumpers.native_places import ThreadSamples, find_place

pid, rounds = int(sys.argv[1]), int(sys.argv[2])
kinds, failures = Counter[str](), Counter[str]()
for _ in range(rounds):
    (threads,) = sample_processes([pid])
    failures.update(thread.failure for thread in threads if thread.failure)
    place = find_place(msgspec.convert([each.answer() for each in threads], list[ThreadSamples]))
    kinds[f"{place.kind.value} {place.library}" if place else "unknown"] += 1
print(json.dumps({"kinds": kinds, "failures": failures}))
