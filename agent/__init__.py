"""The agent: a daemon on every node that watches its ranks and never harms them."""

__version__ = "0.1.0"
