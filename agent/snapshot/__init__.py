"""A snapshot of this node: its ranks now, without a tower."""

from __future__ import annotations
