"""The product in a drill: a tower, agents and, if needed, a forwarder between them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from watchtower.drills.children import FIXTURES, Child, wait_for_url
from watchtower.drills.errors import DrillError
from watchtower.drills.gpus import Gpus
from watchtower.drills.kernel_log import KernelLogs
from watchtower.drills.launching import MARK, free_port, node_mark, node_name
from watchtower.drills.wall_clock import WallClock
from watchtower.service.interpreter import module_command

FORWARDER = FIXTURES / "forwarder.py"


class Environment:
    """Starts its children on entry, and ends all of them on exit."""

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int,
        interval_s: float,
        detection: dict[str, object],
        forwarded: bool,
        start_deadline_s: float,
        clock: WallClock | None = None,
        shared: bool = False,
    ) -> None:
        """Prepare an environment with its files in `folder`.

        A shared one serves many drills, so no drill may kill a child.
        """
        self.folder = folder
        self.clock = clock
        self.kernel_logs: KernelLogs | None = None
        """Null: agents read the kernel log of this machine."""
        self.gpus: Gpus | None = None
        """Null: agents read the GPUs of this machine. Others need `kernel_logs`, too."""
        self.agent_options: Sequence[str] = ()
        """Further options of the agents."""
        self.tower_options: Sequence[str] = ()
        """Further options of the tower."""
        self.other_towers: Sequence[str] = ()
        """Addresses of further towers, which the agents know, too."""
        self.recordings: Path | None = None
        """The folder in which each tower records its inputs, if any."""
        self.shared = shared
        self.tower_url = ""
        self._nodes = nodes
        self._interval_s = interval_s
        self._detection = detection
        self._forwarded = forwarded
        self._start_deadline_s = start_deadline_s
        self.alerts: Mapping[str, object] = {}
        """The table `[alerts]` of the tower."""
        self.secrets: Mapping[str, str] = {}
        """Environment variables for the tower only."""
        self._children: list[Child] = []
        self._tower: Child | None = None
        self._tower_starts = 0
        self._agents: dict[int, Child] = {}
        self._forwarder: Child | None = None
        self._forwarder_port = 0

    def __enter__(self) -> Environment:
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def check(self) -> None:
        """Raise DrillError if a part of the product has ended."""
        for child in self._children:
            if child.exit_code() is not None:
                raise DrillError(f"{child.name} ended with code {child.exit_code()}", child.tail())

    def cut(self) -> None:
        """Cut the network between agents and tower."""
        if self._forwarder:
            self._forwarder.end(patience_s=0)

    def mend(self) -> None:
        """Restore it."""
        self._start_forwarder(self._forwarder_port)

    def kill_tower(self) -> None:
        """Kill the tower without a warning: kill -9."""
        if self._tower:
            self._kill(self._tower)

    def restart_tower(self) -> None:
        """Start the tower again with the same data, on the port that the agents use."""
        self._start_tower(int(self.tower_url.rpartition(":")[2]))

    def kill_agent(self, node: int) -> None:
        """Kill the agent of a node without a warning: kill -9."""
        self._kill(self._agents[node])

    def _kill(self, child: Child) -> None:
        if self.shared:
            raise DrillError(f"{child.name} is shared with other drills and cannot be killed")
        child.end(patience_s=0)
        self._children.remove(child)

    def _start(self) -> None:
        (self.folder / "data").mkdir()
        self._start_tower(free_port())
        url = self._start_forwarder(0) if self._forwarded else self.tower_url
        for node in range(self._nodes):
            name = node_name(node)
            match = ["--match", f"{MARK}={node_mark(self.folder, node)}"]
            interval = ["--interval", f"{self._interval_s:g}", "--port", "0"]
            towers = ",".join([url, *self.other_towers])
            words = ["run", "--tower", towers, "--node", name, *match, *interval]
            words += self.agent_options
            variables: Mapping[str, str] = {}
            if self.kernel_logs is not None:
                root = self.kernel_logs.make_root(name)
                words += ["--root", str(root)]
                variables = self.gpus.make(name, root) if self.gpus is not None else {}
            self._agents[node] = self._start_child(f"agent-{name}", "agent", words, variables)

    def _start_tower(self, port: int) -> None:
        command = ["serve", "--port", str(port), "--data-dir", str(self.folder / "data")]
        command += self.tower_options
        if self._detection or self.alerts:
            command += ["--config", str(self._write_config())]
        self._tower_starts += 1
        if self.recordings is not None:
            self.recordings.mkdir(parents=True, exist_ok=True)
            recording = self.recordings.absolute() / f"tower-{self._tower_starts}.gz"
            command += ["--record", str(recording)]
        self._tower = self._start_child(
            f"tower-{self._tower_starts}", "watchtower", command, self.secrets
        )
        self.tower_url = wait_for_url(self._tower, self._start_deadline_s)

    def read_tower_log(self) -> str:
        """Return the log of the tower since its last start."""
        return self._tower.errors.read_text("utf-8", "replace") if self._tower else ""

    def _start_child(
        self, name: str, module: str, words: list[str], variables: Mapping[str, str] | None = None
    ) -> Child:
        environment = {**(self.clock.environment if self.clock else {}), **(variables or {})}
        command = module_command(module, *words)
        child = Child(name, command, self.folder, environment=environment)
        self._children.append(child)
        return child

    def _start_forwarder(self, port: int) -> str:
        """Start the forwarder on a free port, or on the port that the agents use already."""
        host, _, tower_port = self.tower_url.rpartition("/")[2].partition(":")
        name = "forwarder-again" if port else "forwarder"
        command = [sys.executable, "-I", str(FORWARDER), str(port), host, tower_port]
        self._forwarder = Child(name, command, self.folder)
        url = wait_for_url(self._forwarder, self._start_deadline_s)
        self._forwarder_port = int(url.rpartition(":")[2])
        return url

    def _write_config(self) -> Path:
        path = self.folder / "tower.toml"
        lines = []
        for title, table in (("detection", self._detection), ("alerts", self.alerts)):
            lines += [f"[{title}]"] if table else []
            lines += [f"{key} = {toml_value(value)}" for key, value in table.items()]
        path.write_text("\n".join([*lines, ""]), encoding="utf-8")
        return path

    def _end(self) -> None:
        for child in [*reversed(self._children), *filter(None, [self._forwarder])]:
            child.end()


def toml_value(value: object) -> str:
    """Return a plain value as TOML. The standard library can only read TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        escaped = "".join(c if c.isprintable() and c not in '"\\' else _escape(c) for c in value)
        return f'"{escaped}"'
    if isinstance(value, list):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, dict):
        pairs = (f"{toml_value(str(key))} = {toml_value(item)}" for key, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    raise DrillError(f"cannot write {value!r} as TOML for the tower")


def _escape(character: str) -> str:
    return f"\\U{ord(character):08x}"
