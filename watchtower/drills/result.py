"""The outcome of a drill, and its JSON object."""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.drills.judging import Judgement
from watchtower.drills.setup import DrillSetup
from watchtower.drills.watch import Observed

Json = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The injected fault, the tower's answer and whether it is right."""

    drill: DrillSetup
    backend: str
    ranks: tuple[int, ...]
    """The ranks with the fault; empty for a healthy job."""
    observed: Observed
    judgement: Judgement
    settings_changed: Json

    def to_json(self) -> Json:
        """Return the object that `--json` prints."""
        return {
            "drill": self.drill.name,
            "backend": self.backend,
            "injected": {"ranks": list(self.ranks), "cause": self.drill.expected.cause},
            "verdict": self.observed.verdict,
            "fault_to_verdict_s": self.observed.fault_to_verdict_s,
            "fault_to_hung_s": self.observed.fault_to_hung_s,
            "settings_changed": self.settings_changed,
            "right_rank": self.judgement.right_rank,
            "right_cause": self.judgement.right_cause,
        }
