"""The agent's settings, their defaults and what is allowed. Bounds stand beside what they bound."""

from __future__ import annotations

from dataclasses import dataclass, field

from watchtower.access.tokens import ClientToken

DEFAULT_INTERVAL_S = 1.0
"""One report a second: the tower's suspect deadline starts at 5 s."""

LONGEST_ASKED_INTERVAL_S = 10.0
"""Whatever a tower asks for, the agent reports at least this often, if it is set to."""

MIN_INTERVAL_S = 0.1
MAX_INTERVAL_S = 60.0
"""Slower than a minute the tower would take the node for lost."""

DEFAULT_PORT = 19650
DEFAULT_METRICS_HOST = "127.0.0.1"
"""Metrics name jobs and nodes; whoever wants them from outside puts a proxy in front."""

MAX_MATCHES = 16
"""`--match` conditions; each is one search per new process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the command line said, checked."""

    tower: str
    node: str
    interval_s: float = DEFAULT_INTERVAL_S
    metrics_host: str = DEFAULT_METRICS_HOST
    port: int = DEFAULT_PORT
    match: tuple[tuple[str, str], ...] = ()
    root: str = "/"
    token: ClientToken = field(default_factory=ClientToken)
    ca_file: str = ""
    """Empty: the system's authorities."""
    py_spy: str = ""
    """Empty: the one beside this Python, else on PATH."""
    read_source: bool = True
    """Tell where loops begin in the source of what is dumped."""
    log_level: str = "info"
    spool_dir: str = ""
    """Empty: dumps wait in memory only."""
    check_only: bool = False
    settings_file: str = ""
    """Environment file of the service that a check read; empty without one."""
    """Say what could not be done, and do nothing."""
