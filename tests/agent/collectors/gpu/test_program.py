"""The program that reads GPUs: neither a call that lasts nor an error of the driver stops it."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from agent.collectors.gpu.collector import Nvml
from agent.collectors.gpu.program import GAP_FAILURES, XID_EVENT, Workers, XidEvents
from tests.waiting import wait_until


class Gpu:
    """A GPU whose read may block. It is due again at once."""

    def __init__(self) -> None:
        self.due_at = 0.0
        self.reads = 0
        self.returns = threading.Event()
        self.returns.set()
        self.readers = 0

    def read(self, now: float) -> None:
        self.readers += 1
        assert self.readers == 1, "two threads read one GPU"
        self.returns.wait(30)
        self.due_at = time.monotonic() + 0.1
        self.reads += 1
        self.readers -= 1


def count_threads() -> int:
    return sum(thread.name == "gpus" for thread in threading.enumerate())


def watch(workers: Workers, gpus: list[Gpu], reads: int) -> bool:
    workers.watch(time.monotonic())
    return all(gpu.reads >= reads for gpu in gpus)


def test_one_thread_reads_all_and_each_call_that_lasts_costs_one_more():
    before, gpus = count_threads(), [Gpu() for _ in range(8)]
    workers = Workers(gpus)
    wait_until(lambda: watch(workers, gpus, 3), "all are read")
    assert count_threads() == before + 1
    stuck, others = [gpus[2], gpus[5]], [*gpus[:2], *gpus[3:5], *gpus[6:]]
    for gpu in stuck:
        gpu.returns.clear()
    wait_until(lambda: all(gpu.readers for gpu in stuck) or (watch(workers, [], 0) and False), "")
    reads = max(gpu.reads for gpu in others)
    wait_until(lambda: watch(workers, others, reads + 5), "the others are read on")
    wait_until(lambda: count_threads() == before + 3, "one thread reads the others")
    assert all(gpu.readers for gpu in stuck)
    for gpu in stuck:
        gpu.returns.set()
    reads = max(gpu.reads for gpu in gpus)
    wait_until(lambda: watch(workers, gpus, reads + 3), "all are read again")
    wait_until(lambda: count_threads() == before + 1, "the threads that are not needed end")


def test_a_driver_that_answers_nothing_has_a_thread_for_each_gpu_and_one_that_waits():
    before, gpus = count_threads(), [Gpu() for _ in range(4)]
    for gpu in gpus:
        gpu.returns.clear()
    workers = Workers(gpus)
    wait_until(lambda: watch(workers, [], 0) and all(g.readers for g in gpus), "all are stuck")
    for _ in range(50):
        workers.watch(time.monotonic())
    assert count_threads() <= before + 5
    for gpu in gpus:
        gpu.returns.set()
    wait_until(lambda: watch(workers, gpus, 2), "all are read again")


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


class NVMLErrorTimeout(NVMLError):
    pass


class NVMLErrorGpuIsLost(NVMLError):
    pass


UNKNOWN, NOT_SUPPORTED, LOST = NVMLError(999), NVMLError(3), NVMLErrorGpuIsLost(15)


class Driver(SimpleNamespace):
    """The calls of NVML. The waits raise `failures`, then `more` as long as it is set. Then one of
    them returns Xid 79, and the others time out."""

    NVMLError = NVMLError
    NVMLError_Timeout = NVMLErrorTimeout
    NVMLError_GpuIsLost = NVMLErrorGpuIsLost

    def __init__(self, *failures: NVMLError, more: NVMLError | None = None) -> None:
        super().__init__(failures=[*failures], more=more, sets=0, is_told=False)

    def nvmlEventSetCreate(self) -> int:  # NVML's own names
        self.sets += 1
        return self.sets

    def nvmlEventSetFree(self, _: int) -> None:
        self.sets -= 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetSupportedEventTypes(self, _: int) -> int:
        return XID_EVENT

    def nvmlDeviceRegisterEvents(self, *_: int) -> None:
        pass

    def nvmlDeviceGetPciInfo(self, _: int) -> SimpleNamespace:
        return SimpleNamespace(busId=b"00000000:3B:00.0")

    def nvmlEventSetWait_v2(self, *_: int) -> SimpleNamespace:
        if self.failures:
            raise self.failures.pop(0)
        if self.more is not None:
            raise self.more
        if self.is_told:
            time.sleep(0.01)
            raise NVMLErrorTimeout(10)
        self.is_told = True
        return SimpleNamespace(eventType=XID_EVENT, eventData=79, device=0)


def watch_xids(driver: Driver) -> XidEvents:
    events = XidEvents(driver, 2, rest_s=0.001)
    events.start()
    return events


def end(events: XidEvents, driver: Driver) -> None:
    driver.failures.append(NOT_SUPPORTED)
    events.join(5)
    assert not events.is_alive()


@pytest.mark.parametrize("error", [UNKNOWN, LOST])
def test_an_error_of_the_driver_does_not_end_the_reading(error: NVMLError):
    driver = Driver(*[error] * 3)
    events = watch_xids(driver)
    wait_until(lambda: events.show(time.monotonic()), "the Xid comes")
    ((pci, code, _),) = events.show(time.monotonic())
    assert (pci, code, events.error) == ("00000000:3B:00.0", 79, "")
    assert driver.sets == 1  # those of failed tries were freed
    end(events, driver)


def test_errors_that_last_are_a_gap_which_ends_with_them():
    driver = Driver(*[UNKNOWN] * GAP_FAILURES, more=UNKNOWN)
    events = watch_xids(driver)
    wait_until(lambda: events.error, "the gap begins")
    assert events.error == "error 999"
    driver.more = None
    wait_until(lambda: not events.error, "the gap ends")
    wait_until(lambda: events.show(time.monotonic()), "the Xid comes")
    end(events, driver)


def test_a_driver_without_events_is_not_a_gap():
    events = watch_xids(Driver(NOT_SUPPORTED))
    events.join(5)
    assert (events.is_alive(), events.error) == (False, "")


def test_the_gap_is_a_sentence():
    collector = Nvml("/nowhere")
    collector._node.xids_error = "error 999"
    collector._process.state = ""
    assert collector.gap().startswith("GPUs: NVML reports no Xid errors (error 999)")
