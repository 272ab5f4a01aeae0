"""One dump: two rounds over all of a node's ranks of a job, each shipped as soon as it is whole."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from agent.delivery.clocks import Moment, read_moment
from agent.discovery.found_rank import JobKey
from agent.dumping.dump_round import RoundTaker, Target
from watchtower.wire import PROTOCOL_VERSION
from watchtower.wire.dumps import DumpBatch

ROUND_DEADLINE_S = 10.0
"""What a round has not reached by then is sent as a timeout: evidence now beats evidence later."""

ROUND_GAP_S = 1.0
"""Between the two rounds of a dump: equal stacks a second apart mean stuck, not slow."""

log = logging.getLogger(__name__)

Deliver = Callable[[DumpBatch, Moment], None]
"""Takes a batch and when it was taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpRequest:
    """Which processes to dump, and why."""

    job: JobKey
    reason: str
    targets: tuple[Target, ...]
    sample: bool = False
    """One round, and no child processes."""


class Dumping:
    """Runs dumps in threads of their own, so that watching goes on meanwhile."""

    def __init__(
        self,
        *,
        node: str,
        taker: RoundTaker,
        deliver: Deliver,
        ended: Callable[[DumpRequest], None],
    ) -> None:
        self._node, self._taker, self._deliver, self._ended = node, taker, deliver, ended
        self._stopping = threading.Event()

    def start(self, request: DumpRequest) -> None:
        """Begin a dump; `ended(request)` is called when it is over."""
        thread = threading.Thread(
            target=self._run, args=(request,), name=f"dump {request.job.name}", daemon=True
        )
        thread.start()

    def stop(self) -> None:
        """Begin no further round; whoever is in one is not waited for."""
        self._stopping.set()

    def _run(self, request: DumpRequest) -> None:
        try:
            for number in (1, 2):
                began = time.monotonic()
                self._take(request, number)
                if request.sample:
                    return
                if number == 1 and self._stopping.wait(
                    max(0.0, began + ROUND_GAP_S - time.monotonic())
                ):
                    return
        except Exception:
            log.exception("dump of job %s failed", request.job)
        finally:
            self._ended(request)

    def _take(self, request: DumpRequest, number: int) -> None:
        taken = read_moment()
        deadline = time.monotonic() + ROUND_DEADLINE_S
        found = self._taker.take(
            request.targets,
            deadline=deadline,
            owner=request.job.owner,
            children=not request.sample,
        )
        batch = DumpBatch(
            version=PROTOCOL_VERSION,
            id=uuid.uuid4().hex,
            node=self._node,
            job=request.job.name,
            owner=request.job.owner,
            round=number,
            reason=request.reason,
            held_s=0.0,
            ranks=found.ranks,
            stacks=found.stacks,
            groups=found.groups,
            group_logs=found.group_logs,
            glance=request.sample,
        )
        if not self._stopping.is_set():
            self._deliver(batch, taken)
