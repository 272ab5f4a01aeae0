"""The heartbeat of a training process: call `beat(step)` once per step, and watchtower sees it.

It stores a few words in shared memory, which an agent reads from outside. It does not connect to
anything, so it costs the same with or without an agent. It never blocks and never raises.
"""

import os

from watchtower_heartbeat.beating import Heartbeat, beat, declare, open_page, phase
from watchtower_heartbeat.launchers import read_identity
from watchtower_heartbeat.layout import UNKNOWN

__all__ = ["Heartbeat", "beat", "declare", "phase"]
__version__ = "0.1.0"

# Make the page before the first step, so that a rank that hangs before it can be named.
if read_identity(os.environ)["rank"] != UNKNOWN:
    open_page()
