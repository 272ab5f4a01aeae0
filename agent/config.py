"""The settings of the agent, with their defaults and ranges, and those of the service on this node.

`watchtower-agent doctor` without options checks what the service can do.
Bounds are beside the code they bound.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from watchtower.access.tokens import ClientToken
from watchtower.access.tower_address import URL_VARIABLE

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
class NodeSettings:
    """What is read on this node: the checked options that all commands have.

    Each field of these settings is the option with its name (`agent.cli`).
    """

    node: str
    match: tuple[tuple[str, str], ...] = ()
    """Conditions that the environment of a rank fulfils: name and value."""
    root: str = "/"
    py_spy: str = ""
    """Empty: the py-spy beside this Python, else on PATH."""
    read_source: bool = True
    """Send the line numbers of the loops around the frames of a dump."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings(NodeSettings):
    """How the agent of a node reaches its tower."""

    tower: str
    """Address of the tower; several are separated by commas."""
    token: ClientToken
    ca_file: str
    """Empty: the system's certificate authorities."""
    spool_dir: str
    """Empty: dumps wait in memory only."""
    log_level: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(ServiceSettings):
    """The checked options of `run`."""

    interval_s: float
    metrics_host: str
    port: int
    output_lines: int
    """Last lines of a suspect's output that are sent to the tower; 0: none is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorSettings(ServiceSettings):
    """The checked options of `doctor`."""

    about: str = ""
    """"node" or "agent"; empty: both."""
    checks: tuple[str, ...] = ()
    """Names of the checks that are run; empty: all."""
    output: str = "text"
    """A value of `agent.doctor.command.Output`."""
    strict: bool = False
    """Exit with 1 also for a warning."""
    settings_file: str = ""
    """Environment file of the service that was read; empty without one."""


DEFAULT_PATH = "/etc/watchtower/agent.env"
OPTIONS_VARIABLE = "WATCHTOWER_AGENT_OPTIONS"

MAX_BYTES = 65_536
"""A larger file is not an environment file."""

_LINE = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.ASCII)


class EnvFileError(Exception):
    """The file cannot be used; the message contains the reason."""


def read_options(path: str) -> list[str]:
    """Return the options that the service gives to `watchtower-agent run`.

    Raises EnvFileError, FileNotFoundError.
    """
    values = parse(_read(path))
    try:
        options = shlex.split(values.get(OPTIONS_VARIABLE, ""))
    except ValueError as error:
        raise EnvFileError(f"{OPTIONS_VARIABLE} in {path} is invalid: {error}") from None
    url = values.get(URL_VARIABLE, "")
    return [*(["--tower", url] if url else []), *options]


def parse(text: str) -> dict[str, str]:
    """Return the variables of an environment file (systemd.exec(5), EnvironmentFile=)."""
    values = {}
    for line in text.replace("\\\n", "").splitlines():
        found = _LINE.match(line)
        if found:  # a comment begins with # or ;
            values[found[1]] = _unquote(found[2].strip())
    return values


def _unquote(value: str) -> str:
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if is_quoted else value


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise EnvFileError(f"cannot read the settings of the service {path}: {reason}") from None
    if len(text) > MAX_BYTES:
        raise EnvFileError(f"{path} has more than {MAX_BYTES} characters: not an environment file")
    return text
