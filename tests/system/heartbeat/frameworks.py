"""Which frameworks are here; tests of hooks run against the real ones and never against a copy."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(name: str) -> list[pytest.MarkDecorator]:
    """Marks for tests that need a framework, skipped with the way to get it."""
    reason = f"{name} is not installed: make test-torch"
    return [pytest.mark.torch, pytest.mark.skipif(find_spec(name) is None, reason=reason)]
