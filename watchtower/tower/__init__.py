"""Connects core to its inputs and outputs: reports, dumps, checks, effects and queries."""
