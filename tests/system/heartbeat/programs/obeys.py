"""Imports the client as training code does, then does what it is told, a line at a time."""

import sys

from watchtower_heartbeat import Heartbeat, beat, phase

names = {"Heartbeat": Heartbeat, "beat": beat, "phase": phase}
print("ready", flush=True)
for line in sys.stdin:
    exec(line, names)
    print("done", flush=True)
