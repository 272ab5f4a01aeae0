"""The agent's settings with their defaults and ranges. Bounds are beside the code they bound."""

from __future__ import annotations

from dataclasses import dataclass, field

from watchtower.access.tokens import ClientToken

DEFAULT_INTERVAL_S = 1.0
"""One report a second, because the tower's suspect deadline starts at 5 s."""

LONGEST_ASKED_INTERVAL_S = 10.0
"""A tower cannot make the agent wait longer than this between two reports."""

MIN_INTERVAL_S = 0.1
MAX_INTERVAL_S = 60.0
"""With a longer interval the tower would report the node as lost."""

DEFAULT_PORT = 19650
DEFAULT_METRICS_HOST = "127.0.0.1"
"""Metrics name jobs and nodes. To read them from another machine, put a proxy in front."""

MAX_MATCHES = 16
"""`--match` conditions. Each of them is one search per new process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The checked options of the command line."""

    tower: str
    node: str
    interval_s: float = DEFAULT_INTERVAL_S
    metrics_host: str = DEFAULT_METRICS_HOST
    port: int = DEFAULT_PORT
    match: tuple[tuple[str, str], ...] = ()
    root: str = "/"
    token: ClientToken = field(default_factory=ClientToken)
    ca_file: str = ""
    """Empty: the system's certificate authorities."""
    py_spy: str = ""
    """Empty: the py-spy beside this Python, else on PATH."""
    read_source: bool = True
    """Send the line numbers of the loops around the frames of a dump."""
    read_native_functions: bool = True
    """Stop a rank for a moment and read its native functions if the tower orders it."""
    output_lines: int = 0
    """Last lines of a suspect's output that are sent to the tower; 0: none is read."""
    log_level: str = "info"
    spool_dir: str = ""
    """Empty: dumps wait in memory only."""
    check_only: bool = False
    """Report what the agent cannot do on this node, and exit."""
    settings_file: str = ""
    """Environment file of the service that a check read; empty without one."""
