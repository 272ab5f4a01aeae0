"""A rank whose forked child says its pid when it is up, and beats when told to."""

import os
import sys

from watchtower_heartbeat import beat

beat(5)
ours, theirs = os.pipe()
print("ready", flush=True)
if os.fork() == 0:
    os.close(theirs)  # so that the end of the parent is the end of the orders
    print(os.getpid(), flush=True)
    for order in os.fdopen(ours):
        beat(int(order))
        print("child done", flush=True)
    os._exit(0)
with os.fdopen(theirs, "w") as orders:
    for order in sys.stdin:
        orders.write(order)
        orders.flush()
