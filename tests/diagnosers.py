"""Diagnosers without a process, for tests that stay in theirs."""

from watchtower.diagnoser.messages import Answer, Request, read_answer
from watchtower.diagnoser.work import answer


class InThread:
    """The work of a diagnosing process, in the thread that asks."""

    def ask(self, request: Request, *, brief: bool = False) -> Answer:
        read = read_answer(answer(request.encode(brief=brief)))
        assert read is not None
        return read

    def kill(self) -> None:
        pass
