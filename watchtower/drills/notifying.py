"""`watchtower drill --notify DEST`: the drill's tower sends its alert to one real destination.

The tower marks the alert as a drill. The drill waits until the destination has accepted the alert,
and, after the end of the job, the end of the alert.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from watchtower.alerts.settings import ALERT_SECRETS
from watchtower.drills.drill_run import DrillRun

SENT_S = 30.0
"""Seconds for an alert to be sent after the verdict, and for its end after the end of the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """One destination, with its settings for the drill's tower."""

    destination: str
    table: Mapping[str, object] = field(default_factory=dict)
    """The table `[alerts]` of the drill's tower."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for that tower only."""


def make_notify(
    destination: str, alerts: Mapping[str, object], environment: Mapping[str, str] = os.environ
) -> Notify:
    """Return the settings of one destination. All other destinations are left out.

    `alerts` is the table `[alerts]` of a configuration file. Its file names may be relative.
    """
    table: dict[str, object] = {"drill": True}
    for key, value in alerts.items():
        if key.startswith(f"{destination}_"):
            is_file = key.endswith("_file") and bool(value)
            table[key] = str(Path(str(value)).absolute()) if is_file else value
    prefix = f"WATCHTOWER_{destination.upper()}_"
    secrets = {
        name: environment[name]
        for name in ALERT_SECRETS
        if name.startswith(prefix) and name in environment
    }
    return Notify(destination=destination, table=table, secrets=secrets)


def wait_for_alert(run: DrillRun, notify: Notify) -> bool:
    """Wait until the destination has the alert, and return whether it has. If it has not, the
    result of the drill is wrong."""
    is_sent = run.wait_for(lambda: _is_sent(run, notify), SENT_S)
    if is_sent:
        run.note(f"the alert was sent to {notify.destination}, marked as a drill")
    else:
        run.complain(f"no alert was sent to {notify.destination}{_explain(run, notify)}")
    return is_sent


def wait_for_end(run: DrillRun, notify: Notify) -> None:
    """Wait until the destination has the end of the alert. The job has ended before."""
    if run.wait_for(lambda: run.are_incidents_closed() and _is_sent(run, notify), SENT_S):
        run.note(f"the end of the alert was sent to {notify.destination}")
    else:
        text = f"the end of the alert was not sent to {notify.destination}"
        run.complain(f"{text}{_explain(run, notify)}; end the alert there by hand")


def _is_sent(run: DrillRun, notify: Notify) -> bool:
    """Return whether the destination has received something, and nothing waits."""
    label = f'{{destination="{notify.destination}"}}'
    sent = run.read_metric(f"watchtower_outbox_deliveries_total{label}")
    return bool(sent) and run.read_metric(f"watchtower_outbox_waiting{label}") == 0


def _explain(run: DrillRun, notify: Notify) -> str:
    """Return the last reason in the log of the drill's tower; empty if there is none."""
    mark = f"was not sent to {notify.destination}: "
    lines = [line for line in run.environment.read_tower_log().splitlines() if mark in line]
    return f": {lines[-1].partition(mark)[2]}" if lines else ""
