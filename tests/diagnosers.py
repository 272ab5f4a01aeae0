"""Diagnosers without a process, for tests that stay in theirs."""

from watchtower.diagnoser.messages import Answer, Request, read_answer
from watchtower.diagnoser.work import answer


class InThread:
    """What a diagnosing process does, in the thread that asks."""

    def ask(self, request: Request) -> Answer:
        return read_answer(answer(request.encode()))

    def kill(self) -> None:
        pass
