"""The ranks under watch: their heartbeats, how they are and how they ended."""
