"""Collective records: shows an agent what torch.distributed has been asked to do in this process.

Three parts, each of which can be missing: the library's own flight recorder behind a Unix socket, a
list of the process groups, and counts of the blocking sends and receives, which no recorder keeps.
Nothing here imports torch: it waits until the program does. All of it stays away with
WATCHTOWER_RECORDS=off.
"""

from __future__ import annotations

import os
import sys

from watchtower_heartbeat.notice import say_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Protocol

    from watchtower_heartbeat.groups import GroupList

    class Page(Protocol):
        """The page of this process, as far as records are on it."""

        def note_records(self, **fields: int | str) -> None:
            """Say where the records are."""

        def transfer_words(self) -> memoryview | None:
            """Return the words that transfers are counted in; None without a page."""


C10D = "torch.distributed.distributed_c10d"
"""The module that is waited for."""

_page: Page | None = None
_groups: GroupList | None = None
_begun = False
_socket_asked_for = False
_watching_imports = False
_fork_hooked = False


def start(page: Page) -> None:
    """Keep records for this page now if torch.distributed is there, else as soon as it is."""
    global _page, _watching_imports, _fork_hooked
    _page = page
    if not _fork_hooked:
        _fork_hooked = True
        os.register_at_fork(after_in_child=_drop)
    if not begin() and not _watching_imports:
        from watchtower_heartbeat_hook import ImportWatch

        _watching_imports = True
        sys.meta_path.insert(0, ImportWatch(C10D, begin))


def begin() -> bool:
    """Begin with what there is; False while torch.distributed is not (quite) there."""
    global _begun, _watching_imports
    module = sys.modules.get(C10D)
    if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
        return False
    _watching_imports = False
    # Before anything else: the imports below ask the import watch, and that asks here.
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
        say_once(f"records {topic}", f"no {topic} in the collective records: {error}")


def _count_transfers(module: ModuleType) -> None:
    from watchtower_heartbeat import transfers

    words = _page.transfer_words() if _page is not None else None
    if words is not None:
        transfers.count_on(words)
        transfers.install(module)


def _watch_groups(module: ModuleType) -> None:
    from watchtower_heartbeat import groups

    if not groups.watch(module, _note_group):
        _open_socket()  # nothing will tell when there is something to serve


def _note_group(name: str, description: str, members: list[int]) -> None:
    """Write down a group. The first one opens the socket: before it, there is nothing to serve."""
    global _groups
    if _page is None:
        return
    if _groups is None:
        from watchtower_heartbeat.groups import GroupList

        _groups = GroupList()
        _page.note_records(groups_descriptor=_groups.descriptor)
    _groups.add(name, description, members)
    _open_socket()


def _open_socket() -> None:
    global _socket_asked_for
    if _socket_asked_for or _page is None:
        return
    _socket_asked_for = True
    from watchtower_heartbeat import record_socket

    try:
        path = record_socket.open_socket()
    except OSError as error:
        say_once("record socket", f"no socket for collective records: {error}")
        return
    if path:
        _page.note_records(record_socket=path)


def _drop() -> None:
    """In a forked child: let go of what is the parent's. With a page of its own it begins anew."""
    global _page, _groups, _begun, _socket_asked_for
    groups = _groups
    _page, _groups, _begun, _socket_asked_for = None, None, False, False
    try:
        if groups is not None:
            groups.close()
        for name in ("record_socket", "transfers"):
            module = sys.modules.get(f"watchtower_heartbeat.{name}")
            if module is not None:
                module.drop()
    except Exception:  # a child must be born
        return
