"""Collective log: shows an agent the calls of torch.distributed in this process.

It has three parts, and each may be missing:

* the library's own flight recorder behind a Unix socket,
* a list of the process groups,
* counts of blocking sends and receives, which no recorder has.

Nothing here imports torch: it waits until the program does. WATCHTOWER_RECORDS=off disables it.
"""

from __future__ import annotations

import os
import sys

from watchtower_heartbeat.notice import warn_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Protocol

    from watchtower_heartbeat.groups import GroupList

    class Page(Protocol):
        """The page of this process, as far as the collective log needs it."""

        def note_records(self, **fields: int | str) -> None:
            """Record where the collective log is."""

        def connect(self, rank: int, world_size: int) -> None:
            """Note what torch's first process group says of this process."""

        def transfer_words(self) -> memoryview | None:
            """Return the words for the counts of transfers; None without a page."""


C10D = "torch.distributed.distributed_c10d"
"""The module to wait for."""

_page: Page | None = None
_groups: GroupList | None = None
_begun = False
_socket_requested = False
_watching_imports = False
_fork_hooked = False


def start(page: Page) -> None:
    """Start the log for this page: now, or as soon as torch.distributed is imported."""
    global _page, _watching_imports, _fork_hooked
    _page = page
    if not _fork_hooked:
        _fork_hooked = True
        os.register_at_fork(after_in_child=_drop)
    if not begin() and not _watching_imports:
        from watchtower_heartbeat_auto import ImportWatch

        _watching_imports = True
        sys.meta_path.insert(0, ImportWatch(C10D, begin))


def begin() -> bool:
    """Start the parts that are possible; False while torch.distributed is not completely
    imported.
    """
    global _begun, _watching_imports
    module = sys.modules.get(C10D)
    if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
        return False
    _watching_imports = False
    # First, because the imports below call the import watch, which calls this function.
    if _begun or _page is None:
        return True
    _begun = True
    _guarded("transfers", _count_transfers, module)
    _guarded("groups", _watch_groups, module)
    return True


def _guarded(topic: str, part: Callable[[ModuleType], None], module: ModuleType) -> None:
    try:
        part(module)
    except Exception as error:
        warn_once(f"records {topic}", f"no {topic} in the collective log: {error}")


def _count_transfers(module: ModuleType) -> None:
    from watchtower_heartbeat import transfers

    words = _page.transfer_words() if _page is not None else None
    if words is not None:
        transfers.count_on(words)
        transfers.install(module)


def _watch_groups(module: ModuleType) -> None:
    from watchtower_heartbeat import groups

    if not groups.watch(module, _note_group):
        _open_socket()  # nothing will report the first group


def _note_group(name: str, description: str, members: list[int], rank: int) -> None:
    """Record a group. The first one has all ranks, and opens the socket: before it there is nothing
    to serve.
    """
    global _groups
    if _page is None:
        return
    if _groups is None:
        from watchtower_heartbeat.groups import GroupList

        _groups = GroupList()
        _page.note_records(groups_descriptor=_groups.descriptor)
        _page.connect(rank, len(members))
    _groups.add(name, description, members)
    _open_socket()


def _open_socket() -> None:
    global _socket_requested
    if _socket_requested or _page is None:
        return
    _socket_requested = True
    from watchtower_heartbeat import record_socket

    try:
        path = record_socket.open_socket()
    except OSError as error:
        warn_once("record socket", f"no socket for the collective log: {error}")
        return
    if path:
        _page.note_records(record_socket=path)


def _drop() -> None:
    """In a forked child: drop the parent's log. With a page of its own the child starts again."""
    global _page, _groups, _begun, _socket_requested
    groups = _groups
    _page, _groups, _begun, _socket_requested = None, None, False, False
    try:
        if groups is not None:
            groups.close()
        for name in ("record_socket", "transfers"):
            module = sys.modules.get(f"watchtower_heartbeat.{name}")
            if module is not None:
                module.drop()
    except Exception:  # the fork must not fail
        return
