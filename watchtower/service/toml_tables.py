"""Reads TOML: the tables of facts in our packages, and the settings of operators."""

from __future__ import annotations

import sys
from importlib import resources
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def parse_toml(text: str) -> dict[str, Any]:
    """Return the content of a TOML document. Raises ValueError with line and column."""
    content: dict[str, Any] = tomllib.loads(text)
    return content


def read_table(package: str, name: str) -> dict[str, Any]:
    """Return the content of the file `name`.toml of a package of ours."""
    return parse_toml(resources.files(package).joinpath(f"{name}.toml").read_text("utf-8"))
