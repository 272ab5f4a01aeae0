"""Examples of the answers about what happened over time. They are of the same job as `examples`."""

from __future__ import annotations

INCIDJOB_S
