"""Waits for the Xid errors of all GPUs, as NVML reports them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from typing import Any

from agent.gpu_reader.fields import UNSUPPORTED
from agent.gpu_reader.gpu import read_text

XID_EVENT = 8
"""`nvmlEventTypeXidCriticalError`."""

WAIT_MS = 10_000
"""Milliseconds of one wait. It ends with the first error, and with the process."""

REST_S = 1.0
"""Seconds between two waits that fail at once, for as long as a GPU is lost, and until the next try
after another error."""

GAP_FAILURES = 5
"""Tries in turn that fail until Xid errors count as not read: a driver that restarts takes some
seconds."""

LATER_RESTS = 60
"""Rests between two tries from then on. A try makes some calls for each GPU."""

MAX_XIDS = 16
"""Xid errors that are printed, the newest."""


class XidEvents(threading.Thread):
    """Where the kernel log may not be read, no other source has Xid errors. NVML names neither a
    process nor a text, and repeats nothing."""

    def __init__(self, nvml: Any, count: int, rest_s: float = REST_S) -> None:
        super().__init__(name="xids", daemon=True)
        self._nvml, self._count, self._rest_s = nvml, count, rest_s
        self._found: deque[tuple[str, int, float]] = deque(maxlen=MAX_XIDS)
        self._failures = 0
        """Tries in turn that failed."""
        self.error = ""
        """Why Xid errors are not read; empty if they are, or if the driver has no events."""

    def run(self) -> None:
        """Wait until the process ends. A driver without events has none."""
        nvml = self._nvml
        while True:
            try:
                self._watch()
            except nvml.NVMLError as error:
                if error.value in UNSUPPORTED:
                    return
                self._failures += 1
                if self._failures >= GAP_FAILURES:
                    self.error = f"error {error.value}"
            time.sleep(self._rest_s * (1 if self._failures < GAP_FAILURES else LATER_RESTS))

    def _watch(self) -> None:
        """Wait for errors until a call fails. Raises the error of that call."""
        nvml = self._nvml
        events = nvml.nvmlEventSetCreate()
        try:
            for index in range(self._count):
                with contextlib.suppress(nvml.NVMLError):
                    gpu = nvml.nvmlDeviceGetHandleByIndex(index)
                    if nvml.nvmlDeviceGetSupportedEventTypes(gpu) & XID_EVENT:
                        nvml.nvmlDeviceRegisterEvents(gpu, XID_EVENT, events)
            while True:
                self._wait(events)
                self._failures, self.error = 0, ""
        finally:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlEventSetFree(events)

    def _wait(self, events: Any) -> None:
        nvml = self._nvml
        try:
            event = nvml.nvmlEventSetWait_v2(events, WAIT_MS)
        except nvml.NVMLError_Timeout:
            return
        except nvml.NVMLError_GpuIsLost:
            time.sleep(self._rest_s)
            return
        if event.eventType == XID_EVENT:
            with contextlib.suppress(nvml.NVMLError):
                pci = read_text(nvml.nvmlDeviceGetPciInfo(event.device).busId)
                self._found.append((pci, int(event.eventData), time.monotonic()))

    def show(self, now: float) -> list[tuple[str, int, float]]:
        """Return the PCI address, the code and the age of each error, the newest last."""
        return [(pci, code, round(now - at, 3)) for pci, code, at in tuple(self._found)]
