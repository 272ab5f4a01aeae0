"""The outcome of a drill, and the one JSON object that says it."""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.drills.judging import Judgement
from watchtower.drills.setup import DrillSetup
from watchtower.drills.watch import Observed

Json = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What was injected, what the tower said and whether that is right."""

    drill: DrillSetup
    backend: str
    ranks: tuple[int, ...]
    """The ranks that the fault was brought to; none when nothing was wrong."""
    observed: Observed
    judgement: Judgement
    settings_changed: Json

    def to_json(self) -> Json:
        """Build the object that `--json` prints."""
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
