"""Finds the versions of the libraries of processes, in a process of its own that can be abandoned.

The arguments are the path of /proc and processes. A line answers each process that could be read:
{"pid": 4711, "versions": {"nccl": "2.27.3", "cuda driver": "535.104.05"}}. Which libraries, and how
their versions are found, is in `agent/data/libraries.toml`. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator

from agent.dumpers.user_files import (
    READ,
    SEARCH,
    FileRights,
    NotReadable,
    open_in_root,
    parse_rights,
    read_table,
)
from agent.memory import DELETED, MAX_MAPS_BYTES
from watchtower.service.toml_tables import read_table as read_facts

MAX_NAMES = 8192
"""Names of one folder of packages. Large environments have some 1000."""

PACKAGES = ("site-packages", "dist-packages")
"""Folders that contain packages, and a folder with the version of each."""


_TABLE: list[dict[str, str]] = read_facts("agent.data", "libraries")["library"]
_FILES = tuple(
    (entry["name"], re.compile(rf"(?:{entry['file']})(?P<version>(?:\.\d{{1,9}}){{0,6}})"))
    for entry in _TABLE
)
_VERSION_FOLDERS = {
    entry["name"]: re.compile(rf"(?:{entry['package']})-(?P<version>[^-]{{1,64}})\.dist-info")
    for entry in _TABLE
    if "package" in entry
}


def find_versions(process: str) -> dict[str, str]:
    """Return the versions of the libraries of a process, by name. `process` is "/proc/PID".

    Raises OSError or ValueError if its mappings or rights cannot be read. May hang.
    """
    with open(f"{process}/maps", "rb") as file:
        text = file.read(MAX_MAPS_BYTES).decode("utf-8", "replace")
    rights = parse_rights(read_table(f"{process}/status"))
    folders: dict[str, tuple[str, ...]] = {}
    found: dict[str, str] = {}
    for path in sorted(set(_paths_of(text))):
        for library, pattern in _FILES:
            match = pattern.fullmatch(os.path.basename(path))
            if match is None or library in found:
                continue
            version = match.group("version")[1:]
            if "." not in version:  # one number is that of the interface
                version = _find_package(process, path, library, rights, folders)
            if version:
                found[library] = version
    return found


def _paths_of(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[5].startswith("/"):
            yield fields[5].removesuffix(DELETED)


def _find_package(
    process: str,
    path: str,
    library: str,
    rights: FileRights,
    folders: dict[str, tuple[str, ...]],
) -> str:
    """Return the version of the package that a file belongs to; empty if it is not known."""
    pattern = _VERSION_FOLDERS.get(library)
    parts = path.split("/")
    at = max((parts.index(each) for each in PACKAGES if each in parts), default=0)
    folder = "/".join(parts[: at + 1])
    if not at or pattern is None:
        return ""
    if folder not in folders:
        folders[folder] = ()
        with contextlib.suppress(OSError, ValueError, NotReadable):
            folders[folder] = _list(process, folder, rights)
    matches = (pattern.fullmatch(name) for name in folders[folder])
    return next((match.group("version") for match in matches if match), "")


def _list(process: str, folder: str, rights: FileRights) -> tuple[str, ...]:
    """Return the names in a folder, as the process sees it. Raises NotReadable, OSError, ValueError
    if the process itself may not list it.
    """

    def check(above: int) -> None:
        if not rights.has(os.fstat(above), SEARCH):
            raise NotReadable

    found = open_in_root(f"{process}/root", folder, check)
    try:
        if not rights.has(os.fstat(found), READ):
            raise NotReadable
        return tuple(os.listdir(f"/proc/self/fd/{found}")[:MAX_NAMES])
    finally:
        os.close(found)


def main() -> None:
    """Answer for every process that can be read."""
    proc, *pids = sys.argv[1:]
    for pid in pids:
        with contextlib.suppress(OSError, ValueError):
            print(
                json.dumps({"pid": int(pid), "versions": find_versions(f"{proc}/{pid}")}),
                flush=True,
            )


if __name__ == "__main__":
    main()
