"""The tower's connections subclass a protocol class of uvicorn that it does not document.

`watchtower/api/connections.py` overrides its callbacks and reads its state. Versions are allowed
if tests/hostile/test_connections.py passed with them.
"""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest

from watchtower.service.toml_tables import parse_toml

ROOT = Path(__file__).parents[2]


def known_range() -> tuple[str, str]:
    """Return the first version that is allowed, and the first one above that is not."""
    project = parse_toml((ROOT / "pyproject.toml").read_text())["project"]
    (found,) = (
        match
        for each in project["optional-dependencies"]["tower"]
        if (match := re.fullmatch(r"uvicorn>=([\d.]+),<([\d.]+)", each))
    )
    return found[1], found[2]


def advice(installed: str) -> str:
    """Return what to do about a version; empty when it is in the known range."""
    first, end = known_range()
    if parts(first) <= parts(installed) < parts(end):
        return ""
    return (
        f"uvicorn {installed} is installed, and known are {first} up to, but not including, {end}: "
        "read what changed in uvicorn/protocols/http/httptools_impl.py, run "
        "tests/hostile/test_connections.py with it, and then widen the range in pyproject.toml"
    )


def parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def test_the_installed_uvicorn_is_one_whose_protocol_class_is_known() -> None:
    text = advice(importlib.metadata.version("uvicorn"))
    assert not text, text


@pytest.mark.parametrize("version", ["0.31.1", "0.55.0", "1.0", "2.1.3rc1"])
def test_any_other_one_is_refused_with_what_to_do(version: str) -> None:
    assert "tests/hostile/test_connections.py" in advice(version)
    assert version in advice(version)


@pytest.mark.parametrize("version", ["0.32.0", "0.54.0", "0.54.9"])
def test_the_known_ones_are_allowed(version: str) -> None:
    assert advice(version) == ""
