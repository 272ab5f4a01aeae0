"""The heartbeat of a training process: `beat(step)` once per step, and watchtower sees it.

It stores a few words into shared memory that an agent reads from outside. There is nothing to
connect to, so it costs the same with or without an agent. It never blocks and never raises.
"""

import os

from watchtower_heartbeat.beating import Heartbeat, beat, open_page, phase
from watchtower_heartbeat.launchers import read_identity
from watchtower_heartbeat.layout import UNKNOWN

__all__ = ["Heartbeat", "beat", "phase"]
__version__ = "0.1.0"

# A rank shows itself before its first step, so that one which never gets there can be named.
if read_identity(os.environ)["rank"] != UNKNOWN:
    open_page()
