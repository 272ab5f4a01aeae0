"""What of a rank's and a node's configuration may leave the node: allowed names, masked values."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

from agent.procfs import Proc, parse_fields, read_text
from watchtower.service.toml_tables import read_table
from watchtower.wire.bounds import MAX_NAME
from watchtower.writing.printable import printable
from watchtower.writing.secrets import HIDDEN, hide_secrets

MAX_READ = 4096
"""Characters of a value that are searched for secrets. A longer value is not sent."""


class Allowed(NamedTuple):
    """The content of `data/configuration.toml`."""

    prefixes: tuple[str, ...]
    names: frozenset[str]
    secret_words: tuple[str, ...]

    def may_leave(self, name: str) -> bool:
        """Return whether a variable of this name may leave the node."""
        if any(word in name.upper() for word in self.secret_words):
            return False
        return name in self.names or name.startswith(self.prefixes)


@cache
def load_allowed() -> Allowed:
    """Read the list of variables. The result is cached."""
    table = read_table("agent.data", "configuration")
    return Allowed(
        tuple(table["prefixes"]), frozenset(table["names"]), tuple(table["secret_words"])
    )


_MASKS = (
    re.compile(r"(?i)(?:\bpwd|\bauth|passphrase)[\w.-]{0,32}[\"']?\s{0,4}[=:]\s{0,4}\S+"),
    re.compile(r"(?i)--?(?:passw(?:or)?d|secret|token|api-?key|auth)\s+\S+"),
    # shapes that services give to their keys
    re.compile(
        r"\b(?:sk_|pk_|rk_|xox[a-z]-|AIza|ya29\.|npm_|pypi-|dop_v1_|shpat_|SG\.|nvapi-|wandb_|"
        r"lin_api_|dapi|hvs\.)[\w./+=-]{8,}"
    ),
    re.compile(r"-----BEGIN.*", re.DOTALL),
    re.compile(r"\bssh-(?:rsa|ed25519|dss)\s+\S+"),
)
"""What lines of a program's output seldom have, and variables may."""

_RUN = re.compile(r"[A-Za-z0-9+/=_~.-]{16,}")
_PIECE = re.compile(r"[A-Za-z0-9]{20,}")


def mask(value: str) -> str:
    """Return a value without what may be a secret: better a setting too few than a key too many."""
    if len(value) > MAX_READ:
        return HIDDEN
    value = hide_secrets(value)
    for pattern in _MASKS:
        value = pattern.sub(HIDDEN, value)
    return _RUN.sub(lambda match: HIDDEN if _is_random(match.group()) else match.group(), value)


def _is_random(run: str) -> bool:
    """Return whether a long word may be a key: neither a path nor words with dashes and dots."""
    if any(_has_digits_and_letters(piece) for piece in _PIECE.findall(run)):
        return True
    if run.startswith(("/", ".", "~")):
        return False
    kinds = (str.isupper, str.islower, str.isdigit)
    return all(any(kind(character) for character in run) for kind in kinds)


def _has_digits_and_letters(piece: str) -> bool:
    return not piece.isalpha() and not piece.isdigit()


def choose_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that may leave the node, with masked values."""
    allowed = load_allowed()
    return {
        name: printable(mask(value.strip()), MAX_NAME)
        for name, value in variables.items()
        if len(name) <= MAX_NAME and name.isprintable() and allowed.may_leave(name)
    }


MAX_DECLARED = 16
"""Values that a program declares. The client writes no more, and another program may."""

_DECLARED = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,47})=(.{1,64})")


def read_declared(text: str) -> dict[str, str]:
    """Return what a heartbeat file declares, as lines such as "precision=bf16"."""
    matches = (_DECLARED.fullmatch(line) for line in text.split("\n")[:MAX_DECLARED])
    return {
        f"declared {match[1]}": printable(mask(match[2]), MAX_NAME) for match in matches if match
    }


_LIMITS = {"Max locked memory": "limit memlock", "Max open files": "limit nofile"}
_STATUS = {"Cpus_allowed_list": "cpus", "Mems_allowed_list": "numa nodes"}


def read_limits(proc: Proc, pid: int) -> dict[str, str]:
    """Return the limits of a process, and the CPUs and the memory that it may use."""
    found = {}
    for line in proc.try_read(pid, "limits").decode("ascii", "replace").splitlines():
        for words, name in _LIMITS.items():
            if line.startswith(words):
                found[name] = line[len(words) :].split()[0]
    fields = parse_fields(proc.try_read(pid, "status"))
    found |= {name: fields[field] for field, name in _STATUS.items() if field in fields}
    return {name: printable(value, MAX_NAME) for name, value in found.items()}


MAX_DEVICES = 32
"""Interfaces and ports of one node that are read."""

MAX_FILE = 256
"""Characters of one file of /sys or /proc."""

_DRIVER = re.compile(r"Kernel Module\s+(?:for \S+\s+)?([0-9]{1,5}(?:\.[0-9]{1,5}){1,3})")


def read_node(root: str) -> dict[str, str]:
    """Return the configuration of the node. The names of its devices are part of the names."""
    found = dict(_read_devices(root))
    driver = _DRIVER.search(read_text(os.path.join(root, "proc/driver/nvidia/version"), MAX_FILE))
    found |= {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "nvidia driver": driver.group(1) if driver is not None else "",
        "nvidia_peermem": _yes(os.path.isdir(os.path.join(root, "sys/module/nvidia_peermem"))),
        "hugepages": read_text(os.path.join(root, "proc/sys/vm/nr_hugepages"), MAX_FILE),
        "numa_balancing": read_text(os.path.join(root, "proc/sys/kernel/numa_balancing"), MAX_FILE),
        "cpus online": read_text(os.path.join(root, "sys/devices/system/cpu/online"), MAX_FILE),
    }
    return {name: printable(value.strip(), MAX_NAME) for name, value in found.items() if value}


def _yes(is_so: bool) -> str:
    return "loaded" if is_so else ""


def _read_devices(root: str) -> Iterator[tuple[str, str]]:
    net = os.path.join(root, "sys/class/net")
    for name in _list(net):
        if os.path.exists(os.path.join(net, name, "device")):  # not a virtual one
            yield f"mtu {name}", read_text(os.path.join(net, name, "mtu"), MAX_FILE)
    cards = os.path.join(root, "sys/class/infiniband")
    for card in _list(cards):
        for port in _list(os.path.join(cards, card, "ports")):
            folder = os.path.join(cards, card, "ports", port)
            for what in ("state", "rate", "link_layer"):
                yield f"{what} {card}/{port}", read_text(os.path.join(folder, what), MAX_FILE)
        yield f"firmware {card}", read_text(os.path.join(cards, card, "fw_ver"), MAX_FILE)


def _list(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))[:MAX_DEVICES]
    except OSError:
        return []
