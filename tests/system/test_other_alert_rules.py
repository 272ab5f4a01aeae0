"""The rules beside that of a hung job: when each fires, when not, and what ends it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.metric_table import AGENT_METRICS
from tests.system import promtool
from tests.system.monitoring import CONFIGURATION, needs_prometheus
from tests.system.promtool import SCRAPED, check
from watchtower.api.metric_table import TOWER_METRICS

pytestmark = needs_prometheus

RULES = "".join(
    (CONFIGURATION / name).read_text("utf-8") for name in (promtool.RULES, promtool.ADVISORIES)
)
AGENT = 'instance="gpu-042:19650",job="watchtower-agent"'
UP = f"up{{{SCRAPED}}}"
GRAFANA = "https://grafana.example/d"
MINUTE = 12
"""Scrapes in a minute."""


def slow(job: str) -> str:
    return f'watchtower_job_status{{training_job="{job}",status="slow",{SCRAPED}}}'


JOB_SILENCED = 'watchtower_job_silenced{training_job="%s",'


def evidence(job: str, source: str) -> str:
    labels = f'training_job="{job}",source="{source}",{SCRAPED}'
    return f"watchtower_job_evidence_ratio{{{labels}}}"


def waits(destination: str) -> str:
    return f'watchtower_outbox_oldest_seconds{{destination="{destination}",{SCRAPED}}}'


def blamed(node: str, window: str) -> str:
    return f'watchtower_node_incidents{{node="{node}",window="{window}",{SCRAPED}}}'


DEAD = 'incident="01A",training_job="a",kind="ended",domain="node",user="alice"'
DIED = f"watchtower_incident_ended{{{DEAD},{SCRAPED}}}"


def tower(name: str) -> str:
    return f"watchtower_{name}{{{SCRAPED}}}"


XID = 'gpu="0000:3b:00",xid="79",fatal="true",action="reboot_node"'
XID_79 = f'watchtower_xid_last_timestamp_seconds{{node="gpu-042",{XID},{AGENT}}}'

STUCK = f'watchtower_nvml_stuck_seconds{{node="gpu-042",{AGENT}}}'

PROBLEM = 'problem="nvlinks_lost",gpu="0000:3b:00"'
LINKS_LOST = f'watchtower_node_problem{{node="gpu-042",{PROBLEM},{AGENT}}}'

PROCESSES = f'watchtower_gpu_processes{{node="gpu-042",gpu="3",{AGENT}}}'
RANKS = f'watchtower_agent_ranks{{node="gpu-042",{AGENT}}}'
UNWATCHED = f'watchtower_ranks_unwatched{{reason="second_claim",{SCRAPED}}}'

ADVISED = f'watchtower_advisories{{advisory="nan_loss",level="fatal",{SCRAPED}}}'

TROUBLES = {
    "WatchtowerJobSlow": (slow("a"), "0", "1", 600),
    "WatchtowerIncidentsHidden": (tower("incidents_hidden"), "0", "3", 0),
    "WatchtowerNotDeciding": (tower("tick_age_seconds"), "0.5", "16", 30),
    "WatchtowerAgentMissing": (tower("agents_silent"), "0", "2", 120),
    "WatchtowerEvidenceDegraded": (evidence("a", "process"), "1", "0.85", 900),
    "WatchtowerAlertsNotDelivered": (waits("slack"), "119", "121", 0),
    "WatchtowerNodeSuspectRepeated": (blamed("gpu-042", "7d"), "2", "3", 0),
    "WatchtowerJobDied": (DIED, "0", "1", 0),
    "WatchtowerGpuFault": (XID_79, "-3600", "50", 0),
    "WatchtowerDriverStuck": (STUCK, "0", "31", 0),
    "WatchtowerNodeProblem": (LINKS_LOST, "0", "1", 300),
    "WatchtowerAdvisory": (ADVISED, "0", "1", 300),
    "WatchtowerGpuNodeUnwatched": (PROCESSES, "0", "2", 1800),
    "WatchtowerRanksUnwatched": (UNWATCHED, "0", "8", 300),
}
"""By alert: a series, its value without and with the trouble, and the seconds before it fires."""


def fires(alert: str, at_s: int, count: int = 1) -> dict[str, Any]:
    """The assertion that an alert fires so many times at a moment."""
    expr = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
    samples = [{"labels": "{}", "value": count}] if count else []
    return {"expr": expr, "eval_time": f"{at_s}s", "exp_samples": samples}


@pytest.mark.parametrize("alert", TROUBLES)
def test_an_alert_fires_after_its_wait_and_ends_with_the_trouble(tmp_path: Path, alert: str):
    series, well, ill, wait_s = TROUBLES[alert]
    values = f"{well}x11 {ill}x{wait_s // 5 + MINUTE} {well}x100"
    over_s = 60 + wait_s + 65
    check(
        tmp_path,
        {series: values, UP: "1x500"},
        promql_expr_test=[
            fires(alert, 55, 0),
            *([fires(alert, 60 + wait_s - 5, 0)] if wait_s else []),
            fires(alert, 60 + wait_s),
            fires(alert, over_s - 5),
            fires(alert, over_s, 0),
        ],
    )


@pytest.mark.parametrize("alert", TROUBLES)
def test_a_tower_that_is_away_for_a_minute_ends_no_alert(tmp_path: Path, alert: str):
    series, _, ill, wait_s = TROUBLES[alert]
    since = wait_s // 5 + MINUTE
    values = f"{ill}x{since} stale _x{MINUTE - 1} {ill}x100"
    moments = range(wait_s, wait_s + 300, 5)
    checks = [fires(alert, moment) for moment in moments]
    check(tmp_path, {series: values, UP: "1x500"}, promql_expr_test=checks)


@pytest.mark.parametrize("alert", [name for name in TROUBLES if TROUBLES[name][-1]])
def test_a_moment_of_trouble_fires_no_alert_that_waits(tmp_path: Path, alert: str):
    series, well, ill, wait_s = TROUBLES[alert]
    values = f"{well}x11 {ill}x{wait_s // 5 - 2} {well}x100"
    checks = [fires(alert, moment, 0) for moment in range(0, wait_s + 120, 5)]
    check(tmp_path, {series: values}, promql_expr_test=checks)


@pytest.mark.parametrize(
    ("alert", "make", "value", "silence"),
    [
        ("WatchtowerJobSlow", slow, "1", JOB_SILENCED),
        ("WatchtowerJobSlow", slow, "1", 'watchtower_job_shadow{training_job="%s",'),
        ("WatchtowerEvidenceDegraded", lambda job: evidence(job, "heartbeat"), "0.5", JOB_SILENCED),
        (
            "WatchtowerJobDied",
            lambda job: DIED.replace('"a"', f'"{job}"').replace("01A", f"01{job}"),
            "1",
            'watchtower_incident_silenced{incident="01%s",',
        ),
    ],
)
def test_a_silence_or_shadow_mode_ends_the_alert_of_one_job_only(
    tmp_path: Path, alert: str, make: Callable[[str], str], value: str, silence: str
):
    silenced = silence + SCRAPED + "}"
    series = {make("a"): f"{value}x400", make("b"): f"{value}x400", silenced % "a": "0x400"}
    series[silenced % "b"] = "0x200 1x200"
    checks = [fires(alert, 960, 2), fires(alert, 1000, 2), fires(alert, 1010, 1)]
    check(tmp_path, series, promql_expr_test=checks)


def test_a_job_without_heartbeats_is_not_degraded(tmp_path: Path):
    name = "WatchtowerEvidenceDegraded"
    series = {
        evidence("none", "heartbeat"): "0x400",
        evidence("none", "process"): "1x400",
        evidence("some", "heartbeat"): "0.5x400",
        evidence("late", "stacks"): "0x400",
        evidence("cpu", "gpu"): "0x400",
        evidence("gloo", "collective_log"): "0x400",
    }
    check(tmp_path, series, promql_expr_test=[fires(name, 895, 0), fires(name, 1200, 2)])


def test_an_end_of_a_job_is_one_alert_whose_text_follows_its_verdict(tmp_path: Path):
    info = f'watchtower_incident_info{{incident="01A",training_job="a",{SCRAPED},'
    series = {
        DIED: "1x100 stale",
        info + 'cause="unknown",rank="",node="",suspects="0",url=""}': "1x11 stale",
        info + 'cause="node_lost",rank="3",node="n1",suspects="2",url=""}': "_x11 1x100",
    }
    name = "WatchtowerJobDied"
    texts = {
        "30s": "a ended because of a node: no rank is blamed, unknown. Call: node",
        "90s": "a ended because of a node: rank 3 on n1, node_lost (first of 2 ranks). Call: node",
    }
    labels = {"severity": "warning", "incident": "01A", "training_job": "a"}
    labels |= {"kind": "ended", "domain": "node", "user": "alice"}
    expected = [
        {
            "eval_time": at,
            "alertname": name,
            "exp_alerts": [
                {
                    "exp_labels": labels,
                    "exp_annotations": {
                        "summary": text,
                        "description": (
                            "All its processes have ended. Details: watchtower incident 01A. This "
                            "alert ends by itself after some minutes."
                        ),
                        "url": "",
                        "runbook_url": f"https://runbooks.example/alerts/{name}.md",
                        "dashboard_url": f"{GRAFANA}/watchtower-incident?var-incident=01A",
                    },
                }
            ],
        }
        for at, text in texts.items()
    ]
    once = [fires(name, moment) for moment in range(0, 780, 60)]
    check(tmp_path, series, alert_rule_test=expected, promql_expr_test=once)
    user_code = DIED.replace('domain="node"', 'domain="user_code"')
    check(tmp_path, {user_code: "1x100"}, promql_expr_test=[fires(name, 60, 0)])


@pytest.mark.parametrize(
    ("series", "values"),
    [
        (tower("store_failing"), "0x11 1x100"),
        (tower("diagnoses_killed_total"), "0x11 0+1x100"),
    ],
)
def test_a_store_that_fails_and_killed_diagnoses_are_reported(
    tmp_path: Path, series: str, values: str
):
    checks = [fires("WatchtowerNotDeciding", 55, 0), fires("WatchtowerNotDeciding", 300)]
    check(tmp_path, {series: values}, promql_expr_test=checks)


def test_a_few_killed_diagnoses_are_not_reported(tmp_path: Path):
    series = {tower("diagnoses_killed_total"): "0x11 3x300"}
    checks = [fires("WatchtowerNotDeciding", moment, 0) for moment in range(0, 900, 60)]
    check(tmp_path, series, promql_expr_test=checks)


def test_an_agent_that_cannot_be_scraped_is_reported(tmp_path: Path):
    series = {f"up{{{AGENT}}}": "1x11 0x60", tower("agents_silent"): "0x100"}
    name = "WatchtowerAgentMissing"
    check(tmp_path, series, promql_expr_test=[fires(name, 175, 0), fires(name, 180)])


def test_a_suspicious_advisory_is_no_alert(tmp_path: Path):
    series = {ADVISED.replace("fatal", "suspicious"): "1x200", UP: "1x200"}
    check(tmp_path, series, promql_expr_test=[fires("WatchtowerAdvisory", 900, 0)])


def test_a_node_whose_gpus_have_processes_and_ranks_is_watched(tmp_path: Path):
    name, other = "WatchtowerGpuNodeUnwatched", RANKS.replace("gpu-042", "gpu-043")
    series = {PROCESSES: "2x400", RANKS: "0x11 8x389", other: "0x400"}
    check(tmp_path, series, promql_expr_test=[fires(name, 1860, 0)])


def test_a_tower_that_is_down_for_a_minute_is_reported(tmp_path: Path):
    name = "WatchtowerDown"
    checks = [fires(name, 55, 0), fires(name, 115, 0), fires(name, 120), fires(name, 230, 0)]
    check(tmp_path, {UP: "1x11 0x30 1x100"}, promql_expr_test=checks)
    checks = [fires(name, moment, 0) for moment in range(0, 300, 5)]
    check(tmp_path, {UP: "1x11 0x11 1x100"}, promql_expr_test=checks)


def test_towers_that_are_all_on_standby_are_reported(tmp_path: Path):
    name, standby = "WatchtowerDown", 'watchtower_role{role="standby",instance="b:19660"}'
    owner = 'watchtower_role{role="owner",instance="a:19660"}'
    series = {UP: "1x100", standby: "1x100", owner: "1x11 0x100"}
    checks = [fires(name, 55, 0), fires(name, 115, 0), fires(name, 125)]
    check(tmp_path, series, promql_expr_test=checks)
    taken_over = {UP: "1x100", standby: "1x11 0x100", owner: "1x10 0x3 1x100"}
    checks = [fires(name, moment, 0) for moment in range(0, 300, 5)]
    check(tmp_path, taken_over, promql_expr_test=checks)


def test_the_watchdog_always_fires(tmp_path: Path):
    checks = [fires("WatchtowerWatchdog", moment) for moment in (0, 60, 600)]
    check(tmp_path, {UP: "0x200"}, promql_expr_test=checks)


@pytest.mark.parametrize(
    ("alert", "at", "series", "summary", "description"),
    [
        (
            "WatchtowerJobSlow",
            "10m",
            {
                slow("a/b"): "1x300",
                'watchtower_job_step_seconds{training_job="a/b",percentile="50"}': "2.5x300",
            },
            "a/b is slower than usual: a step takes 2.5s",
            "watchtower why shows which rank slows down the job.",
        ),
        (
            "WatchtowerJobSlow",
            "10m",
            {slow("a/b"): "1x300"},
            "a/b is slower than usual",
            "watchtower why shows which rank slows down the job.",
        ),
        (
            "WatchtowerNotDeciding",
            "2m",
            {tower("tick_age_seconds"): "90x100", tower("store_failing"): "1x100"},
            "The tower no longer decides, or no longer stores what it decides",
            "The last check of the jobs was 1m 30s ago. Incidents and dumps cannot be written. "
            "The reason is in the answer of /readyz and in the log of the tower.",
        ),
        (
            "WatchtowerAlertsNotDelivered",
            "1m",
            {
                waits("slack"): "200x100",
                f'watchtower_outbox_waiting{{destination="slack",{SCRAPED}}}': "7x100",
            },
            "Alerts to slack have waited for 3m 20s",
            "Alerts that wait: 7. The log of the tower has the reason. Test the destination: "
            "watchtower alert test slack.",
        ),
        (
            "WatchtowerNodeSuspectRepeated",
            "1m",
            {blamed("gpu-042", "7d"): "4x100", blamed("gpu-043", "30d"): "9x100"},
            "gpu-042 was to blame in 4 incidents in 7 days",
            "Test the node before the next job runs on it. The alert ends when fewer than 3 of "
            "these incidents are younger than 7 days.",
        ),
        (
            "WatchtowerGpuFault",
            "1m",
            {XID_79: "50x100"},
            "Xid 79 on GPU 0000:3b:00 of gpu-042: reboot_node",
            "The GPU driver reported an error of the hardware in the last 10 minutes. If a job "
            "hangs there, its own alert names the rank.",
        ),
        (
            "WatchtowerDriverStuck",
            "1m",
            {STUCK: "75x100"},
            "The GPU driver of gpu-042 has not answered for 1m 15s",
            "A call of the agent does not return. The log of the agent names the call and the GPU. "
            "If a job hangs there, its own alert names the rank.",
        ),
        (
            "WatchtowerNodeProblem",
            "6m",
            {LINKS_LOST: "1x100"},
            "gpu-042 has a problem: nvlinks_lost on GPU 0000:3b:00",
            "Test the node before the next job runs on it. If a job hangs there, its own alert "
            "names the rank.",
        ),
        (
            "WatchtowerGpuNodeUnwatched",
            "31m",
            {PROCESSES: "2x400", PROCESSES.replace('"3"', '"4"'): "1x400", RANKS: "0x400"},
            "gpu-042 has 3 processes on its GPUs, and no rank is seen there",
            "If they are a training job, its hangs are not seen. watchtower-agent doctor shows "
            "what the agent sees.",
        ),
        (
            "WatchtowerRanksUnwatched",
            "6m",
            {UNWATCHED: "8x100"},
            "8 processes that seem to be ranks are not watched: second_claim",
            "No verdict and no alert is about them. watchtower jobs lists them, with what to do.",
        ),
        (
            "WatchtowerAgentMissing",
            "3m",
            {
                tower("agents_silent"): "2x100",
                f'watchtower_agent_silent{{node="gpu-042",{SCRAPED}}}': "1x100",
                f'watchtower_agent_silent{{node="gpu-043",{SCRAPED}}}': "1x100",
                f"up{{{AGENT}}}": "0x100",
            },
            "2 agents are silent: hangs on their nodes are not explained",
            "No report comes from gpu-042 gpu-043. Prometheus cannot scrape gpu-042:19650. "
            "At most 16 of each are named.",
        ),
    ],
)
def test_the_text_of_an_alert(tmp_path, alert, at, series, summary, description):
    labels = {"training_job": "a/b"} if "Job" in alert else {}
    if alert == "WatchtowerAlertsNotDelivered":
        labels = {"destination": "slack"}
    severity = "critical" if "Not" in alert else "warning"
    severity = "info" if alert == "WatchtowerGpuNodeUnwatched" else severity
    if alert == "WatchtowerRanksUnwatched":
        labels = {"reason": "second_claim"}
    dashboard = "watchtower-job?var-training_job=a%2Fb" if "Job" in alert else "watchtower-self"
    if "Node" in alert or "Gpu" in alert or "Driver" in alert:
        labels, dashboard = {"node": "gpu-042"}, "watchtower-node?var-node=gpu-042"
    if alert == "WatchtowerGpuFault":
        labels |= {"gpu": "0000:3b:00", "xid": "79", "action": "reboot_node"}
    if alert == "WatchtowerNodeProblem":
        labels |= {"problem": "nvlinks_lost", "gpu": "0000:3b:00"}
    if alert in ("WatchtowerGpuFault", "WatchtowerDriverStuck", "WatchtowerNodeProblem"):
        labels |= {"shared_cause": "node gpu-042"}
    expected = {
        "exp_labels": {"severity": severity, **labels},
        "exp_annotations": {
            "summary": summary,
            "description": description,
            "runbook_url": f"https://runbooks.example/alerts/{alert}.md",
            "dashboard_url": f"{GRAFANA}/{dashboard}",
        },
    }
    check(
        tmp_path,
        series,
        alert_rule_test=[{"eval_time": at, "alertname": alert, "exp_alerts": [expected]}],
    )


def test_each_rule_has_a_severity_a_text_and_the_runbook_of_its_name():
    rules = RULES.split("- alert: ")[1:]
    assert len(rules) == 18
    for rule in rules:
        name = rule.split("\n", 1)[0]
        assert re.search(r"severity: (critical|warning|info|none)\n", rule), name
        assert "summary: " in rule, name
        assert "description: " in rule, name
        assert f"runbook_url: https://runbooks.example/alerts/{name}.md\n" in rule
        assert re.search(r"dashboard_url: (\*|(&\w+ )?https://grafana.example/d/watchtower-)", rule)


def test_each_metric_of_a_rule_is_declared():
    names = set(re.findall(r"watchtower_\w+", RULES))
    assert names <= {spec.name for spec in (*TOWER_METRICS, *AGENT_METRICS)}
