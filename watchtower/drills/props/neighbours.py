"""Processes of another user that attack a job's name, its watchers' time and their memory.

Run by path: python -I neighbours.py PLAN, as root. PLAN is JSON: `user`, `job`, `ranks`, and for
each node the `environments` by which its agent knows its processes. On SIGUSR1 all of them hang at
once. Ended, it ends all of them.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PROGRAM = Path(__file__).parents[1] / "programs" / "neighbour.py"
IMPOSTORS = 8
"""Processes at most that claim ranks of the job by a heartbeat file."""
RESTART_S = 0.25
"""How often those that ended are started again. Each lives for seconds."""
LIVES_S = 3.0
STEPS, STILL_S = 25, 8.0
"""Five seconds of steps, then longer without one than any tower is patient."""

Plan = dict[str, object]


class Neighbour:
    """One place in the attack: a process, or one after the other."""

    def __init__(self, plan: Plan, environment: dict[str, str]) -> None:
        self.plan, self._environment = plan, environment
        self._starts = 0
        self.process = self._start()

    def hang(self) -> None:
        """Let it take no further step."""
        self.process.send_signal(signal.SIGUSR1)

    def start_again(self) -> None:
        """Start it again if it has ended: a new attempt, or one more job."""
        if self.process.poll() is not None:
            self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self._starts += 1
        plan = {**self.plan, "job": str(self.plan["job"]).replace("#", str(self._starts))}
        command = [sys.executable, "-I", str(PROGRAM), json.dumps(plan)]
        return subprocess.Popen(command, env=self._environment, stdin=subprocess.DEVNULL)


class Sleeper:
    """A program that is not Python, and claims a rank by its environment alone."""

    def __init__(self, user: int, words: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            ["python", "86400"],
            executable="/bin/sleep",
            env=words,
            stdin=subprocess.DEVNULL,
            user=user,
            group=user,
            extra_groups=[],
        )

    def hang(self) -> None:
        """Do nothing: it never takes a step."""

    def start_again(self) -> None:
        """Do nothing: it never ends."""


def plans(user: int, job: str, ranks: int) -> Iterator[Plan]:
    """What each attacker does, in the order in which they go to the nodes by turns."""
    base: Plan = {"user": user, "job": job, "rank": 0, "world_size": ranks, "stacks": "plain"}
    base |= {"forges": False, "steps": STEPS, "still_s": STILL_S}
    for rank in range(min(ranks, IMPOSTORS)):
        yield {**base, "rank": rank, "forges": rank % 2 == 1}
    yield {**base, "rank": ranks}
    yield {**base, "rank": ranks - 1, "lives_s": LIVES_S}
    for place, stacks in enumerate(("names", "words", "threads", "deep")):
        alone = {"world_size": 1, "stacks": stacks, "steps": STEPS + 5 * place}
        yield {**base, **alone, "job": stacks[0] * 250}
    for place, name in enumerate(hostile_names(job)):
        yield {**base, "job": name, "world_size": 1, "steps": STEPS + 5 * place}
    yield {**base, "job": "restarts", "world_size": 2, "lives_s": LIVES_S}
    yield {**base, "job": "job-#", "world_size": 2, "lives_s": LIVES_S}
    yield {**base, "job": "huge-#", "world_size": 262_144, "rank": 262_143, "lives_s": LIVES_S}


def hostile_names(job: str) -> tuple[str, ...]:
    """Names that look like another job's, like an address, or like a text's markup."""
    odd = ("_" * 250, "[" * 250, "checkpoint", "\x1b[2J\u202e<!channel>")
    return (f"{job}@uid:0", f"{job}/verdict", *odd)


def start(words: Plan) -> list[Neighbour | Sleeper]:
    """Start all of them."""
    user, job, ranks = words["user"], words["job"], words["ranks"]
    environments = words["environments"]
    assert isinstance(user, int)
    assert isinstance(job, str)
    assert isinstance(ranks, int)
    assert isinstance(environments, list)
    neighbours: list[Neighbour | Sleeper] = []
    for place, plan in enumerate(plans(user, job, ranks)):
        # A rank of the job is claimed on every node, on its own one too.
        neighbours.append(Neighbour(plan, environments[place % len(environments)]))
    for place, name in enumerate((job, "_" * 1000)):
        claim = {"WATCHTOWER_JOB": name, "RANK": "0", "WORLD_SIZE": str(ranks)}
        neighbours.append(Sleeper(user, {**environments[place % len(environments)], **claim}))
    return neighbours


def main() -> None:
    """Start them, start those again that end, wait to be ended."""
    awaited = {signal.SIGTERM, signal.SIGUSR1}
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    neighbours = start(json.loads(sys.argv[1]))
    pids = [neighbour.process.pid for neighbour in neighbours]
    print("ready", json.dumps({"pids": pids}), flush=True)
    while True:
        came = signal.sigtimedwait(awaited, RESTART_S)
        if came is not None and came.si_signo == signal.SIGTERM:
            break
        for neighbour in neighbours:
            neighbour.start_again() if came is None else neighbour.hang()
    for neighbour in neighbours:
        neighbour.process.kill()
    for neighbour in neighbours:
        neighbour.process.wait()


if __name__ == "__main__":
    main()
