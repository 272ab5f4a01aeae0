"""Advisories: each row finds its fault, and is silent where the same evidence is innocent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fleet.test_launchers import LAUNCHER
from tests.jobs.scenes import JOB
from watchtower.fleet.advisories import BY_NAME, ROWS, Advisory
from watchtower.fleet.configuration import Configurations
from watchtower.fleet.fleet import Fleet
from watchtower.fleet.job_findings import READ_S, Found
from watchtower.incidents.incident import Silence, SilenceKind
from watchtower.policy import Policy
from watchtower.views.advisories import count_advisories, list_advisories
from watchtower.views.moment import Moment
from watchtower.wire.configuration import Configuration
from watchtower.wire.observations import NODE, Observation
from watchtower.wire.report import Beat, Ending, EndingKind, RankVitals, Report

GPUS = ("pci:0000:3b:00", "pci:0000:86:00")


class Scene:
    """A fleet with one job of two ranks on one node, whose keeper is watched."""

    def __init__(self) -> None:
        self.fleet, self.now = Fleet(Policy()), 1000.0
        self.silenced: frozenset[str] = frozenset()

    def report(self, *ranks, observations=(), waiting=(), node="n0", after_s=1.0):
        self.now += after_s
        sent = Report(
            version=1,
            node=node,
            agent_id=node,
            interval_s=1.0,
            ranks=ranks,
            observations=tuple(observations),
            waiting=waiting,
        )
        assert self.fleet.take_report(sent, self.now) == {}
        for job in self.fleet.jobs.values():
            if not job.is_begun:
                list(job.begin(None, False, self.now, self.now))

    def moment(self, off=()):
        silence = Silence(
            id="s", kind=SilenceKind.NODE, name="n0", since=0.0, until=2e9, by="", reason=""
        )
        return Moment(
            now=self.now,
            wall=self.now,
            offset_s=0.0,
            keepers=self.fleet.jobs,
            nodes=self.fleet.nodes,
            detector=self.fleet.detector,
            silence_of=lambda subject: silence if subject.node in self.silenced else None,
            advisories_off=frozenset(off),
        )

    def names(self, **chosen):
        return [each.advisory for each in list_advisories(self.moment(), **chosen).items]


def a_rank(rank, step=5, pid=None, *, bad=False, size=2):
    return RankVitals(
        job=JOB,
        rank=rank,
        pid=pid or 50 + rank,
        start_time=pid or 1,
        world_size=size,
        beat=Beat(step=step, age_s=0.1, loss_is_bad=bad, phase=""),
    )


def seen(name, subject=NODE, pid=None, age_s=3.0, value=None):
    return Observation(
        source="x",
        subject=subject,
        name=name,
        age_s=age_s,
        text=f"text of {name}",
        pid=pid,
        value=value,
    )


def test_a_healthy_job_has_no_advisory():
    scene = Scene()
    used = [seen("gpu_pattern.working", gpu, 50 + n) for n, gpu in enumerate(GPUS)]
    for step in range(100):
        scene.report(a_rank(0, step), a_rank(1, step), observations=used)
    assert list_advisories(scene.moment()).items == []
    assert set(count_advisories(scene.moment()).values()) == {0}


def test_a_bad_loss_is_found_with_its_first_step_and_forgotten_with_a_good_one():
    scene = Scene()
    scene.report(a_rank(0, 5), a_rank(1, 5))
    scene.report(a_rank(0, 6), a_rank(1, 6, bad=True))
    scene.report(a_rank(0, 9), a_rank(1, 9, bad=True))
    (found,) = list_advisories(scene.moment(), JOB).items
    assert (found.advisory, found.subject) == ("nan_loss", "rank 1")
    assert found.text == "rank 1 reported a NaN or infinite loss, first at step 6"
    scene.report(a_rank(0, 10), a_rank(1, 10))
    assert scene.names() == []


def restart(step_before, first, checkpoint=None, size=2):
    """Return a scene whose second attempt begins at step `first`."""
    scene = Scene()
    for step in (0, step_before):
        scene.report(a_rank(0, step), a_rank(1, step))
    if checkpoint is not None:
        saving = [
            replace(a_rank(n, checkpoint), beat=Beat(step=checkpoint, age_s=0, phase="checkpoint"))
            for n in (0, 1)
        ]
        scene.report(*saving)
        scene.report(*(a_rank(n, checkpoint) for n in (0, 1)))
        scene.report(*(a_rank(n, step_before) for n in (0, 1)))
    scene.report(a_rank(0, first, 70, size=size), a_rank(1, first, 71, size=size), after_s=30)
    return scene


def test_steps_that_are_lost_after_a_restart_are_found():
    (found,) = list_advisories(restart(26, 0).moment()).items
    assert found.advisory == "lost_steps"
    assert found.text == (
        "attempt 2 began at step 0; attempt 1 had reached step 26; no checkpoint of it was seen"
    )


@pytest.mark.parametrize(("first", "is_lost"), [(20, False), (21, False), (0, True)])
def test_steps_after_the_last_checkpoint_are_lost_by_every_restart(first, is_lost):
    scene = restart(40, first, checkpoint=20)
    assert scene.names() == ["lost_steps"] * is_lost
    scene.report(a_rank(0, 41, 70), a_rank(1, 41, 71))
    assert scene.names() == [], "the steps were made again"


def test_an_attempt_with_another_number_of_ranks_is_found():
    assert restart(26, 26, size=4).names() == ["attempt_changed"]
    assert restart(26, 26).names() == []


def test_launchers_that_wait_for_others_are_found_after_a_minute():
    scene = Scene()
    scene.report(waiting=(replace(LAUNCHER, waits_s=30.0),))
    assert scene.names() == []
    scene.report(waiting=(replace(LAUNCHER, waits_s=90.0),))
    (found,) = list_advisories(scene.moment()).items
    assert (found.advisory, found.job) == ("waits_for_nodes", JOB)
    assert found.text == "torchrun: 1 of 2 nodes joined, waiting for 1 (n1); since 90 s"
    scene.report(waiting=(replace(LAUNCHER, waits_s=91.0),))
    scene.report(waiting=(replace(LAUNCHER, waits_s=91.0),), node="n1")
    assert scene.names() == [], "all nodes have joined"


def test_ranks_that_never_came_are_found_after_a_minute():
    scene = Scene()
    scene.report(a_rank(0, size=3), a_rank(1, size=3))
    assert scene.names() == []
    for _ in range(7):
        scene.report(a_rank(0, size=3), a_rank(1, size=3), after_s=10)
    (found,) = list_advisories(scene.moment()).items
    assert (found.advisory, found.subject) == ("missing_ranks", "rank 2")
    assert found.text == "1 rank of 3 was never reported: rank 2"


@pytest.mark.parametrize(
    ("users", "found"),
    [
        ({0: [50, 51], 1: []}, ["shared_gpu"]),
        ({0: [50], 1: [51]}, []),
        ({0: [50, 51], 1: [50, 51]}, []),  # each rank uses both
        ({0: [50], 1: []}, []),
    ],
)
def test_ranks_that_share_a_gpu_beside_an_idle_one_are_found(users, found):
    scene = Scene()
    items = []
    for n, pids in users.items():
        first = pids[0] if pids else None
        items.append(seen("gpu_pattern.working", GPUS[n], first))
        items += [seen(f"gpu_process.{pid}", GPUS[n], pid) for pid in pids[1:]]
    scene.report(a_rank(0), a_rank(1), observations=items)
    assert scene.names() == found


def test_two_ranks_on_the_only_gpu_may_mean_it():
    scene = Scene()
    items = [seen("gpu_pattern.working", GPUS[0], 50), seen("gpu_process.51", GPUS[0], 51)]
    scene.report(a_rank(0), a_rank(1), observations=items)
    assert scene.names() == []


OBSERVED = [(row.name, name) for row in ROWS for name in row.observed]


@pytest.mark.parametrize(("row", "name"), OBSERVED)
def test_what_is_wrong_with_a_node_is_found(row, name):
    scene = Scene()
    subject = (
        "nic:mlx5_0" if name.startswith("nic") else GPUS[1] if name.startswith("gpu") else NODE
    )
    scene.report(a_rank(0), a_rank(1), observations=[seen(name, subject, value=500.0)])
    (found,) = list_advisories(scene.moment()).items
    assert (found.advisory, found.node, found.job) == (row, "n0", "")
    assert found.text == f"text of {name}"
    assert "{" not in found.advice
    assert "--node n0`" in found.how_to_silence
    assert scene.names(job=JOB) == [row], "a job shows those of its nodes"
    assert scene.names(node="n0") == [row]
    assert scene.names(jobs=False) == [row]
    assert count_advisories(scene.moment())[row] == 1


def test_commands_of_an_advisory_have_quotes_around_a_name_with_spaces():
    (row,) = (row for row in ROWS if row.name == "configuration_differs")
    job = "train.py on gpu-001 (alice, 05:31)"
    found = Advisory(row=row, found=Found(since=0.0, text=""), job=job)
    assert f"`watchtower doctor '{job}'`" in found.advice
    assert f"`watchtower silence --for 1d --job '{job}'`" in found.how_to_silence
    (row,) = (row for row in ROWS if row.name == "nan_loss")
    assert Advisory(row=row, found=Found(since=0.0, text=""), job=job).advice.startswith(
        f"stop {job},"
    )


def test_a_gpu_that_only_another_job_uses_is_shown_with_the_node_only():
    scene = Scene()
    items = [
        seen("gpu_pattern.working", GPUS[0], 50),
        seen("gpu_process.51", GPUS[0], 51),
        seen("gpu_pattern.working", GPUS[1], 99),
        seen("gpu_errors.ecc_uncorrected", GPUS[1], 99),
    ]
    scene.report(a_rank(0), a_rank(1), observations=items)
    assert "gpu_memory" not in scene.names(job=JOB)
    assert "gpu_memory" in scene.names(node="n0")


def test_few_corrected_errors_are_ordinary():
    scene = Scene()
    scene.report(a_rank(0), a_rank(1), observations=[seen("gpu_ecc.corrected", GPUS[0], value=1.0)])
    assert scene.names() == []


def test_a_node_whose_agent_is_silent_shows_nothing():
    scene = Scene()
    scene.report(a_rank(0), a_rank(1), observations=[seen("shm_full")])
    scene.now += 600
    assert scene.names() == []


def test_one_is_silenced_with_its_node_or_switched_off():
    scene = Scene()
    scene.report(a_rank(0), a_rank(1), observations=[seen("shm_full")])
    scene.silenced = frozenset({"n0"})
    (found,) = list_advisories(scene.moment()).items
    assert found.silenced_until == "2033-05-18T03:33:20.000Z"
    assert count_advisories(scene.moment())["shm"] == 0
    assert list_advisories(scene.moment(off=["shm"])).items == []


def test_a_job_that_has_ended_has_no_advisory():
    scene = restart(26, 0)
    ended = Ending(kind=EndingKind.EXIT, code=0, age_s=0.0)
    scene.report(*(replace(a_rank(n, 1, 70 + n), ended=ended) for n in (0, 1)))
    assert scene.names() == []


def test_a_limit_keeps_the_worst():
    scene = Scene()
    items = [seen("shm_full"), seen("gpu_errors.ecc_uncorrected", GPUS[0])]
    scene.report(a_rank(0), a_rank(1), observations=items)
    found = list_advisories(scene.moment(), limit=1)
    assert ([each.advisory for each in found.items], found.left_out) == (["gpu_memory"], 1)


def test_every_row_says_why_and_what_to_do():
    assert len(BY_NAME) == len(ROWS)
    for row in ROWS:
        assert (row.find is None) == bool(row.observed)
        assert row.why, row.name
        assert row.advice, row.name


def with_configurations(*values, step=5, nodes=()):
    """Return a scene of ranks with these variables, and of nodes with theirs."""
    bodies = [Configuration.of(each) for each in values]
    of_nodes = [Configuration.of(each) for each in nodes]
    scene = Scene()
    ranks = [
        replace(a_rank(n, step, size=len(values)), configuration=each.digest)
        for n, each in enumerate(bodies)
    ]
    known = Configurations()
    for n, rank in enumerate(ranks):
        sent = Report(
            version=1,
            node=f"n{n}",
            agent_id="a",
            interval_s=1.0,
            bodies=tuple([*bodies, *of_nodes][:16]),
        )
        known.take(sent)
        scene.report(rank, node=f"n{n}", after_s=0.1)
    scene.now += READ_S
    for n, rank in enumerate(ranks):
        scene.report(rank, node=f"n{n}", after_s=0.1)
        if of_nodes:
            scene.fleet.nodes[f"n{n}"].configuration = of_nodes[n].digest
    return replace(scene.moment(), configurations=known)


RING, TREE = {"NCCL_ALGO": "Ring"}, {"NCCL_ALGO": "Tree"}


def test_a_rank_that_does_not_fit_is_found():
    (found,) = list_advisories(with_configurations(RING, RING, TREE)).items
    assert (found.advisory, found.subject) == ("configuration_unfit", "rank 2")
    assert found.text == "NCCL_ALGO is Tree on rank 2, and Ring on ranks 0-1"


def test_ranks_that_cannot_meet_are_found_until_they_have_met():
    values = ({"MASTER_PORT": "1"}, {"MASTER_PORT": "1"}, {"MASTER_PORT": "2"})
    names = [each.advisory for each in list_advisories(with_configurations(*values, step=-1)).items]
    assert names == ["configuration_unfit"]
    assert list_advisories(with_configurations(*values, step=3)).items == []


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (
            ({"NCCL_IB_HCA": "a"}, {"NCCL_IB_HCA": "a"}, {"NCCL_IB_HCA": "b"}),
            ["configuration_differs"],
        ),
        (({"NCCL_IB_HCA": "a"}, {"NCCL_IB_HCA": "b"}), []),  # two halves: none is odd
        (({"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}, {}), []),
        ((RING, RING, RING), []),
        (
            ({"declared lr": "1"}, {"declared lr": "1"}, {"declared lr": "2"}),
            ["configuration_unfit"],
        ),
        (({"declared seed": "1"}, {"declared seed": "1"}, {"declared seed": "2"}), []),
        (({"nccl": "2.27.3"}, {"nccl": "2.27.3"}, {}), []),  # the third was not read yet
    ],
)
def test_only_a_difference_that_matters_is_found(values, names):
    assert [each.advisory for each in list_advisories(with_configurations(*values)).items] == names


def test_a_node_with_another_mtu_is_found():
    nodes = ({"mtu eth0": "9000"}, {"mtu eth0": "9000"}, {"mtu eth0": "1500"})
    (found,) = list_advisories(with_configurations(RING, RING, RING, nodes=nodes)).items
    assert (found.advisory, found.subject) == ("configuration_differs", "n2")
    assert found.text == "mtu eth0 is 1500 on n2, and 9000 on n0, n1"


@pytest.mark.parametrize(
    ("then", "now", "found"),
    [
        (
            {"declared lr": "1"},
            {"declared lr": "2"},
            ["declared lr is 2 in attempt 2, 1 in attempt 1"],
        ),
        ({"nccl": "2.26"}, {"nccl": "2.27"}, ["nccl is 2.27 in attempt 2, 2.26 in attempt 1"]),
        ({"nccl": "2.26"}, {}, []),
        ({"MASTER_PORT": "1"}, {"MASTER_PORT": "2"}, []),
        (RING, RING, []),
    ],
)
def test_what_changed_between_two_attempts_is_found(then, now, found):
    scene, known = Scene(), Configurations()
    for pid, values in ((50, then), (70, now)):
        body = Configuration.of(values)
        known.take(Report(version=1, node="n0", agent_id="a", interval_s=1.0, bodies=(body,)))
        ranks = [replace(a_rank(n, 5, pid + n), configuration=body.digest) for n in (0, 1)]
        scene.report(*ranks, after_s=30)
    moment = replace(scene.moment(), configurations=known)
    assert [each.text for each in list_advisories(moment).items] == found
