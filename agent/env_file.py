"""The settings of the service, from the environment file of its unit, parsed as systemd does."""

from __future__ import annotations

import re
import shlex

from watchtower.access.tower_address import URL_VARIABLE

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
