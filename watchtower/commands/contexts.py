"""Contexts: the towers that a person has named, with their tokens, in `~/.config/watchtower.toml`.

    context = "prod"

    [contexts.prod]
    tower = "https://tower.example:19660"
    token_file = "~/.config/watchtower.token"

A token is sent only to the tower of its context: one of the environment belongs to another tower.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from watchtower.access import tower_address
from watchtower.access.tls import CA_VARIABLE
from watchtower.access.tokens import find_client_token
from watchtower.access.tower_address import (
    LOCAL_URL,
    URL_VARIABLE,
    AddressError,
    TowerAddress,
    check_tower_urls,
)
from watchtower.commands.client import TIMEOUT_S, TowerClient
from watchtower.service.command_line import name_or_id, suggest
from watchtower.service.settings import ConfigError, convert
from watchtower.service.toml_tables import parse_toml

FILE = "watchtower.toml"

_KEYS = ("context", "contexts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One tower, and how to ask it."""

    tower: str = ""
    token_file: str = ""
    ca_file: str = ""
    insecure: bool = False
    """Whether the token is sent over plain HTTP, too."""


def add_tower(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the tower and the token."""
    tower_address.add_tower(parser)
    parser.add_argument(
        "--context",
        type=name_or_id,
        metavar="NAME",
        help=f"tower and token of this name in ~/.config/{FILE}",
    )
    parser.set_defaults(tower=None, ca_file=None)  # so that it is known whether they were given


def make_client(args: argparse.Namespace, timeout_s: float = TIMEOUT_S) -> TowerClient:
    """Return a client for the options. Raises ClientError, ConfigError, TokenError, TlsError."""
    found, is_insecure = find_tower(args, os.environ)
    return TowerClient(
        found.url, timeout_s, token=found.token, ca_file=found.ca_file, insecure=is_insecure
    )


def find_tower(
    args: argparse.Namespace, environment: Mapping[str, str]
) -> tuple[TowerAddress, bool]:
    """Return the tower that the options choose, and whether its token may be sent over plain HTTP.

    Raises ConfigError, TokenError.
    """
    chosen = find_context(args, environment)
    found = chosen or Context(
        tower=args.tower or environment.get(URL_VARIABLE) or LOCAL_URL,
        ca_file=environment.get(CA_VARIABLE, ""),
    )
    token_file = args.token_file or found.token_file
    tower = TowerAddress(
        url=found.tower,
        token=find_client_token(token_file, environment if chosen is None else {}),
        ca_file=found.ca_file if args.ca_file is None else args.ca_file,
    )
    return tower, args.insecure or found.insecure


def find_context(args: argparse.Namespace, environment: Mapping[str, str]) -> Context | None:
    """Return the context of the options, else that of the file; None if an address was given.

    `--context` comes before WATCHTOWER_URL, which comes before the context that the file names.
    Raises ConfigError.
    """
    name, path = args.context, find_file(environment)
    if name and args.tower:
        raise ConfigError("--tower and --context both name a tower: give one of them")
    if not name and (args.tower or environment.get(URL_VARIABLE)):
        return None
    current, contexts = read_contexts(path)
    name = name or current
    if not name:
        return None
    if name not in contexts:
        known = f"it has {', '.join(contexts)}" if contexts else "it has none, or does not exist"
        hint = suggest(name, contexts)
        raise ConfigError(f"there is no context {name!r} in {path}: {known}.{hint}")
    return contexts[name]


def find_file(environment: Mapping[str, str]) -> Path:
    """Return the path of the file with the contexts."""
    return Path(environment.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / FILE


def read_contexts(path: Path) -> tuple[str, dict[str, Context]]:
    """Return the name of the context that is used without options, and all contexts.

    Without a file there are none. Raises ConfigError with the file and the key.
    """
    try:
        content = parse_toml(path.read_text("utf-8"))
    except FileNotFoundError:
        return "", {}
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    current, tables = content.get("context", ""), content.get("contexts", {})
    unknown = next((key for key in content if key not in _KEYS), None)
    is_table = isinstance(tables, dict) and all(isinstance(one, dict) for one in tables.values())
    if unknown or not isinstance(current, str) or not is_table:
        wrong = f"unknown key `{unknown}`" if unknown else "it is not valid"
        raise ConfigError(f'{path}: {wrong}, allowed are `context = "NAME"` and [contexts.NAME]')
    return current, {name: _read_context(path, name, table) for name, table in tables.items()}


def _read_context(path: Path, name: str, table: Mapping[str, Any]) -> Context:
    try:
        found = convert(f"contexts.{name}", table, Context)
        return replace(
            found,
            tower=check_tower_urls(found.tower),
            token_file=_resolve(path, found.token_file),
            ca_file=_resolve(path, found.ca_file),
        )
    except AddressError as error:
        raise ConfigError(f"{path}: [contexts.{name}]: {error}") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _resolve(path: Path, name: str) -> str:
    """Return the path of a file, which may begin with `~` or be relative to that of `path`."""
    return str(path.parent / Path(name).expanduser()) if name else ""
