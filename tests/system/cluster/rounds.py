"""Faults of a cluster while a job hangs, and what must hold after each of them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random

from tests.system.cluster.cluster import PATIENCE_S, Cluster, ClusterJob, wait_s
from tests.system.cluster.history import check_dumps, check_job, check_registers
from tests.system.hung_jobs import now
from tests.waiting import wait_until

UNTIL_ALERT_S = 12.0
"""Seconds from a hang to its alert. A fault comes at any moment before, or shortly after."""

SILENCED = "silenced-job"


@dataclass
class Round:
    """One fault and what was measured."""

    fault: str
    at_s: float
    """Seconds from the hang to the fault."""
    away_s: float = 0.0
    """Seconds without an owner that answers."""
    alert_s: float = 0.0
    """Seconds from the hang to its alert."""
    wrong: list[str] = field(default_factory=list)


Fault = Callable[[Cluster, Random, Round, "Hang"], None]


class Hang:
    """A job that hangs, and its alert."""

    def __init__(self, cluster: Cluster, job: ClusterJob) -> None:
        self._cluster, self._job, self._before = cluster, job, len(self._fired(cluster, job))
        self.began = now()
        job.stop()

    @staticmethod
    def _fired(cluster: Cluster, job: ClusterJob) -> set[str]:
        return {one.incident for one in cluster.webhook.fired(job.name)}

    def wait_for_alert(self) -> float:
        """Wait for the alert; return the seconds from the hang to it."""
        is_sent = lambda: len(self._fired(self._cluster, self._job)) > self._before  # noqa: E731
        wait_until(is_sent, f"the alert of {self._job.name}", patience_s=PATIENCE_S)
        return self._cluster.webhook.fired(self._job.name)[-1].at - self.began


def kill_owner(cluster: Cluster, random: Random, found: Round, hang: Hang) -> None:
    """kill -9 of the owner, which starts again after the alert."""
    wait_s(found.at_s)
    owner, began = cluster.wait_for_owner(), now()
    owner.kill()
    cluster.wait_for_owner()
    found.away_s, found.alert_s = now() - began, hang.wait_for_alert()
    owner.start()


def stop_owner(cluster: Cluster, random: Random, found: Round, hang: Hang) -> None:
    """SIGSTOP of the owner until another tower has taken over and alerted, then SIGCONT."""
    wait_s(found.at_s)
    owner, began = cluster.wait_for_owner(), now()
    owner.send(signal.SIGSTOP)
    try:
        cluster.wait_for_owner()
        found.away_s, found.alert_s = now() - began, hang.wait_for_alert()
        wait_s(max(0.0, STOPPED_S - (now() - began)))
    finally:
        owner.send(signal.SIGCONT)


STOPPED_S = 20.0
"""Seconds of a SIGSTOP. `run.py` may set it to 60."""


def kill_database(cluster: Cluster, random: Random, found: Round, hang: Hang) -> None:
    """A crash of PostgreSQL until after the alert, which the owner sends from memory."""
    wait_s(found.at_s)
    owner, epoch = cluster.wait_for_owner(), epoch_of(cluster)
    cluster.server.stop(signal.SIGQUIT)
    try:
        found.alert_s = hang.wait_for_alert()
        says_lost = lambda: "is lost" in owner.readyz().get("store", "")  # noqa: E731
        wait_until(says_lost, "/readyz says what is lost", patience_s=PATIENCE_S)
        if not owner.readyz()["ready"]:
            found.wrong.append("the owner is not ready while PostgreSQL is away")
    finally:
        cluster.server.start()
    works = lambda: owner.readyz().get("store") == "works"  # noqa: E731
    wait_until(works, "the store works again", patience_s=PATIENCE_S)
    if epoch_of(cluster) != epoch:
        found.wrong.append("another tower took over from an owner that was alive")


def kill_standby(cluster: Cluster, random: Random, found: Round, hang: Hang) -> None:
    """kill -9 of a tower on standby: nothing changes."""
    wait_s(found.at_s)
    owner = cluster.wait_for_owner()
    other = random.choice([tower for tower in cluster.towers if tower is not owner])
    other.kill()
    found.alert_s = hang.wait_for_alert()
    if cluster.owner() is not owner:
        found.wrong.append("the owner has changed")
    other.start()


def restart_each(cluster: Cluster, random: Random, found: Round, hang: Hang) -> None:
    """The upgrade of docs/operations.md: the towers on standby first, then the owner."""
    wait_s(found.at_s)
    owner = cluster.wait_for_owner()
    for tower in [*(each for each in cluster.towers if each is not owner), owner]:
        began = now()
        tower.end()
        cluster.wait_for_owner()
        found.away_s = max(found.away_s, now() - began)
        tower.start()
        cluster.wait_until_whole()
    found.alert_s = hang.wait_for_alert()


def cut_owner(cluster: Cluster, random: Random, found: Round, hang: Hang) -> None:
    """Nothing gets through between the owner and PostgreSQL, until another tower has alerted."""
    wait_s(found.at_s)
    owner, began = cluster.wait_for_owner(), now()
    assert owner.link is not None
    owner.link.send_signal(signal.SIGSTOP)
    try:
        cluster.wait_for_another(owner)
        found.away_s, found.alert_s = now() - began, hang.wait_for_alert()
        wait_s(max(0.0, STOPPED_S - (now() - began)))
    finally:
        owner.link.send_signal(signal.SIGCONT)


FAULTS: dict[str, Fault] = {
    "kill -9 of the owner": kill_owner,
    "SIGSTOP of the owner": stop_owner,
    "crash of PostgreSQL": kill_database,
    "owner cut off from PostgreSQL": cut_owner,
    "kill -9 of a standby": kill_standby,
    "restart of each tower": restart_each,
}


def epoch_of(cluster: Cluster) -> int:
    ((epoch,),) = cluster.server.execute("SELECT epoch FROM cluster.leases")
    return epoch


class Scene:
    """A cluster with a job that hangs now and then, a healthy one, and a person who acts."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster, self.random, self.hangs = cluster, Random(seed), 0
        self.sick, self.healthy = cluster.add_job("sick"), cluster.add_job("healthy")
        self._number, self._ends = 0, threading.Event()
        cluster.wait_for_steps(self.sick, self.healthy)
        self._acting = threading.Thread(target=self._act, daemon=True)
        self._acting.start()

    def run(self, fault: str) -> Round:
        """Hang the job, cause the fault, and return when all is well again."""
        found = Round(fault, self.random.uniform(0.0, UNTIL_ALERT_S))
        self.hangs += 1
        FAULTS[fault](self.cluster, self.random, found, Hang(self.cluster, self.sick))
        self.sick.resume()
        self.cluster.wait_until_whole()
        wait_until(self._is_well, "the job is healthy", patience_s=PATIENCE_S)
        self.cluster.wait_for_steps(self.sick)
        found.wrong += self.check()
        return found

    def check(self) -> Iterator[str]:
        """Yield all that is wrong until now."""
        cluster, history = self.cluster, self.cluster.history
        wait_until(lambda: self.sick.queue.count() == 0, "no dump waits", patience_s=PATIENCE_S)
        if len(history.dumps) < self.hangs:
            yield f"only {len(history.dumps)} dumps were acknowledged"
        yield from check_dumps(set(history.dumps), cluster.stored_dumps())
        yield from check_registers(list(history.operations))
        for job, hangs in ((self.sick, self.hangs), (self.healthy, 0)):
            messages = cluster.webhook.fired(job.name)
            keys, fired = [one.key for one in messages], [one.incident for one in messages]
            yield from check_job(job.name, hangs, cluster.incidents(job.name), keys, fired)
            yield from (f"a dump of {job.name} was dropped: {why}" for why in job.lost)

    def close(self) -> None:
        self._ends.set()
        self._acting.join()

    @property
    def repeated(self) -> int:
        """Messages that were sent again, because their receipt was lost with a tower."""
        keys = [(one.key, one.status) for one in self.cluster.webhook.messages]
        return len(keys) - len(set(keys))

    def _is_well(self) -> bool:
        found = self.cluster.incidents(self.sick.name)
        return len(found) >= self.hangs and all(one["closed_at"] for one in found)

    def _act(self) -> None:
        """Change a silence and read it, and acknowledge open incidents, until the end."""
        while not self._ends.wait(0.7):
            self._number += 1
            client, reason = self.cluster.client(), f"reason {self._number}"
            history = self.cluster.history
            silence = partial(client.silence, "job", SILENCED, 3600.0, reason)
            history.write(SILENCED, reason, silence)
            history.read(SILENCED, self._read_reason)
            for ident in {one.incident for one in self.cluster.webhook.fired(self.sick.name)}:
                note = f"note {self._number}"
                history.write(ident, note, partial(client.ack, ident, "ada", note))
                history.read(ident, partial(self._read_note, ident))

    def _read_note(self, ident: str) -> str | None:
        found = self.cluster.ask(lambda client: client.incident(ident))
        return None if found is None else (found["ack"] or {"note": ""})["note"]

    def _read_reason(self) -> str | None:
        found = self.cluster.ask(lambda client: client.silences())
        if found is None:
            return None
        return next((one["reason"] for one in found if one["job"] == SILENCED), "")
