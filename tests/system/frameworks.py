"""Which frameworks are here; tests run against the real ones and never against a copy."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(name: str, timeout_s: float = 300) -> list[pytest.MarkDecorator]:
    """Marks for tests that need a framework, skipped with the way to get it.

    Beside other tests an import of torch alone may take a minute.
    """
    reason = f"{name} is not installed: make test-torch"
    missing = pytest.mark.skipif(find_spec(name) is None, reason=reason)
    return [pytest.mark.torch, pytest.mark.timeout(timeout_s), missing]
