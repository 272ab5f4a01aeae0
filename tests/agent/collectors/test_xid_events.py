"""The thread that waits for Xid errors survives errors of the driver."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from agent.collectors.gpu.collector import Nvml
from agent.collectors.gpu.program import GAP_FAILURES, XID_EVENT, XidEvents


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


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def watch(driver: Driver) -> XidEvents:
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
    events = watch(driver)
    wait_for(lambda: events.show(time.monotonic()))
    ((pci, code, _),) = events.show(time.monotonic())
    assert (pci, code, events.error) == ("00000000:3B:00.0", 79, "")
    assert driver.sets == 1  # those of failed tries were freed
    end(events, driver)


def test_errors_that_last_are_a_gap_which_ends_with_them():
    driver = Driver(*[UNKNOWN] * GAP_FAILURES, more=UNKNOWN)
    events = watch(driver)
    wait_for(lambda: events.error)
    assert events.error == "error 999"
    driver.more = None
    wait_for(lambda: not events.error)
    wait_for(lambda: events.show(time.monotonic()))
    end(events, driver)


def test_a_driver_without_events_is_not_a_gap():
    events = watch(Driver(NOT_SUPPORTED))
    events.join(5)
    assert (events.is_alive(), events.error) == (False, "")


def test_the_gap_is_a_sentence():
    collector = Nvml("/nowhere")
    collector._node.xids_error = "error 999"
    collector._process.state = ""
    assert collector.gap().startswith("GPUs: NVML reports no Xid errors (error 999)")
