"""The watched ranks: their heartbeats, their state and how they ended."""
