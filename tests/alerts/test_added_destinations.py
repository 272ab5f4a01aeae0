"""A destination that is configured while incidents are open."""

from __future__ import annotations

from pathlib import Path

from tests.alerts.apis import serving
from tests.alerts.notifying import Run, an_incident, closed, opened, tell
from tests.alerts.receivers import Receiver
from tests.alerts.test_outage_alerts import identities, on_mount
from watchtower.alerts.destinations.alertmanager import Alertmanager
from watchtower.alerts.destinations.webhook import Webhook


def test_a_destination_that_is_added_gets_the_alerts_that_are_open(
    tmp_path: Path, receiver: Receiver
):
    async def story(run: Run) -> None:
        await run.save(an_incident())
        run.notifier.note(opened(an_incident()))
        await run.wait_for(1)
        await run.settle()
        run.destinations = [Webhook(receiver.url), Webhook(receiver.url, name="added")]
        await run.restart()
        await run.wait_for(2)
        await run.settle()
        await run.restart()
        await run.settle()
        assert receiver.keys == ["01A:1", "01A:1"]

    tell(story, tmp_path, receiver)


def test_a_destination_that_is_added_gets_the_message_of_an_open_outage(
    tmp_path: Path, receiver: Receiver
):
    async def story(run: Run) -> None:
        for ident in ("01A", "01B"):
            await run.save(on_mount(ident))
            run.notifier.note(opened(on_mount(ident)))
        await run.settle()
        run.destinations = [Webhook(receiver.url)]
        await run.restart()
        (message,) = await run.wait_for(1)
        assert [ident for ident, _ in identities(message)] == ["01A", "01B"]
        for ident in ("01A", "01B"):
            run.notifier.note(closed(on_mount(ident)))
        assert (await run.wait_for(2))[1]["status"] == "resolved"
        await run.settle()
        assert set(receiver.keys) == {"01A:2", "01A:4"}

    with serving() as api:
        tell(story, tmp_path, receiver, [Alertmanager(f"{api.url}/api/v2/alerts")])
