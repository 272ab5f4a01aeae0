"""Connections to the tower, their tokens and TLS, for tower, agent and commands. Only the standard
library is imported."""
