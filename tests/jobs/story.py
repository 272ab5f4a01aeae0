"""One `AttemptWatch`, second by second: for tests of statuses, incidents and pauses."""

from watchtower.diagnosis.diagnosed import Diagnosis
from watchtower.jobs.condition import Condition, ConditionKind, Stall, Why
from watchtower.jobs.incidents import AttemptWatch
from watchtower.jobs.pace import Pauses
from watchtower.jobs.stall_context import StallContext
from watchtower.policy import Policy
from watchtower.wire.verdict import Cause, Suspect


def a_diagnosis(cause=Cause.DATALOADER_STALL, **changes) -> Diagnosis:
    suspect = Suspect(rank=2, node="n1", cause=cause, why="it sleeps")
    fields = {
        "cause": cause,
        "confidence": 0.9,
        "suspects": (suspect,),
        "waiting": "0-1,3",
        "step": 9,
        "stalled_for_s": 6.0,
        "summary": "rank 2 sleeps",
        "evidence": (),
        "missing_evidence": (),
        "alternatives": (),
        "next_steps": (),
        "suspects_moving": False,
        "peers_waiting": True,
        "suspect_class": "dataloader",
    }
    return Diagnosis(**(fields | changes))


def stalled(since: float = 100.0, why: Why = Why.OVERDUE) -> Condition:
    stall = Stall(why=why, since=since, ranks=frozenset({2}))
    return Condition(kind=ConditionKind.STALLED, reason="rank 2 has not stepped", stall=stall)


def early(since: float = 100.0, kind: ConditionKind = ConditionKind.STARTING) -> Condition:
    """A stall whose time is not over."""
    stall = Stall(why=Why.STARTUP, since=since, ranks=frozenset({2}))
    return Condition(kind=kind, reason="rank 2 is still", stall=stall)


def plain(kind: ConditionKind) -> Condition:
    return Condition(kind=kind, reason=kind.value)


class Story:
    """One watch and its effects. It advances once a second, beginning at 106 s."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.watch = AttemptWatch(policy=policy or Policy(), pauses=Pauses())
        self.now = 106.0
        self.effects: list[object] = []

    def see(self, condition: Condition, seconds: float = 0.0, **context) -> list[object]:
        context = StallContext(**({"dumps_have": 4, "dumps_want": 4, "typical_s": 1.0} | context))
        effects = list(self.watch.advance(condition, context, self.now))
        for _ in range(round(seconds)):
            self.now += 1
            effects += self.watch.advance(condition, context, self.now)
        self.effects += effects
        return effects

    def hear(self, diagnosis: Diagnosis) -> list[object]:
        effects = self.watch.take_diagnosis(diagnosis, self.now)
        self.effects += effects
        return effects

    def kinds(self) -> list[type]:
        return [type(effect) for effect in self.effects]
