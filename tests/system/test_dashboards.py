"""The queries of the dashboards, on a Prometheus that scraped a tower with a job that really hung.

The golden text has every series of every query, and the range in which its highest value must be:
a panel that shows nothing, or only zeros where something happened, fails.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import re
import signal
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.alerts.receivers import Receiver, receiving
from tests.dashboard_queries import PanelQuery, all_queries, load, names, panel_queries
from tests.system.hung_jobs import PATIENT
from tests.system.monitoring import Prometheus, free_address, needs_prometheus, running
from tests.system.promtool import promtool
from tests.waiting import wait_until
from watchtower import __version__
from watchtower.commands.client import NotFoundError, TowerClient
from watchtower.drills.children import Child
from watchtower.drills.environment import Environment
from watchtower.drills.gpus import SPINS, WORKS, Gpus
from watchtower.drills.job import TrainingJob
from watchtower.drills.kernel_log import KernelLogs
from watchtower.drills.launching import Layout
from watchtower.drills.settings import read_config

pytestmark = [pytest.mark.e2e, needs_prometheus, pytest.mark.timeout(400)]

CONFIG = read_config(Path(__file__).parent / "e2e" / "fast.toml")
GOLDEN = Path(__file__).with_name("dashboards.golden.txt")

SCRAPE_S = 1
RATE_INTERVAL, RANGE_S = "10s", 300
VALUES = {"__rate_interval": RATE_INTERVAL, "__range": f"{RANGE_S}s"}

SLURM = {
    "SLURM_JOB_ID": "48213",
    "SLURM_JOB_NAME": "pretrain",
    "SLURM_JOB_PARTITION": "gpu",
    "SLURM_JOB_USER": "alice",
}
"""The variables of the ranks about their job."""

XID_13 = "NVRM: Xid (PCI:0000:3b:00): 13, pid=77, name=other, Graphics Exception"
OOM_KILL = "Out of memory: Killed process 78 (other) total-vm:1kB, UID:1000 pgtables:64kB"
"""Lines about processes of no rank."""

HOPPER = (
    "sm {gpu} 91\ntensor {gpu} 32\ndram {gpu} 24\nreceived {gpu} 900\nsent {gpu} 800\n"
    "links {gpu} 18\nlinks_up {gpu} 17\n"
)
"""Counters that only GPUs since Hopper have. One of its NVLinks is down."""

QUERIES = all_queries()
ANNOTATIONS = [
    PanelQuery(name, each["name"], "", each["expr"], each["titleFormat"], instant=False)
    for name in names()
    for each in load(name)["annotations"]["list"]
]


def test_every_expression_is_valid(tmp_path: Path):
    """Each one as a recording rule. Values of variables are as in Grafana."""
    values = VALUES | {"training_job": "llama", "incident": "20261122-1", "node": "gpu-1"}
    rules = [
        {"record": f"dashboard:query:{number}", "expr": query.fill(values)}
        for number, query in enumerate((*QUERIES, *ANNOTATIONS))
    ]
    (tmp_path / "queries.yml").write_text(
        json.dumps({"groups": [{"name": "dashboards", "rules": rules}]})
    )
    printed = promtool(tmp_path, "check", "rules", "queries.yml")
    assert f"{len(rules)} rules found" in printed


class Scraped(Environment):
    """A tower that sends alerts to a receiver, and agents with known ports."""

    def __init__(self, folder: Path, receiver: Receiver) -> None:
        super().__init__(
            folder,
            nodes=2,
            interval_s=CONFIG.drill.agent_interval_s,
            detection={**CONFIG.detection, **PATIENT},
            forwarded=False,
            start_deadline_s=60.0,
        )
        secret = folder / "webhook-url"
        secret.write_text(f"{receiver.url}\n")
        secret.chmod(0o600)
        self.kernel_logs = KernelLogs(folder)
        self.gpus = Gpus(folder, count=2)
        self._alerts = f'\n[alerts]\nwebhook_url_file = "{secret}"\n'
        self.agents: list[str] = []

    def _write_config(self) -> Path:
        path = super()._write_config()
        path.write_text(path.read_text("utf-8") + self._alerts, "utf-8")
        return path

    def _start_child(
        self, name: str, module: str, words: list[str], variables: Mapping[str, str] | None = None
    ) -> Child:
        if module == "agent":
            self.agents.append(free_address())
            words = [*words, "--port", self.agents[-1].rpartition(":")[2]]
        return super()._start_child(name, module, words, variables)


@contextlib.contextmanager
def scraping(folder: Path, environment: Scraped) -> Iterator[Prometheus]:
    address = free_address()
    jobs = {
        "watchtower": [environment.tower_url.removeprefix("http://")],
        "watchtower-agent": environment.agents,
    }
    configuration = {
        "global": {"scrape_interval": f"{SCRAPE_S}s"},
        "scrape_configs": [
            {"job_name": name, "static_configs": [{"targets": targets}]}
            for name, targets in jobs.items()
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(configuration))
    command = (
        "prometheus",
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=prometheus",
        f"--web.listen-address={address}",
    )
    with running(folder, address, *command):
        yield Prometheus(address)


@dataclass(frozen=True, slots=True)
class Series:
    """One series of one query: its legend, and its highest value in the time range."""

    legend: str
    peak: float


class Answers:
    """The answers of Prometheus to the queries at one moment."""

    def __init__(
        self, prometheus: Prometheus, began: float, values: dict[str, str], pages: dict[str, bytes]
    ) -> None:
        self.pages = pages
        """What the tower and each agent show at /metrics, by address."""
        self._prometheus = prometheus
        self._began, self._now = began, time.time()
        self._values = values

    def choices(self, variable: dict[str, Any]) -> list[str]:
        """The values that a variable offers, as Grafana asks for them."""
        metric, _, label = variable["query"]["query"].removeprefix("label_values(").rpartition(", ")
        name = label.removesuffix(")")
        match = PanelQuery("", "", "", metric, "", instant=False).fill(self._values)
        words = {"match[]": match, "start": self._began, "end": self._now}
        return self._prometheus.ask(f"label/{name}/values?{urllib.parse.urlencode(words)}")

    def value(self, variable: str) -> str:
        """The value of a variable in the queries."""
        return self._values[variable]

    def series(self, query: PanelQuery) -> list[Series]:
        """The series of a query, in the order of their legends."""
        words: dict[str, Any] = {"query": query.fill(self._values)}
        if query.instant:
            words |= {"time": self._now}
            path = "query"
        else:
            words |= {"start": self._began, "end": self._now, "step": SCRAPE_S}
            path = "query_range"
        found = self._prometheus.ask(f"{path}?{urllib.parse.urlencode(words)}")["result"]
        return sorted((self._read(query, one) for one in found), key=lambda one: one.legend)

    def _read(self, query: PanelQuery, found: dict[str, Any]) -> Series:
        labels = found["metric"]
        assert not {"instance", "job"} & labels.keys(), f"{query.place}: {labels}"
        points = found["values"] if "values" in found else [found["value"]]
        numbers = [float(value) for _, value in points]
        peak = max((one for one in numbers if not math.isnan(one)), default=math.nan)
        return Series(self._legend(query, labels), peak)

    def _legend(self, query: PanelQuery, labels: dict[str, str]) -> str:
        if query.legend != "__auto":
            text = re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), query.legend)
        else:
            text = ", ".join(f"{key}={labels[key]}" for key in sorted(labels)) or "-"
        for changing, name in (
            (self._values["incident"], "INCIDENT"),
            (platform.release(), "KERNEL"),
            (platform.python_version(), "PYTHON"),
            (__version__, "VERSION"),
        ):
            text = re.sub(rf"(?<![\w.-]){re.escape(changing)}(?![\w.-])", name, text)
        return text


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    """A real job of four ranks on two nodes, of which rank 2 was stopped."""
    # Agents find the ranks of their node by the name of the folder, on the whole machine.
    folder = tmp_path_factory.mktemp(f"dashboards-{os.getpid()}")
    job = TrainingJob("llama", "stdlib", Layout(ranks=4, nodes=2), folder, environment=SLURM)
    with (
        receiving() as receiver,
        Scraped(folder, receiver) as environment,
        scraping(folder, environment) as prometheus,
        contextlib.ExitStack() as stack,
    ):
        began = time.time()
        client = TowerClient(environment.tower_url)
        job.launch({"step_s": 0.2, "jitter": 0.15})
        stack.callback(job.end)

        def has_stepped() -> bool:
            job.poll()
            with contextlib.suppress(NotFoundError):
                return (client.verdict("llama")["step"] or 0) >= 60
            return False

        wait_until(has_stepped, "the job makes steps", patience_s=180)
        show_nic(folder / "root-drill-b/sys/class/net/lo")
        (folder / "root-drill-b/dev/shm").mkdir()
        environment.gpus.show("drill-b", [(job.pid(2), SPINS), (job.pid(3), WORKS + HOPPER)])
        wait_until(lambda: shows_processes(environment.agents), "the GPUs of the ranks are known")
        wait_until(lambda: is_checked(environment.agents), "the nodes are checked", 90)
        environment.kernel_logs.write("drill-b", XID_13)
        environment.kernel_logs.write("drill-b", OOM_KILL)
        job.signal(2, signal.SIGSTOP)
        wait_until(lambda: receiver.alerts, "the job is hung", patience_s=180)
        incident = receiver.alerts[0]["labels"]["incident"]
        time.sleep(5 * SCRAPE_S)
        verdict = client.verdict("llama")
        assert verdict["status"] == "hung", verdict
        values = {"training_job": "llama", "incident": incident, "node": "drill-b"}
        urls = [environment.tower_url, *(f"http://{each}" for each in environment.agents)]
        pages = {url: urllib.request.urlopen(f"{url}/metrics").read() for url in urls}
        yield Answers(prometheus, began, VALUES | values, pages)


def test_every_query_shows_what_happened(answers: Answers):
    """`tests/system/dashboards.golden.txt` describes its lines."""
    golden = read_golden()
    if not Path("/proc/pressure/cpu").exists():
        golden["node / Pressure / A"] = []
    assert golden.keys() == {query.place for query in QUERIES}
    wrong = []
    for query in QUERIES:
        found, expected = answers.series(query), golden[query.place]
        if [one.legend for one in found] != [legend for legend, _, _ in expected] or not all(
            low <= one.peak <= high for one, (_, low, high) in zip(found, expected, strict=True)
        ):
            wrong.append(query.place)
            wrong += [f"  {one.legend} | {one.peak:g}" for one in found]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", names())
def test_the_variables_offer_what_was_reported(answers: Answers, name: str):
    for variable in load(name)["templating"]["list"][1:]:
        assert answers.value(variable["name"]) in answers.choices(variable)


def test_the_incident_is_marked_on_time_series_and_the_first_attempt_is_not(answers: Answers):
    found = {query.place: answers.series(query) for query in ANNOTATIONS}
    incident = [Series("Incident INCIDENT", 1.0)]
    assert found == {
        "incident / Open / ": incident,
        "job / Incidents / ": incident,
        "job / Attempts / ": [],
    }


def test_promtool_accepts_the_metrics_of_the_tower_and_of_agents(answers: Answers, tmp_path: Path):
    assert len(answers.pages) == 3
    for page in answers.pages.values():
        assert page.count(b"# TYPE watchtower_") > 5
        assert promtool(tmp_path, "check", "metrics", given=page) == ""


def test_a_table_has_a_column_for_every_label(answers: Answers):
    for name in names():
        tables = {each["title"]: each for each in load(name)["panels"] if each["type"] == "table"}
        for query in panel_queries(name):
            if query.panel in tables:
                overrides = tables[query.panel]["fieldConfig"]["overrides"]
                columns = {each["matcher"]["options"] for each in overrides}
                for one in answers.series(query):
                    labels = {pair.partition("=")[0] for pair in one.legend.split(", ")}
                    assert labels <= columns, query.place


def shows_processes(agents: list[str]) -> bool:
    """Whether an agent has read the processes of both GPUs with a rank."""
    pages = (urllib.request.urlopen(f"http://{each}/metrics").read() for each in agents)
    return any(
        len(re.findall(rb"^watchtower_gpu_processes\{.* 1\.0$", p, re.M)) == 2 for p in pages
    )


def is_checked(agents: list[str]) -> bool:
    """Whether every agent has run the checks that it starts late."""
    pages = (urllib.request.urlopen(f"http://{each}/metrics").read() for each in agents)
    line = rb'^watchtower_agent_source_last_success_timestamp_seconds\{.*source="doctor"\} [1-9]'
    return all(re.search(line, page, re.M) for page in pages)


def show_nic(folder: Path) -> None:
    """Show an interface to an agent as one of a device; its counters are the real ones."""
    (folder / "device").mkdir(parents=True)
    for name, value in {"operstate": "up", "mtu": "9000", "carrier_changes": "1"}.items():
        (folder / name).write_text(f"{value}\n")


def read_golden() -> dict[str, list[tuple[str, float, float]]]:
    """By query: the legend of each series, and the range of its highest value."""
    found: dict[str, list[tuple[str, float, float]]] = {}
    place = ""
    for line in GOLDEN.read_text("utf-8").splitlines():
        if line.startswith("  "):
            legend, _, bounds = line.strip().rpartition(" | ")
            low, _, high = bounds.partition(" to ")
            found[place].append((legend, float(low), float(high or low)))
        elif line and not line.startswith("#"):
            place = line
            assert place not in found
            found[place] = []
    return found
