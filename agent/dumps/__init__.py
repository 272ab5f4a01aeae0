"""Dumps of this node: when, in which rounds, and of which processes. `dumpers/` reads the
content.
"""

from __future__ import annotations
