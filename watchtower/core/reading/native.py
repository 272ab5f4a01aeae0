"""Reads where the training thread of a rank is in native code, from its dumps."""

from __future__ import annotations

from collections.abc import Sequence

from watchtower.wire.dumps import NativeKind, RankDump
from watchtower.wire.report import ProcessState


def waits_for_device(dumps: Sequence[RankDump]) -> bool:
    """Return whether the last dump shows a wait for a device, asleep or by polling."""
    native = dumps[-1].native if dumps else None
    return native is not None and native.kind is NativeKind.DEVICE_WAIT


def stays_blocked(dumps: Sequence[RankDump]) -> bool:
    """Return whether the training thread was blocked all the time between the last two dumps, and
    nothing that it may wait for runs.

    It may wait for another Python thread or for a child, so these must not run in either dump.
    Threads without Python are helpers: watchdogs, proxies, thread pools.
    """
    if len(dumps) < 2:
        return False
    before, after = dumps[-2].native, dumps[-1].native
    if before is None or after is None or before.running or after.running:
        return False
    counters = [(each.thread, each.run_ns, each.switches) for each in (before, after)]
    if counters[0] != counters[1] or -1 in counters[0][1:]:
        return False
    return not any(_runs_other_work(dump) for dump in dumps[-2:])


def _runs_other_work(dump: RankDump) -> bool:
    threads = any(thread.active for thread in dump.threads if not thread.main)
    return threads or any(each.kernel.state is ProcessState.RUNNING for each in dump.children)
