"""Packages, which several files of tests install."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.deploy.clean_root import run

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what `make packages` writes."""
    if not Path("/usr/bin/python3").exists():
        pytest.skip("apt install python3-venv")
    folder = tmp_path_factory.mktemp("packages")
    run("make", "-C", ROOT, "-o", ROOT / ".venv/.ready", "packages", f"DIST={folder}")
    return folder
