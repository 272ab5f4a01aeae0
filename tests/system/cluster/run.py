"""Runs each fault of a cluster many times, and writes docs/reliability.md.

python -m tests.system.cluster.run [--rounds N] [--seed S] [--fault NAME] [--write FILE]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.system.cluster import rounds
from tests.system.cluster.cluster import running_cluster
from tests.system.cluster.rounds import FAULTS, Round, Scene
from tests.system.hung_jobs import now

TOWERS = 3

TEXT = """# Reliability

What several towers on one PostgreSQL server ([operations.md](operations.md#several-towers)) keep, measured. `make test-cluster`
writes this page.

Each round hangs a job, causes a fault at a random moment before or after its alert, waits for the alert, ends the fault and
the hang, and then checks. Agents have the addresses of all towers, and send a dump every half second while the job hangs. A
client changes and reads a silence, and acknowledges the incidents, all the time. A second job is healthy throughout.

What is checked after each round:

- Each dump that was acknowledged to an agent is in the database, and no agent gave one up.
- There is one incident and one alert of each hang, and none of the healthy job.
- Each answer about a silence or an acknowledgement can be explained by an order of the requests in which no acknowledged
  one is lost ([history.py](../tests/system/cluster/history.py)).
- A tower that stood still, or was cut off from PostgreSQL, sends nothing when it goes on, and is then on standby.
- While PostgreSQL is away, the alert is sent, `/readyz` is ready and says what is lost, and no tower takes over afterwards.

{towers} towers, seed {seed}, a SIGSTOP takes {stopped:g} s; {cores} cores, load {load}.

| fault | rounds | violations | without an owner, median and longest | hang to alert, median and longest |
|---|---|---|---|---|
{rows}

{dumps} dumps were acknowledged, and {operations} requests about silences and acknowledgements made, {unknown} of them without an
answer. Messages to the webhook that were sent again with the same `Idempotency-Key`, because the tower was killed between the
message and its receipt: {repeated}.

Without an owner: 10 s until the lease of a killed owner ends, 2 s more, and the start of a tower. An alert while PostgreSQL is
away waits 20 s, because another tower may send it ([decision 124](decisions/124-towers-on-standby.md)).
{violations}
Not tested: a full disk under PostgreSQL, a clock that jumps, a cut network between agents and some of the towers.
"""  # noqa: E501 - lines of a page


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="rounds of each fault")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", action="append", choices=[*FAULTS], help="only this one")
    parser.add_argument("--stopped", type=float, default=20.0, help="seconds of a SIGSTOP")
    parser.add_argument("--write", type=Path, help="the page to write")
    given = parser.parse_args(words)
    rounds.STOPPED_S = given.stopped
    done: list[Round] = []
    with (
        tempfile.TemporaryDirectory(prefix="watchtower-cluster-") as folder,
        running_cluster(Path(folder), TOWERS) as cluster,
    ):
        scene, began = Scene(cluster, given.seed), now()
        try:
            for number in range(given.rounds):
                for fault in given.fault or FAULTS:
                    done.append(scene.run(fault))
                    report(number, done[-1], now() - began)
        finally:
            scene.close()
        text = make_page(scene, done, given)
    if given.write:
        given.write.write_text(text)
    print(text)
    return int(any(one.wrong for one in done))


def report(number: int, one: Round, after_s: float) -> None:
    what = f"{one.fault} {one.at_s:.1f} s after the hang: away {one.away_s:.1f} s, "
    print(f"{after_s:6.0f} s round {number}: {what}alert {one.alert_s:.1f} s, {one.wrong or 'ok'}")
    sys.stdout.flush()


def make_page(scene: Scene, done: Sequence[Round], given: argparse.Namespace) -> str:
    rows = []
    for fault in dict.fromkeys(one.fault for one in done):
        mine = [one for one in done if one.fault == fault]
        away = [one.away_s for one in mine if one.away_s]
        wrong = sum(bool(one.wrong) for one in mine)
        rows.append(
            f"| {fault} | {len(mine)} | {wrong} | {describe(away)} "
            f"| {describe([one.alert_s for one in mine])} |"
        )
    history = scene.cluster.history
    operations = history.operations
    found = [f"- {one.fault}: {text}" for one in done for text in one.wrong]
    return TEXT.format(
        towers=TOWERS,
        seed=given.seed,
        stopped=given.stopped,
        cores=os.cpu_count(),
        load=f"{os.getloadavg()[1]:.1f}",
        rows="\n".join(rows),
        dumps=len(history.dumps),
        operations=len(operations),
        unknown=sum(one.ended == float("inf") for one in operations),
        repeated=scene.repeated,
        violations="".join(f"\n{line}" for line in found) + ("\n" if found else ""),
    )


def describe(seconds: Sequence[float]) -> str:
    if not seconds:
        return "none"
    return f"{statistics.median(seconds):.1f} s, {max(seconds):.1f} s"


if __name__ == "__main__":
    sys.exit(main())
