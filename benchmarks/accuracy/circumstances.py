"""What a run was made with: commit of the product, versions, machine, settings."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PRODUCT = ("watchtower", "agent", "heartbeat")
"""Only these decide a verdict: a commit to documents or results makes no run outdated."""
DRILLS = ("watchtower/drills",)
"""Of it only these decide what a tool of somebody else says."""
GIT_DEADLINE_S = 10.0


def read_commit(paths: Sequence[str] = PRODUCT) -> str:
    """Give the last commit that changed these, with `-dirty` when they are changed since."""
    commit = _git("log", "-1", "--format=%H", "--", *paths)
    return commit + ("-dirty" if _git("status", "--porcelain", "--", *paths) else "")


def name_settings(config: str | None) -> str:
    """Name the settings: `default`, or the file and a digest of what it holds."""
    if config is None:
        return "default"
    digest = hashlib.sha256(Path(config).read_bytes()).hexdigest()[:12]
    return f"{Path(config).name} {digest}"


def read_versions() -> dict[str, str]:
    """Give the versions that decide how a job hangs and what is read from it."""
    return {
        "python": platform.python_version(),
        "torch": read_version("torch"),
        "py-spy": read_version("py-spy"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }


def read_version(package: str) -> str:
    """Give the version of an installed package, or say that it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", *words], capture_output=True, text=True, timeout=GIT_DEADLINE_S, check=True
    )
    return done.stdout.strip()
