"""The documented rules under `promtool`: what fires, for how long, with which text."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.system.monitoring import documented, needs_prometheus
from tests.system.promtool import SCRAPED, check, promtool
from watchtower.api.job_metrics import CLOSED_SHOWN_S

pytestmark = needs_prometheus

A = 'incident="01A",training_job="llama-a"'
B = 'incident="01B",training_job="llama-b"'
RUNBOOK = "https://runbooks.example/alerts/WatchtowerJobHung.md"
DASHBOARD = "https://grafana.example/d/watchtower-incident?var-incident="
FIRING = 'count by (training_job) (ALERTS{alertname="WatchtowerJobHung",alertstate="firing"})'


def firing(moment: str, *jobs: str) -> dict[str, Any]:
    """The assertion that exactly these jobs have one alert each at a moment."""
    samples = [{"labels": f'{{training_job="{job}"}}', "value": 1} for job in jobs]
    return {"expr": FIRING, "eval_time": moment, "exp_samples": samples}


def hung(identity: str, values: str = "1x400", scraped: str = SCRAPED) -> dict[str, str]:
    """An incident that is open, neither acknowledged nor silenced."""
    return {
        f"watchtower_incident_open{{{identity},{scraped}}}": values,
        f"watchtower_incident_acked{{{identity},{scraped}}}": "0x400",
        f"watchtower_incident_silenced{{{identity},{scraped}}}": "0x400",
    }


def test_promtool_accepts_the_files(tmp_path: Path):
    rules = documented("watchtower.rules.yml").count("- alert: ")
    found = promtool(tmp_path, "check", "rules", "watchtower.rules.yml")
    assert f"{rules} rules found" in found
    assert "SUCCESS" in promtool(tmp_path, "check", "config", "prometheus.yml")
    subprocess.run(["amtool", "check-config", "alertmanager.yml"], cwd=tmp_path, check=True)


def test_each_open_incident_has_an_alert(tmp_path: Path):
    series = hung(A) | hung(B, "_x12 1x100")
    check(
        tmp_path,
        series,
        promql_expr_test=[firing("0s", "llama-a"), firing("70s", "llama-a", "llama-b")],
    )


@pytest.mark.parametrize(
    "changed",
    [
        f"watchtower_incident_silenced{{{B},{SCRAPED}}}",
        f"watchtower_incident_acked{{{B},{SCRAPED}}}",
    ],
)
def test_a_silence_or_an_ack_ends_one_alert_while_it_lasts(tmp_path: Path, changed: str):
    both = firing("55s", "llama-a", "llama-b")
    silenced, again = firing("60s", "llama-a"), firing("180s", "llama-a", "llama-b")
    series = hung(A) | hung(B) | {changed: "0x11 1x20 0x100"}
    check(tmp_path, series, promql_expr_test=[both, silenced, again])


def test_a_silence_lasts_while_the_tower_is_not_scraped(tmp_path: Path):
    silenced = f"watchtower_incident_silenced{{{B},{SCRAPED}}}"
    acked = f"watchtower_incident_acked{{{A},{SCRAPED}}}"
    values = "1x11 stale _x200"
    series = hung(A, values) | hung(B, values) | {silenced: values, acked: values}
    check(
        tmp_path,
        series,
        promql_expr_test=[firing(moment) for moment in ("50s", "60s", "200s", "350s", "360s")],
    )


def test_an_incident_of_shadow_mode_alerts_when_it_leaves_shadow_mode(tmp_path: Path):
    """Its identity is the same: `watchtower_incident_open` begins when the other series ends."""
    shadow = f"watchtower_shadow_incident_open{{{B},{SCRAPED}}}"
    series = hung(A) | hung(B, "_x24 1x100") | {shadow: "1x23 stale _x100"}
    moments = [firing("60s", "llama-a"), firing("115s", "llama-a")]
    check(tmp_path, series, promql_expr_test=[*moments, firing("120s", "llama-a", "llama-b")])


def test_an_alert_ends_with_its_incident(tmp_path: Path):
    after = f"{CLOSED_SHOWN_S + 60:g}s"
    values = f"1x11 0x{CLOSED_SHOWN_S / 5 - 1:g} stale _x100"
    check(
        tmp_path,
        hung(A, values),
        promql_expr_test=[firing("55s", "llama-a"), firing("60s"), firing(after)],
    )


def test_an_alert_outlives_a_restart_of_the_tower_and_ends_five_minutes_after_the_last_scrape(
    tmp_path: Path,
):
    one = firing("355s", "llama-a"), firing("360s")
    check(tmp_path, hung(A, "1x11 stale _x200"), promql_expr_test=list(one))
    back = [firing(f"{moment}s", "llama-a") for moment in range(0, 600, 5)]
    check(tmp_path, hung(A, "1x11 stale _x40 1x200"), promql_expr_test=back)


def test_a_tower_that_is_scraped_twice_or_moves_has_one_alert(tmp_path: Path):
    moved = 'instance="new:19660",job="watchtower"'
    other = 'instance="tower:19660",job="other"'
    series = hung(A, "1x11 stale _x200") | hung(A, "_x14 1x200", moved) | hung(A, scraped=other)
    check(tmp_path, series, promql_expr_test=[firing(at, "llama-a") for at in ("30s", "75s", "9m")])


def test_a_verdict_that_changes_changes_the_text_of_one_alert(tmp_path: Path):
    info = f'watchtower_incident_info{{{A},{SCRAPED},url="https://t/i/01A",'
    series = hung(A) | {
        info + 'cause="unknown",suspects="0"}': "1x11 stale",
        info + 'cause="straggler",rank="3",node="n1",suspects="2"}': "_x11 1x11 stale",
        info + 'cause="dataloader_stall",rank="2",node="n0",suspects="1"}': "_x23 1x11 stale",
        f"watchtower_incident_opened_timestamp_seconds{{{A},{SCRAPED}}}": "1700000000x300",
        'watchtower_job_evidence_ratio{training_job="llama-a",source="stacks"}': "0.9375x300",
    }
    texts = {
        "30s": "llama-a is hung: no rank is blamed, unknown",
        "90s": "llama-a is hung: rank 3 on n1, straggler (first of 2 ranks)",
        "150s": "llama-a is hung: rank 2 on n0, dataloader_stall",
        "190s": "llama-a is hung: the tower does not answer at present",
    }
    labels = {"severity": "critical", "incident": "01A", "training_job": "llama-a"}
    description = (
        "Open since 2023-11-14 22:13:20 +0000 UTC. A kill now loses evidence (stacks of only "
        "93.75% of the ranks are collected). Before you call: watchtower incident 01A. "
        "Acknowledge: watchtower ack 01A."
    )
    expected = [
        {
            "eval_time": at,
            "alertname": "WatchtowerJobHung",
            "exp_alerts": [
                {
                    "exp_labels": labels,
                    "exp_annotations": {
                        "summary": summary,
                        "description": description,
                        "url": "https://t/i/01A" if at != "190s" else "",
                        "runbook_url": RUNBOOK,
                        "dashboard_url": f"{DASHBOARD}01A",
                    },
                }
            ],
        }
        for at, summary in texts.items()
    ]
    check(tmp_path, series, alert_rule_test=expected)


def test_the_identity_is_on_the_alert_and_the_text_says_whom_to_call(tmp_path: Path):
    identity = {"kind": "hung", "domain": "storage", "user": "alice"}
    late = {"kind": "never_started", "domain": "unknown"}
    series = {
        f"watchtower_incident_open{{{_labels(A, identity)},{SCRAPED}}}": "1x400",
        f"watchtower_incident_open{{{_labels(B, late)},{SCRAPED}}}": "1x400",
    }
    hung_alert = alert("llama-a", "01A", **identity)
    hung_alert["exp_annotations"]["summary"] += ". Call: storage"
    not_started = alert("llama-b", "01B", text="did not start", severity="warning", **late)
    not_started["exp_annotations"]["runbook_url"] = RUNBOOK.replace("JobHung", "JobNeverStarted")
    at = {"eval_time": "60s"}
    check(
        tmp_path,
        series,
        alert_rule_test=[
            {**at, "alertname": "WatchtowerJobHung", "exp_alerts": [hung_alert]},
            {**at, "alertname": "WatchtowerJobNeverStarted", "exp_alerts": [not_started]},
        ],
    )


def _labels(identity: str, more: dict[str, str]) -> str:
    return ",".join([identity, *(f'{name}="{value}"' for name, value in more.items())])


def test_an_incident_with_a_shared_cause_has_it_as_a_label_and_says_how_many_have_it(
    tmp_path: Path,
):
    shared = 'shared_cause="mount nfs1:/data"'
    # C was open and is over, D hangs on something else.
    series = {
        f"watchtower_incident_open{{{identity},{SCRAPED}}}": values
        for identity, values in (
            (f"{A},{shared}", "1x400"),
            (f"{B},{shared}", "1x400"),
            (f'incident="01C",training_job="llama-c",{shared}', "0x400"),
            ('incident="01D",training_job="llama-d",shared_cause="node n7"', "1x400"),
        )
    }
    expected = [
        alert("llama-a", "01A", "mount nfs1:/data", 2),
        alert("llama-b", "01B", "mount nfs1:/data", 2),
        alert("llama-d", "01D", "node n7", 1),
    ]
    check(
        tmp_path,
        series,
        alert_rule_test=[
            {"eval_time": "60s", "alertname": "WatchtowerJobHung", "exp_alerts": expected}
        ],
    )


def alert(
    job: str,
    incident: str,
    shared: str = "",
    count: int = 0,
    text: str = "is hung",
    severity: str = "critical",
    **identity: str,
) -> dict[str, Any]:
    """An alert of a job that no further series describes."""
    labels = {"incident": incident, "training_job": job, "shared_cause": shared, **identity}
    others = f"Open incidents with the same {shared}: {count}. " if shared else ""
    return {
        "exp_labels": {"severity": severity} | {k: v for k, v in labels.items() if v},
        "exp_annotations": {
            "summary": f"{job} {text}: the tower does not answer at present",
            "description": (
                f"{others}Before you call: watchtower incident {incident}. "
                f"Acknowledge: watchtower ack {incident}."
            ),
            "url": "",
            "runbook_url": RUNBOOK,
            "dashboard_url": f"{DASHBOARD}{incident}",
        },
    }
