from watchtower.diagnosis.waits.collective_logs import CollectiveLogs, find_own_timeout
from watchtower.evidence.collective_log import CallLog
from watchtower.wire.collectives import make_group_log


def a_log(called: int, completed: int, timeout_s: float) -> CallLog:
    log = make_group_log(
        group="g",
        called=called,
        entered=called,
        completed=completed,
        records=(),
        timeout_s=timeout_s,
    )
    return CallLog(log)


def logs_of(*logs: CallLog) -> CollectiveLogs:
    return CollectiveLogs(by_digest={str(number): log for number, log in enumerate(logs)})


def test_the_shortest_timeout_of_the_open_calls_counts():
    logs = logs_of(a_log(5, 4, 1800.0), a_log(7, 6, 600.0), a_log(3, 3, 60.0))
    assert find_own_timeout(logs) == 600.0


def test_without_an_open_call_or_a_recorded_timeout_it_is_not_known():
    assert find_own_timeout(None) is None
    assert find_own_timeout(logs_of(a_log(3, 3, 60.0), a_log(5, 4, 0.0))) is None
    assert find_own_timeout(logs_of(a_log(5, -1, 60.0))) is None
