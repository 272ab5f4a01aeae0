"""500 open alerts in one Alertmanager: a real store, real HTTP, real time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.alerts.apis import Api, serving
from tests.alerts.notifying import an_incident, closed, opened
from watchtower.alerts.destinations.alertmanager import Alertmanager
from watchtower.alerts.notifier import AlertNotifier
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.clock import Clock

OPEN = 500


def received(api: Api) -> set[str]:
    return {alert["labels"]["incident"] for body in api.bodies for alert in body}


async def wait_for(api: Api, count: int) -> None:
    while len(received(api)) < count:
        await asyncio.sleep(0.01)


@pytest.mark.long
def test_500_open_alerts_delay_no_new_one_and_are_all_repeated(tmp_path: Path):
    async def story(api: Api) -> None:
        store = SqliteStore(tmp_path / "watchtower.db")
        destination = Alertmanager(f"{api.url}/api/v2/alerts", repeat_s=3.0, end_delay_s=0.0)
        notifier = AlertNotifier([destination], store, Clock())
        notifier.start(lambda _: False)
        try:
            incidents = [an_incident(f"i{number}", f"job-{number}") for number in range(OPEN)]
            for incident in incidents:
                notifier.note(opened(incident))
            await wait_for(api, OPEN)
            assert len(api.requests) <= 3
            for number in range(3):
                sent = len(api.requests)
                notifier.note(opened(an_incident(f"new-{number}", f"new-{number}")))
                await wait_for(api, OPEN + number + 1)
                assert f"new-{number}" in str(api.bodies[: sent + 2])  # one was on its way
            sent = len(api.requests)
            while len(api.requests) <= sent + 2:
                await asyncio.sleep(0.01)
            repeated = {one["labels"]["incident"] for body in api.bodies[sent:] for one in body}
            assert repeated >= {incident.id for incident in incidents}
            notifier.note(closed(incidents[7]))
            while incidents[7].id in notifier.outboxes()["alertmanager"].entries:
                await asyncio.sleep(0.01)
        finally:
            await notifier.close()
            store.close()

    with serving() as api:
        asyncio.run(asyncio.wait_for(story(api), 90))
