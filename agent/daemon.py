"""Connects the parts of the agent and runs its loop: check, report, and dump at a deadline."""

from __future__ import annotations

import logging
import os
import random
import resource
import select
import signal
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from agent import __version__, config
from agent.children import ChildRunner
from agent.collectors.listeners import Ended
from agent.collectors.node import make_collectors
from agent.delivery.dump_queue import DumpQueue
from agent.delivery.shipping import DUMPS_REPLY_LIMITS, REPLY_LIMITS, DumpSender, ReportSender
from agent.delivery.spool import SpoolThread
from agent.dumpers.outputs import Outputs
from agent.dumpers.python_stacks import PythonStacks, find_py_spy
from agent.dumps.dump import Dumping, DumpRequest
from agent.dumps.round import make_taker
from agent.dumps.starter import DumpStarter
from agent.dumps.triggers import DeadlineWatch, OrderInbox
from agent.dumps.turns import DumpSlots
from agent.gaps import HOST_PID_NAMESPACE, find_gaps, read_boot, read_pid_namespace
from agent.metrics import Metrics
from agent.procfs import Proc
from agent.ranks.discovery import make_discovery
from agent.series.reporting import SeriesReporter
from agent.watching.configurations import Configurations
from agent.watching.observer import Observer, mark_oom_kills
from agent.watching.waiting_launchers import WaitingLaunchers
from agent.watching.watchlist import Watchlist, find_gone
from watchtower.access.tower_address import TowerAddress
from watchtower.access.towers import TowerChoice, Towers
from watchtower.service.daemon import Notifier
from watchtower.service.sharing import by_turns
from watchtower.wire import PROTOCOL_VERSION
from watchtower.wire.orders import ReportReply
from watchtower.wire.report import AgentGaps, ProcessId, Report

log = logging.getLogger(__name__)

MAX_OWN_DESCRIPTORS = 65536
"""The usual limit of 1024 is for programs with select(2). 8 ranks with 64 workers need more."""


def raise_descriptor_limit() -> None:
    """Raise the limit of open descriptors: each watched rank and worker needs some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    may = MAX_OWN_DESCRIPTORS if hard == resource.RLIM_INFINITY else hard
    wanted = min(may, MAX_OWN_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def make_first_line(settings: config.Settings, gaps: AgentGaps, metrics_url: str) -> str:
    """Return one line: what this agent does, and what it cannot do on this node."""
    parts = [f"node {settings.node} reports to {settings.tower} every {settings.interval_s:g} s"]
    if settings.match:
        parts.append("only ranks with " + " ".join(f"{k}={v}" for k, v in settings.match))
    parts.append(f"metrics on {metrics_url}" if metrics_url else "no metrics")
    stacks = gaps.python_stacks
    parts.append(f"no Python stacks: {stacks}" if stacks else "Python stacks by py-spy")
    where = settings.spool_dir or "memory (no --spool-dir)"
    parts.append(f"dumps wait in {where} while the tower is away")
    if gaps.process:
        parts.append(gaps.process)
    return "watchtower-agent: " + "; ".join(parts)


STOP_FLUSH_S = 1.0
"""Seconds that a stopping agent waits for the spool, and then for its last report."""

STOP_DEADLINE_S = 4.0
"""The agent exits this long after SIGTERM, whatever hangs. The promise is 5 s."""

GAPS_EVERY_S = 60.0
"""Seconds between checks of the agent's own rights (Yama, capabilities, py-spy)."""

SOONEST_TICK_S = 0.2
"""A rank that ends is reported at once. This limits the reports if all ranks of a node end."""


class Agent:
    """One agent. All methods but `stop` and the two callbacks run in the thread of `run`."""

    def __init__(self, settings: config.Settings) -> None:
        self._settings = settings
        self._proc = Proc(settings.root)
        self._discovery = make_discovery(self._proc, settings.match)
        self._launchers = WaitingLaunchers(self._proc, self._discovery.find_waiting)
        self._watchlist = Watchlist(self._proc, settings.interval_s)
        self._is_contained = read_pid_namespace(self._proc) != HOST_PID_NAMESPACE
        collectors = make_collectors(
            settings.root,
            self._rank_pids,
            self._ends,
            self._watchlist.find_job,
            self._watchlist.find_saving,
        )
        self._observer = Observer(collectors, is_contained=self._is_contained)
        self._metrics = Metrics(settings.node)
        self._metrics.show_samples(self._observer.samples)
        self._py_spy = settings.py_spy or find_py_spy()
        self._gaps = AgentGaps()
        self._gaps_at = float("-inf")
        self._deadlines, self._orders = DeadlineWatch(random.random()), OrderInbox()
        self._children = ChildRunner()
        address = TowerAddress(url=settings.tower, token=settings.token, ca_file=settings.ca_file)
        choice = TowerChoice()
        self._reports = ReportSender(
            Towers(address, REPLY_LIMITS, choice),
            on_reply=self._on_reply,
            on_failure=self._metrics.report_failures.inc,
        )
        queue = DumpQueue(self._metrics.count_loss)
        self._metrics.show_waiting(queue.count)
        for_dumps = Towers(
            address, DUMPS_REPLY_LIMITS, choice, failover_s=DUMPS_REPLY_LIMITS.reply_s
        )
        self._dumps = DumpSender(for_dumps, queue, self._metrics.count_loss)
        choice.listeners += [for_dumps.follow, lambda _: self._dumps.ring()]
        self._series = SeriesReporter(
            node=settings.node,
            proc=self._proc,
            deliver=self._dumps.put,
            output_lines=settings.output_lines,
            runner=self._children,
        )
        self._spooler = (
            SpoolThread(settings.spool_dir, queue, self._metrics.count_loss)
            if settings.spool_dir
            else None
        )
        self._outputs = Outputs(self._proc) if settings.output_lines else None
        self._configurations = Configurations(
            self._proc, settings.root, self._children, self._outputs, self._observer.facts
        )
        self._stacks = PythonStacks(self._children, self._py_spy)
        self._dumping = Dumping(
            node=settings.node,
            taker=make_taker(
                self._proc,
                self._children,
                self._stacks,
                self._metrics.count_dump,
                read_source=settings.read_source,
                outputs=self._outputs,
            ),
            deliver=self._dumps.deliver,
            ended=self._on_dump_ended,
        )
        self._starter = DumpStarter(self._watchlist, self._dumping.start)
        self._trouble = ""
        self._interval_s = settings.interval_s
        self._agent_id = uuid.uuid4().hex
        self._boot = read_boot(self._proc)
        self._replies: deque[ReportReply] = deque(maxlen=8)
        self._ended_dumps: deque[DumpRequest] = deque()
        self._notifier = Notifier()
        self._missing: tuple[ProcessId, ...] = ()
        """Processes that the tower missed in the latest report it answered."""
        self._stopping = threading.Event()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def run(self) -> None:
        """Watch until `stop`. Then it returns within seconds, whatever hangs."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stop())
        raise_descriptor_limit()
        self._find_gaps(time.monotonic())
        url = self._metrics.serve(self._settings.metrics_host, self._settings.port)
        print(make_first_line(self._settings, self._gaps, url), flush=True)
        self._reports.start()
        self._dumps.start()
        if self._spooler is not None:
            self._spooler.start(self._dumps.ring)
        threading.Thread(target=self._enforce_end, name="end", daemon=True).start()
        self._loop()
        self._notifier.stopping()
        self._dumping.stop()
        self._children.stop()
        self._observer.stop()
        if self._spooler is not None:
            self._spooler.flush(STOP_FLUSH_S)
        self._guard(self._report_last)
        log.info("stopped")

    def _enforce_end(self) -> None:
        """End the process in time after `stop`, even if its main thread hangs."""
        self._stopping.wait()
        time.sleep(STOP_DEADLINE_S)
        os._exit(0)

    def stop(self) -> None:
        """End the loop. For a signal handler or another thread."""
        self._stopping.set()
        os.eventfd_write(self._wake, 1)

    def _loop(self) -> None:
        tick_at = ticked_at = time.monotonic()
        has_checked = False
        while not self._stopping.is_set():
            now = time.monotonic()
            if now >= tick_at:
                ticked_at, tick_at = now, tick_at + self._interval_s
                if tick_at <= now:  # late: skip the missed ticks
                    tick_at = now + self._interval_s
                has_checked = self._guard(self._tick)
            wake_at = tick_at
            # An agent that cannot check or act counts as dead: the watchdog may restart it.
            if self._guard(self._act) and has_checked:
                wake_at = min(tick_at, self._notifier.alive(time.monotonic(), self._status()))
            if self._sleep(wake_at):
                tick_at = min(tick_at, ticked_at + SOONEST_TICK_S)

    def _guard(self, step: Callable[[float], None]) -> bool:
        """Run one step. Its exceptions are logged once and do not stop the agent."""
        try:
            step(time.monotonic())
            return True
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
            if trouble != self._trouble:
                log.exception("%s failed", step.__name__.strip("_"))
            self._trouble = trouble
            return False

    def _tick(self, now: float) -> None:
        with self._metrics.tick_duration.time():
            self._report(now)

    def _report(self, now: float) -> None:
        if now - self._gaps_at >= GAPS_EVERY_S:
            self._find_gaps(now)
        self._watchlist.update(self._discovery.tick(now), now)
        if self._outputs is not None:
            self._outputs.note((rank.key for rank in self._watchlist.living()), now)
            self._starter.read_ends()
        report = self._make_report()
        self._reports.offer(report)
        self._metrics.show_limits(report.limits)
        self._metrics.ranks.set(len(self._watchlist.living()))
        self._deadlines.keep_only(self._watchlist.keys())

    def _report_last(self, now: float) -> None:
        """Give up the ranks, so that an agent that starts now may report them at once."""
        self._reports.offer(replace(self._make_report(), stopping=True))
        self._reports.flush(STOP_FLUSH_S)

    def _rank_pids(self) -> Iterator[int]:
        """Return the pids of the living ranks. Their owners take turns."""
        found = (rank.found for rank in self._watchlist.living())
        return by_turns((each.job.owner, each.process.pid) for each in found)

    def _ends(self) -> Iterator[Ended]:
        yield from self._watchlist.ends()
        yield from self._launchers.ends(time.monotonic())

    def _make_report(self) -> Report:
        now, boot_now = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)
        self._launchers.update(now)
        self._observer.note_processes(self._watchlist.living(), boot_now)
        observations = self._observer.observe(now, boot_now)
        self._configurations.update(self._watchlist.living(), now)
        vitals = self._watchlist.vitals(now)
        self._series.record(vitals, self._observer.measured(boot_now), now)
        return Report(
            version=PROTOCOL_VERSION,
            node=self._settings.node,
            agent_id=self._agent_id,
            interval_s=self._interval_s,
            ranks=mark_oom_kills(vitals, observations),
            jobs=self._discovery.job_labels(),
            launches=self._watchlist.launches(),
            gone=find_gone(self._proc, self._missing, self._watchlist.keys()),
            contained=self._is_contained,
            boot=self._boot,
            release=__version__,
            limits=replace(
                self._gaps,
                python_stacks=self._gaps.python_stacks or self._stacks.trouble(),
                spool=self._spooler.trouble() if self._spooler else "",
                owners=self._discovery.owners.trouble(),
                collectors=self._observer.gap(),
            ),
            observations=observations,
            unwatched=self._discovery.unwatched,
            waiting=self._launchers.report(observations, now),
            configuration=self._configurations.node,
            bodies=self._configurations.take_wanted(),
        )

    def _act(self, now: float) -> None:
        """Process replies and ended dumps of other threads, and start what is due."""
        while self._ended_dumps:
            ended = self._ended_dumps.popleft()
            self._starter.end(ended, now)
        while self._replies:
            reply = self._replies.popleft()
            asked_s = min(reply.report_interval_s, config.LONGEST_ASKED_INTERVAL_S)
            self._interval_s = max(self._settings.interval_s, asked_s)
            self._deadlines.replace(reply.deadlines)
            self._missing = reply.missing
            self._configurations.want(reply.wanted)
            self._series.carry_out(reply.series, self._watchlist.found(), now)
            for order in self._orders.receive(reply.orders, now):
                log.warning("order %s is refused: too many orders are waiting", order.id)
        slots = self._starter.slots()
        self._act_on_deadlines(now, slots)
        orders, expired = self._orders.take(now, slots)
        for order in expired:
            log.warning("order %s expired before it could be carried out", order.id)
        for order in orders:
            self._starter.carry_out(order, now)

    def _act_on_deadlines(self, now: float, slots: DumpSlots) -> None:
        beats = self._watchlist.beats()
        overdue = [beat for beat in beats if (self._deadlines.due_at(beat) or now + 1) <= now]
        for beat in overdue:
            self._watchlist.read_page(beat.key)
        if not overdue:
            return
        fired = self._deadlines.fire(self._watchlist.beats(), now, slots)
        for job, beat in fired.items():
            self._starter.dump_overdue(job, beat.rank, self._deadlines.find(beat), now)

    def _sleep(self, wake_at: float) -> bool:
        """Sleep until there is work. Return True if a rank has ended meanwhile."""
        # Without a free slot, the end of another dump wakes the loop. A passed deadline must not.
        slots = self._starter.slots()
        beats = (beat for beat in self._watchlist.beats() if slots.has_room(beat.job.owner))
        due = self._deadlines.next_due(beats), self._orders.next_due(slots)
        wake_at = min([wake_at, *(at for at in due if at is not None)])
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        for rank in self._watchlist.living():
            if rank.end_watch.pidfd >= 0:
                poller.register(rank.end_watch.pidfd, select.POLLIN)
        # Rounded up to the next millisecond, so that the loop does not wake before the work is due.
        events = poller.poll(max(0, int((wake_at - time.monotonic()) * 1000) + 1))
        woken = {descriptor for descriptor, _ in events}
        if self._wake in woken:
            os.eventfd_read(self._wake)
        return bool(woken - {self._wake}) and self._watchlist.notice_ends(time.monotonic())

    def _find_gaps(self, now: float) -> None:
        gaps = find_gaps(self._proc, self._py_spy)
        if gaps != self._gaps:
            for sentence in gaps.sentences():
                log.warning("limit: %s", sentence)
        self._gaps, self._gaps_at = gaps, now

    def _status(self) -> str:
        count = len(self._watchlist.living())
        return f"{count} rank{'' if count == 1 else 's'} watched; {self._reports.state}"

    def _on_reply(self, reply: ReportReply) -> None:
        """Called in the thread that sends reports."""
        self._replies.append(reply)
        os.eventfd_write(self._wake, 1)

    def _on_dump_ended(self, request: DumpRequest) -> None:
        """Called in the thread of a dump."""
        self._ended_dumps.append(request)
        os.eventfd_write(self._wake, 1)
