"""Jobs that share a cause: the verdicts name it, and their incidents are one outage."""

from __future__ import annotations

import time
from dataclasses import replace

import msgspec
import pytest

from tests.diagnosis.builders import a_case, ranks_in
from tests.file_server_jobs import BLOCKED, SERVER, FileServerJobs
from tests.tower.simulator import Simulation
from watchtower.api.metrics import TowerCollector
from watchtower.api.security import Refusals
from watchtower.commands.texts import write_incidents, write_outages
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.incidents.incident import Ack
from watchtower.incidents.incident_filter import ALL_INCIDENTS
from watchtower.jobs.verdicts import DiagnosisResult
from watchtower.tower.stored_incidents import get_incident, list_incidents
from watchtower.views.outage import list_outages
from watchtower.views.verdict import live_verdict
from watchtower.wire.dumps import Mount
from watchtower.wire.verdict import Cause, Domain, SharedCause, Status, Verdict
from watchtower.writing.verdict_text import render_text

JOBS = 20
MOUNT = SharedCause(kind="mount", name="nfs1:/data")


class Outage:
    """The jobs of a file server that report to a tower under a clock that the test moves."""

    def __init__(self, sim: Simulation, owners: list[str], mount: Mount = SERVER) -> None:
        self.sim = sim
        self.jobs = FileServerJobs(owners, clock=lambda: sim.world.now, mount=mount)

    async def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.sim.world.now += 1.0
            for report in self.jobs.reports():
                self.sim.tower.take_report(report)
            self.sim.tower.tick()
            await self.sim.settle()

    async def hang(self) -> None:
        """Make ten steps; then the server dies. Returns when incidents are open."""
        await self.run(12)
        self.jobs.hang()
        await self.run(6)
        for number in (1, 2):
            for batch in self.jobs.batches(number):
                await self.sim.take(batch)
        await self.run(12)

    def verdict(self, name: str) -> Verdict:
        verdict = live_verdict(self.sim.tower.moment(), name)
        assert verdict is not None
        return verdict

    @property
    def verdicts(self) -> list[Verdict]:
        return [self.verdict(name) for name in self.jobs.names]


@pytest.mark.parametrize("owners", [1, JOBS], ids=["one owner", "an owner each"])
def test_jobs_that_hang_on_one_file_server_become_hung_and_share_its_mount(tell, owners):
    async def story(sim: Simulation) -> None:
        outage = Outage(sim, [f"uid:{number % owners}" for number in range(JOBS)])
        await outage.hang()
        for verdict in outage.verdicts:
            assert (verdict.status, verdict.cause) == (Status.HUNG, Cause.UNINTERRUPTIBLE_IO)
            assert tuple(suspect.rank for suspect in verdict.suspects) == BLOCKED
            assert (verdict.shared_cause, verdict.shared_with) == (MOUNT, JOBS - 1)
        assert "19 other jobs hang on the same mount nfs1:/data\n" in render_text(
            outage.verdicts[0]
        )
        listed = (await list_incidents(sim.tower, ALL_INCIDENTS, 100)).items
        assert [one.shared_cause for one in listed] == [MOUNT] * JOBS

    tell(story)


def shared_labels(sim: Simulation) -> dict[str, list[float]]:
    """Values of `watchtower_incident_open` by their shared cause."""
    samples = scrape(sim)["watchtower_incident_open"]
    found: dict[str, list[float]] = {}
    for labels, value in samples:
        found.setdefault(labels["shared_cause"], []).append(value)
    return found


def scrape(sim: Simulation) -> dict[str, list[tuple[dict[str, str], float]]]:
    collector = sim.collector = getattr(sim, "collector", None) or TowerCollector(
        sim.tower, Refusals()
    )
    families = {family.name: family for family in collector.collect()}
    return {
        name: [(sample.labels, sample.value) for sample in family.samples]
        for name, family in families.items()
    }


def test_each_incident_keeps_an_alert_of_its_own_with_a_label_to_group_by(tell):
    async def story(sim: Simulation) -> None:
        outage = Outage(sim, ["uid:1"] * 3)
        await outage.hang()
        assert shared_labels(sim) == {"mount nfs1:/data": [1.0, 1.0, 1.0]}
        outage.jobs.hung_at = 0.0  # the server is back
        await outage.run(3)
        assert shared_labels(sim) == {"mount nfs1:/data": [0.0, 0.0, 0.0]}
        assert {verdict.shared_with for verdict in outage.verdicts} == {0}

    tell(story)


def test_what_an_incident_shares_does_not_change_with_a_later_verdict(tell):
    """The cause is a label of the alert. A new label would end the alert and begin another one."""

    async def story(sim: Simulation) -> None:
        outage = Outage(sim, ["uid:1"])
        await outage.hang()
        live = sim.tower.fleet.jobs["job-0"].judged
        opened = outage.verdict("job-0")
        for later in (SharedCause(kind="node", name="n1"), None):
            diagnosis = replace(live.watch.diagnosis, shared_cause=later, cause=Cause.UNKNOWN)
            live.take_diagnosis(DiagnosisResult(diagnosis=diagnosis, evidence=b""), 0.0, 0.0)
            live.update_incident(sim.world.now, 0.0)
            verdict = outage.verdict("job-0")
            assert verdict.cause is Cause.UNKNOWN
            assert verdict.shared_cause == opened.shared_cause == MOUNT

    tell(story)


def test_a_restarted_tower_knows_what_open_incidents_share(tell):
    async def story(sim: Simulation) -> None:
        outage = Outage(sim, ["uid:1"] * 3)
        await outage.hang()
        before = {verdict.incident for verdict in outage.verdicts}
        await sim.restart_tower()
        await outage.run(3)
        assert {verdict.incident for verdict in outage.verdicts} == before
        assert [(v.shared_cause, v.shared_with) for v in outage.verdicts] == [(MOUNT, 2)] * 3

    tell(story)


def test_the_name_that_a_node_gives_a_mount_reaches_no_terminal_and_no_label_unescaped(tell):
    async def story(sim: Simulation) -> None:
        source = 'nfs1:/\x1b[31m"\n`<!here>' + "x" * 200
        outage = Outage(sim, ["uid:1"] * 2, Mount(kind="nfs", source=source, point="/mnt"))
        await outage.hang()
        verdict = outage.verdict("job-0")
        text = render_text(verdict)
        assert "1 other job hangs on the same mount nfs1:/ [31m" in text
        assert all(line.isprintable() for line in text.splitlines())
        ((shown, values),) = shared_labels(sim).items()
        assert values == [1.0, 1.0]
        assert shown.isprintable()
        assert not set(shown) & set("<>`")

    tell(story)


def test_three_jobs_on_one_dead_mount_are_one_outage(tell):
    async def story(sim: Simulation) -> None:
        outage = Outage(sim, ["uid:1", "uid:2", "uid:3"])
        await outage.hang()
        (found,) = list_outages(sim.tower.moment(), 100)
        assert (found.shared_cause, found.domain) == (MOUNT, Domain.STORAGE)
        assert (found.open_count, found.rank_count, found.closed_at) == (3, 24, None)
        assert {one.job for one in found.incidents} == {"job-0", "job-1", "job-2"}
        assert found.id == found.incidents[0].id
        listed = (await list_incidents(sim.tower, ALL_INCIDENTS, 100)).items
        assert [one.outage for one in listed] == [found.id] * 3
        detail = await get_incident(sim.tower, listed[0].id)
        assert detail is not None
        assert detail.outage == found.id
        assert scrape(sim)["watchtower_outages"] == [({}, 1.0)]
        outage.jobs.hung_at = 0.0  # the server is back
        await outage.run(3)
        (over,) = list_outages(sim.tower.moment(), 100)
        assert over.open_count == 0
        assert over.closed_at is not None
        assert scrape(sim)["watchtower_outages"] == [({}, 0.0)]

    tell(story)


def test_an_outage_of_shadow_mode_is_listed_and_not_counted(tell):
    async def story(sim: Simulation) -> None:
        await Outage(sim, ["uid:1", "uid:2"]).hang()
        for live in [keeper.judged for keeper in sim.tower.fleet.jobs.values()]:
            assert live.incident is not None
            live.incident = replace(live.incident, shadow=True)
        assert len(list_outages(sim.tower.moment(), 100)) == 1
        assert scrape(sim)["watchtower_outages"] == [({}, 0.0)]

    tell(story)


def test_an_outage_shows_which_incidents_are_acknowledged(tell):
    async def story(sim: Simulation) -> None:
        await Outage(sim, ["uid:1", "uid:2"]).hang()
        live = sim.tower.fleet.jobs["job-1"].judged
        assert live.incident is not None
        live.incident = replace(live.incident, ack=Ack(at=1.0, by="ann"))
        (found,) = list_outages(sim.tower.moment(), 100)
        assert {one.job: one.acknowledged for one in found.incidents} == {
            "job-0": False,
            "job-1": True,
        }

    tell(story)


def test_a_job_that_hangs_alone_is_no_outage(tell):
    async def story(sim: Simulation) -> None:
        await Outage(sim, ["uid:1"]).hang()
        assert list_outages(sim.tower.moment(), 100) == []
        (one,) = (await list_incidents(sim.tower, ALL_INCIDENTS, 100)).items
        assert one.outage == one.id
        assert scrape(sim)["watchtower_outages"] == [({}, 0.0)]

    tell(story)


def test_an_outage_survives_a_restart_and_a_corrected_verdict(tell):
    async def story(sim: Simulation) -> None:
        outage = Outage(sim, ["uid:1"] * 3)
        await outage.hang()
        (before,) = list_outages(sim.tower.moment(), 100)
        for again in (sim.restart_tower, sim.kill_tower):
            await again()
            await outage.run(3)
            (after,) = list_outages(sim.tower.moment(), 100)
            assert replace(after, rank_count=24) == before
        live = sim.tower.fleet.jobs["job-0"].judged
        assert live.incident is not None
        live.watch.diagnosis = diagnose(a_case(ranks_in(4)))  # it names no mount
        live.update_incident(sim.world.now, 0.0)
        assert live.incident.identity.outage == before.id

    tell(story)


def test_drills_are_in_no_outage(tell, monkeypatch):
    monkeypatch.setattr("watchtower.jobs.keeper.is_drill", lambda _: True)

    async def story(sim: Simulation) -> None:
        await Outage(sim, ["uid:1"] * 2).hang()
        assert list_outages(sim.tower.moment(), 100) == []

    tell(story)


def test_the_commands_show_outages_and_which_incidents_belong_together(tell):
    async def story(sim: Simulation) -> None:
        await Outage(sim, ["uid:1"] * 5).hang()
        outages = msgspec.to_builtins(list_outages(sim.tower.moment(), 100))
        lines = write_outages(outages, time.time()).splitlines()
        assert lines[0].split()[:3] == ["OUTAGE", "OPENED", "STATUS"]
        assert "5 of 5 open" in lines[1]
        assert "mount nfs1:/data" in lines[1]
        assert "and 2 more" in lines[1]
        incidents = msgspec.to_builtins((await list_incidents(sim.tower, ALL_INCIDENTS, 100)).items)
        table = write_incidents(incidents, time.time()).splitlines()
        assert table[0].endswith("OUTAGE")
        assert all(line.endswith(outages[0]["id"]) for line in table[1:])
        assert "OUTAGE" not in write_incidents(incidents[:1], time.time())

    tell(story)
