"""Finds the ranks of this node, the job of each rank, and the page of each rank."""

from __future__ import annotations
