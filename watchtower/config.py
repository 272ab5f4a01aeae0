"""The configuration file (TOML) and what is allowed in it. Every error names key and value.

[detection]  when a job is suspect, hung or slow: the settings of `core.policy.Policy`
[tower]      host, port, data_dir, token files, certificate
[retention]  how much history is kept: the settings of `store.retention.Retention`
[drill]      how fast drills run; read by `watchtower drill` alone
"""

from __future__ import annotations

import logging
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from watchtower.access.scopes import VARIABLES, Scope
from watchtower.access.tls import is_loopback
from watchtower.access.tower_address import DEFAULT_PORT
from watchtower.core.policy import RENAMED, Policy
from watchtower.store.retention import Retention

log = logging.getLogger("watchtower.config")

MAX_URL = 256
"""Characters of `public_url`: it is in a label of every open incident."""

_PLAIN_URL = re.compile(r"https?://[A-Za-z0-9._~%:/\[\]+-]+")

_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}")

TABLES = ("detection", "tower", "retention", "drill")


class ConfigError(Exception):
    """A setting is not usable; the message names the key, its value and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerConfig:
    """Settings of `watchtower serve`."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    data_dir: str = "watchtower-data"
    insecure: bool = False
    """Listen on another address than loopback although there are no tokens."""
    agent_token_file: str = ""
    reader_token_file: str = ""
    operator_token_file: str = ""
    tls_cert: str = ""
    """Certificate chain, PEM; empty: plain HTTP."""
    tls_key: str = ""
    public_url: str = ""
    """Address of the tower for people, in texts of alerts; without a slash at its end."""
    allowed_hosts: tuple[str, ...] = ()
    """Further names by which clients may ask a tower without tokens."""
    policy: Policy = Policy()
    retention: Retention = Retention()

    def __post_init__(self) -> None:
        """Check every value by itself. Raises ConfigError."""
        if type(self.port) is not int or not 0 <= self.port <= 65535:
            raise ConfigError(f"`port` is {self.port!r}, allowed is 0 (pick one) to 65535")
        if not isinstance(self.data_dir, str) or not self.data_dir:
            raise ConfigError(f"`data_dir` is {self.data_dir!r}, the name of a folder is needed")
        for key in ("tls_cert", "tls_key", *(f"{scope.value}_token_file" for scope in Scope)):
            if not isinstance(getattr(self, key), str):
                raise ConfigError(
                    f"`{key}` is {getattr(self, key)!r}, the name of a file is needed"
                )
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError("`tls_cert` and `tls_key` belong together: give both, or neither")
        object.__setattr__(self, "allowed_hosts", _check_hosts(self.allowed_hosts))
        object.__setattr__(self, "public_url", _check_url("public_url", self.public_url))

    @property
    def token_files(self) -> dict[Scope, str]:
        """The file of each scope's tokens; empty where none is named."""
        return {scope: getattr(self, f"{scope.value}_token_file") for scope in Scope}

    def check_exposure(self, has_tokens: bool) -> None:
        """Refuse to be open to a network by mistake. Raises ConfigError."""
        if self.insecure or has_tokens or is_loopback(str(self.host)):
            return
        raise ConfigError(
            f"`host` is {self.host!r}, which is not a loopback address: anybody who reaches it "
            "could read stacks and post reports; protect it with --agent-token-file and "
            "--reader-token-file (docs/security.md), or add --insecure to allow that"
        )


def _check_hosts(hosts: object) -> tuple[str, ...]:
    """Return the names of hosts. Raises ConfigError."""
    if not isinstance(hosts, list | tuple) or not all(
        isinstance(host, str) and _HOST.fullmatch(host) for host in hosts
    ):
        raise ConfigError(
            f"`allowed_hosts` is {hosts!r}: must be a list of names without port, such as "
            '["tower.example"]'
        )
    return tuple(hosts)


def _check_url(key: str, url: object) -> str:
    """Return the URL without a slash at its end, "" for none. Raises ConfigError."""
    if url == "":
        return ""
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise ConfigError(f"`{key}` is {url!r}: must start with http:// or https://")
    if len(url) > MAX_URL or not _has_host_and_path_only(url):
        raise ConfigError(
            f"`{key}` is {url[:MAX_URL]!r}: must be a host, a port and a path, such as "
            f"https://tower:19660, of at most {MAX_URL} characters"
        )
    return url.rstrip("/")


def _has_host_and_path_only(url: str) -> bool:
    """Whether a URL has no user, password, query, fragment or character that text may break."""
    try:
        parts = urlsplit(url)
        return bool(_PLAIN_URL.fullmatch(url) and parts.hostname) and parts.port != 0
    except ValueError:  # a port that is not one, brackets that are not an IPv6 address
        return False


def read_tables(path: Path) -> dict[str, dict[str, Any]]:
    """Read a configuration file. Raises ConfigError for what is no TOML or no known table."""
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    for name, table in data.items():
        if name not in TABLES or not isinstance(table, dict):
            allowed = ", ".join(f"[{known}]" for known in TABLES)
            raise ConfigError(f"`{name}` in {path} is not known, allowed are the tables {allowed}")
    return data


def load_config(
    path: Path | None, flags: dict[str, Any], environment: Mapping[str, str] = os.environ
) -> TowerConfig:
    """Put file and command line together; the command line wins. Raises ConfigError.

    Of the environment it only matters whether there are tokens.
    """
    tables = read_tables(path) if path else {}
    said = _checked(
        "tower", tables.get("tower", {}), TowerConfig, leave_out={"policy", "retention"}
    )
    said |= {key: value for key, value in flags.items() if value is not None}
    config = TowerConfig(
        **said,
        policy=make_policy(tables.get("detection", {})),
        retention=make_retention(tables.get("retention", {})),
    )
    has_tokens = any(environment.get(name, "").strip() for name in VARIABLES.values())
    config.check_exposure(has_tokens or any(config.token_files.values()))
    return config


def make_policy(table: dict[str, Any]) -> Policy:
    """Make the policy of a `[detection]` table. Raises ConfigError."""
    table = _with_new_names("detection", table, RENAMED)
    try:
        return Policy(**_checked("detection", table, Policy))
    except ValueError as error:
        raise ConfigError(f"in [detection]: {error}") from None


def _with_new_names(name: str, table: dict[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    """Return a table with the new names of its settings. Raises ConfigError if it has both."""
    table = dict(table)
    for old, new in renamed.items():
        if old in table and new in table:
            raise ConfigError(f"`{old}` in [{name}] is the old name of `{new}`: remove `{old}`")
        if old in table:
            log.warning(
                "`%s` in [%s] is now called `%s`: rename it before the next release", old, name, new
            )
            table[new] = table.pop(old)
    return table


def make_retention(table: dict[str, Any]) -> Retention:
    """Make what is kept of a `[retention]` table. Raises ConfigError."""
    try:
        return Retention(**_checked("retention", table, Retention))
    except ValueError as error:
        raise ConfigError(f"in [retention]: {error}") from None


def _checked(
    name: str, table: dict[str, Any], kind: type, leave_out: frozenset[str] | set[str] = frozenset()
) -> dict[str, Any]:
    known = {item.name for item in fields(kind)} - leave_out
    for key, value in table.items():
        if key not in known:
            allowed = ", ".join(sorted(known))
            raise ConfigError(f"`{key}` = {value!r} in [{name}] is not known, allowed: {allowed}")
    return dict(table)
