"""`watchtower-agent doctor`: whether a job can run on this node, before one hangs."""

from __future__ import annotations
