"""Subjects of observations: one spelling of the things that several collectors observe."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=256)
def name_pci(address: str) -> str:
    """Return the subject of a PCI device: "pci:0000:3b:00" of "00000000:3B:00.0" or "0000:3b:00".

    The kernel writes a domain of four digits and NVML one of eight. A GPU has one function.
    """
    device = address.lower().partition(".")[0]
    domain, _, rest = device.partition(":")
    return f"pci:{domain[-4:].zfill(4)}:{rest}" if rest.count(":") == 1 else f"pci:{device}"


def name_pid(pid: int) -> str:
    """Return the subject of a process."""
    return f"pid:{pid}"


def name_nic(name: str) -> str:
    """Return the subject of a network interface."""
    return f"nic:{name}"
