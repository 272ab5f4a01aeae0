"""The agent: a daemon on every node that watches the ranks and never disturbs them."""

__version__ = "0.1.0"
