"""The GPUs of the node: `program.py` reads them in a process of its own, because calls of NVML may
block for ever in the driver. `collector.py` reports what it prints.
"""

from __future__ import annotations
