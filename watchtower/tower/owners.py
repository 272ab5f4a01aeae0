"""The owner of a job, for people: its user and its number in the scheduler, else its owner."""

from __future__ import annotations
