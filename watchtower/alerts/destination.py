"""A destination of alerts: a name and one call that delivers an alert."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from watchtower.alerts.alert import Alert


class DeliveryError(Exception):
    """An alert could not be delivered. The message contains the reason, without any secret."""

    def __init__(
        self, reason: str, *, is_permanent: bool = False, retry_after_s: float | None = None
    ) -> None:
        """`is_permanent`: a retry fails until the configuration or the destination changes.

        `retry_after_s`: the destination asks for this many seconds without requests.
        """
        super().__init__(reason)
        self.is_permanent, self.retry_after_s = is_permanent, retry_after_s


class Destination(Protocol):
    """One place to which alerts are sent."""

    @property
    def name(self) -> str:
        """A word for logs, metrics and commands, such as "slack"."""

    @property
    def repeat_s(self) -> float | None:
        """Seconds after which an open alert must be sent again; None: never."""

    @property
    def end_delay_s(self) -> float:
        """Seconds by which the end of an alert, or its acknowledgement, is delayed."""

    @property
    def joins_outages(self) -> bool:
        """Whether an outage is one alert, with its incidents in `members`. False if the
        destination groups alerts itself: each incident is then an alert."""

    def deliver(self, alert: Alert, receipt: str) -> str:
        """Bring the destination to the state of `alert`. Raises DeliveryError.

        `receipt` is the result of the last delivery with this key (`alert.incident`), empty before
        the first one. The result is the new receipt. The call blocks, and must return within 30 s.
        The same alert may be delivered twice if the tower is killed in between: use a key for each
        version where the destination has one.
        """


@runtime_checkable
class ListDestination(Destination, Protocol):
    """A destination that accepts many alerts in one request. It has no receipts."""

    @property
    def most(self) -> int:
        """Alerts that one request may contain."""

    def deliver_all(self, alerts: Sequence[Alert]) -> None:
        """Bring the destination to the state of all these alerts. Raises DeliveryError.

        It accepts the valid ones, also if it refuses another one of them.
        """
