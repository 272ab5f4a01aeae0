"""Shadow mode: incidents are counted and listed, and no alert is sent.

It is for the first week on a cluster, and for new causes. Whether an incident is in shadow mode is
decided when it opens. It leaves shadow mode if a later verdict has a cause that is not in shadow
mode, or if the tower starts with other settings. It never enters shadow mode later, because an
alert that fires must not end by a corrected verdict.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from watchtower.incidents.incident import Incident
from watchtower.wire.verdict import Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowMode:
    """Which incidents have no alert."""

    everything: bool = False
    causes: frozenset[Cause] = frozenset()

    def covers(self, cause: Cause | None) -> bool:
        """Return whether an incident with this cause opens in shadow mode."""
        return self.everything or (cause or Cause.UNKNOWN) in self.causes

    def settle(self, incident: Incident) -> Incident:
        """Return an incident of shadow mode, out of it if its verdict has another cause now."""
        if incident.shadow and not self.covers(incident.verdict.cause):
            return replace(incident, shadow=False)
        return incident

    def settle_all(self, incidents: Iterable[Incident]) -> tuple[Incident, ...]:
        """Return the incidents of the last run, whose shadow mode may have been another one."""
        return tuple(map(self.settle, incidents))

    def describe(self) -> str:
        """Return one sentence for the log and for `/readyz`; empty if shadow mode is off."""
        effect = "incidents are listed and counted, and no alert is sent"
        if self.everything:
            return f"shadow mode is on: {effect}"
        names = ", ".join(sorted(cause.value for cause in self.causes))
        return f"shadow mode is on for {names}: {effect}" if names else ""


NO_SHADOW = ShadowMode()
"""Every incident has an alert."""
