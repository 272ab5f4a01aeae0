"""The circumstances of a run: commit of the product, versions, machine, settings."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PRODUCT = ("watchtower", "agent", "heartbeat")
"""Only these folders decide a verdict. A commit to documents or results leaves runs valid."""
DRILLS = ("watchtower/drills",)
"""Only this part of the product decides the answers of other tools."""
GIT_DEADLINE_S = 10.0


def read_commit(paths: Sequence[str] = PRODUCT) -> str:
    """Return the last commit that changed these paths, with `-dirty` for uncommitted changes."""
    commit = _git("log", "-1", "--format=%H", "--", *paths)
    return commit + ("-dirty" if _git("status", "--porcelain", "--", *paths) else "")


def name_settings(config: str | None) -> str:
    """Return `default`, or the file of settings and a digest of its content."""
    if config is None:
        return "default"
    digest = hashlib.sha256(Path(config).read_bytes()).hexdigest()[:12]
    return f"{Path(config).name} {digest}"


def read_versions() -> dict[str, str]:
    """Return the versions that decide how a job hangs and what is read from it."""
    return {
        "python": platform.python_version(),
        "torch": read_version("torch"),
        "py-spy": read_version("py-spy"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }


def read_version(package: str) -> str:
    """Return the version of an installed package, or that it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", *words], capture_output=True, text=True, timeout=GIT_DEADLINE_S, check=True
    )
    return done.stdout.strip()
