"""The configuration file (TOML), and which values it may contain. Each error names key and value.

[detection]  when a job is suspect, hung or slow: the settings of `policy.Policy`
[tower]      host, port, data_dir, token files, certificate
[retention]  how much history is kept: the settings of `store.retention.Retention`
[alerts]     where the tower itself sends alerts: the settings of `alerts.settings`
[pages]      links on the web pages, and who may open them: the settings of `ui.settings`
[drill]      how fast drills run; read by `watchtower drill` alone
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from msgspec import Meta

from watchtower.access.tls import is_loopback
from watchtower.access.tokens import VARIABLES, Scope
from watchtower.access.tower_address import DEFAULT_PORT
from watchtower.alerts.settings import AlertSettings
from watchtower.fleet.advisories import BY_NAME
from watchtower.policy import Policy
from watchtower.service.settings import Attempts, ConfigError, Settings, convert, read_tables
from watchtower.store.retention import Retention
from watchtower.ui.settings import PageSettings

MAX_URL = 256
"""Characters of `public_url`: it is in a label of every open incident."""

OTHER_TABLES = frozenset({"policy", "retention", "alerts", "pages"})
"""Fields of `TowerConfig` that are tables of their own."""

_PLAIN_URL = re.compile(r"https?://[A-Za-z0-9._~%:/\[\]+-]+")

Port = Annotated[int, Meta(ge=0, le=65535, description="0 (pick one) to 65535")]
Folder = Annotated[str, Meta(min_length=1, description="the name of a folder")]
File = Annotated[str, Meta(description="the name of a file")]
Host = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,253}\Z")]
Hosts = Annotated[
    tuple[Host, ...],
    Meta(description='a list of names without port, such as ["tower.example"]'),
]
Advisories = Annotated[
    tuple[str, ...],
    Meta(description='a list of names of docs/advisories.md, such as ["shm"]'),
]
Database = Annotated[
    str, Meta(description="an address such as postgresql://watchtower@db.example/watchtower")
]
Url = Annotated[str, Meta(description="a URL such as https://tower:19660")]


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerConfig:
    """Settings of `watchtower serve`."""

    host: str = "127.0.0.1"
    port: Port = DEFAULT_PORT
    data_dir: Folder = "watchtower-data"
    database: Database = ""
    """Address of a PostgreSQL database; empty: a file of SQLite in `data_dir`."""
    database_password_file: File = ""
    insecure: bool = False
    """Allow an address other than loopback without tokens."""
    agent_token_file: File = ""
    reader_token_file: File = ""
    operator_token_file: File = ""
    tls_cert: File = ""
    """Certificate chain, PEM; empty: plain HTTP."""
    tls_key: File = ""
    public_url: Url = ""
    """Address of the tower for people, used in alerts; without a slash at its end."""
    allowed_hosts: Hosts = ()
    """More host names that a tower without tokens accepts in requests."""
    advisories_off: Advisories = ()
    """Advisories that are not shown."""
    record: File = ""
    """File to which every input of the tower is recorded, for `watchtower replay`; empty: none."""
    log_json: bool = False
    """Whether the log is lines of JSON."""
    policy: Policy = Policy()
    retention: Retention = Retention()
    alerts: AlertSettings = AlertSettings()
    pages: PageSettings = PageSettings()

    def __post_init__(self) -> None:
        """Check what the types do not express. Raises ConfigError."""
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError("`tls_cert` and `tls_key` belong together: give both, or neither")
        if unknown := [each for each in self.advisories_off if each not in BY_NAME]:
            known = ", ".join(BY_NAME)
            raise ConfigError(f"`advisories_off` contains {unknown[0]!r}, allowed are: {known}")
        _check_database(self.database)
        object.__setattr__(self, "public_url", _check_url("public_url", self.public_url))

    @property
    def is_secure(self) -> bool:
        """Whether people reach the tower over TLS, its own or that of a proxy."""
        return bool(self.tls_cert) or self.public_url.startswith("https://")

    @property
    def token_files(self) -> dict[Scope, str]:
        """The file with the tokens of each scope; empty without a file."""
        return {scope: getattr(self, f"{scope.value}_token_file") for scope in Scope}

    def check_exposure(self, has_tokens: bool) -> None:
        """Refuse an address other than loopback without tokens. Raises ConfigError."""
        if self.insecure or has_tokens or is_loopback(str(self.host)):
            return
        raise ConfigError(
            f"`host` is {self.host!r}, which is not a loopback address: every machine that "
            "reaches it could read stacks and post reports; add --agent-token-file and "
            "--reader-token-file (docs/security.md), or allow it with --insecure"
        )


def _check_database(address: str) -> None:
    """Refuse another kind of database, and a password in its address. Raises ConfigError."""
    if address and not address.startswith(("postgresql://", "postgres://")):
        raise ConfigError("`database` must start with postgresql://")
    start, _, words = address.partition("?")
    before, _, _ = start.partition("//")[2].rpartition("@")
    if ":" in before or "password=" in words:
        raise ConfigError(
            "`database` contains a password, which `ps` shows: put it in a file "
            "(`database_password_file`) or into WATCHTOWER_DATABASE_PASSWORD"
        )


def _check_url(key: str, url: str) -> str:
    """Return the URL without a slash at its end, "" for none. Raises ConfigError."""
    if not url:
        return ""
    if not url.startswith(("http://", "https://")):
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


def load_config(
    path: Path | None, flags: dict[str, Any], environment: Mapping[str, str] = os.environ
) -> TowerConfig:
    """Return the settings of a file and the command line, which overrides it. Raises ConfigError.

    The environment is only used to check whether there are tokens.
    """
    tables = read_tables(path) if path else {}
    given = tables.get("tower", {}) | {
        key: value for key, value in flags.items() if value is not None
    }
    attempts = Attempts()

    def read(name: str, kind: type[Settings]) -> Settings:
        return attempts.make(lambda: convert(name, tables.get(name, {}), kind), kind())

    tower = attempts.make(
        lambda: convert("tower", given, TowerConfig, leave_out=OTHER_TABLES), TowerConfig()
    )
    config = replace(
        tower,
        policy=read("detection", Policy),
        retention=read("retention", Retention),
        alerts=read("alerts", AlertSettings),
        pages=read("pages", PageSettings),
    )
    attempts.check()
    has_tokens = any(environment.get(name, "").strip() for name in VARIABLES.values())
    config.check_exposure(has_tokens or any(config.token_files.values()))
    return config
