"""Diagnosers without a process, for tests that stay in theirs."""

from watchtower.diagnoser.messages import Answer, Request, read_answer
from watchtower.diagnoser.work import answer
from watchtower.tower.clock import Clock
from watchtower.tower.diagnosis_runner import DiagnosisRunner
from watchtower.tower.recording import Record


class InThread:
    """The work of a diagnosing process, in the thread that asks."""

    def ask(self, request: Request, *, brief: bool = False) -> Answer:
        read = read_answer(answer(request.encode(brief=brief)))
        assert read is not None
        return read

    def kill(self) -> None:
        pass


def in_thread(clock: Clock, record: Record) -> DiagnosisRunner:
    """Run the diagnoses of a tower without processes."""
    return DiagnosisRunner(clock, record, InThread)
