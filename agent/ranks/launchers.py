"""Finds job, launch and launcher in an environment and a command line."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from watchtower.service.toml_tables import read_table
from watchtower.wire import drills
from watchtower.wire.bounds import MAX_NAME
from watchtower.wire.report import JobLabels, Launch
from watchtower.writing.printable import printable

ID_BYTES = 4
"""Bytes of the id of a launch. It separates the launches of one name and owner on one node."""

COORDINATOR = "JAX_COORDINATOR_ADDRESS"
"""Variable with the address and port where the ranks of a JAX job meet."""

UNKNOWN_PROGRAM = "a program"

MAX_PART, MAX_PLACE = 48, 96
"""Characters of a program, of a user and of a place in the name of a job without a name."""

LOOPBACK = ("localhost", "ip6-localhost", "::1", "0.0.0.0")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRule:
    """Variables that together name a job, or a launch of it."""

    parts: tuple[str, ...]
    prefix: str = ""
    optional: str = ""
    not_unique: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The content of `data/launchers.toml`."""

    programs: frozenset[str]
    modules: frozenset[str]
    of_actors: frozenset[str]
    pools: tuple[str, ...]
    """How names of classes begin whose actors do not work together."""
    wrappers: frozenset[str]
    job: tuple[JobRule, ...]
    rendezvous: tuple[JobRule, ...]
    """Where the ranks of a launch meet."""
    run: tuple[JobRule, ...]
    """The id of a run."""
    scheduler: Mapping[str, str]
    """The variable with the id of a job, by scheduler."""
    labels: Mapping[str, Sequence[str]]
    """The variables with a label of a job, by label."""
    equal: tuple[str, ...]
    """The variables that must be equal on all ranks of a job."""
    collective_threads: tuple[str, ...]
    gpu_threads: tuple[str, ...]
    """How names of threads begin that a library of collectives or a driver of GPUs has started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """What the names of a process's threads show about it."""

    collectives: bool
    """It is a member of a process group."""
    gpu: bool
    """It uses a GPU itself."""


@cache
def load_facts() -> Facts:
    """Read the table of launchers. The result is cached."""

    def rules(name: str) -> tuple[JobRule, ...]:
        return tuple(
            JobRule(
                parts=tuple(rule["parts"]),
                prefix=rule.get("prefix", ""),
                optional=rule.get("optional", ""),
                not_unique=tuple(rule.get("not_unique", ())),
            )
            for rule in table[name]
        )

    table = read_table("agent.data", "launchers")
    return Facts(
        programs=frozenset(table["programs"]),
        modules=frozenset(table["modules"]),
        of_actors=frozenset(table["of_actors"]),
        pools=tuple(table["pools"]),
        wrappers=frozenset(table["wrappers"]),
        job=rules("job"),
        rendezvous=rules("rendezvous"),
        run=rules("run"),
        scheduler=table["scheduler"],
        labels=table["labels"],
        equal=tuple(table["set_up"]["equal"]),
        collective_threads=tuple(table["threads"]["collectives"]),
        gpu_threads=tuple(table["threads"]["gpu"]),
    )


@cache
def naming_variables() -> tuple[str, ...]:
    """Return the variables that `name_job`, `label_job` and `describe_launch` use."""
    facts = load_facts()
    names = {"MASTER_ADDR", "MASTER_PORT", COORDINATOR, drills.VARIABLE, *facts.scheduler.values()}
    names.update(*facts.labels.values())
    for rule in (*facts.job, *facts.rendezvous, *facts.run):
        names.update(rule.parts)
        names.add(rule.optional)
    return tuple(sorted(names - {""}))


def name_job(environment: Mapping[str, str], *, host: str, program: str, started: str) -> str:
    """Return the job's name: the same on every node of the job.

    A job without a name is called after its program: "train.py on gpu-001 (alice, 05:31)" if its
    ranks meet at an address that only this machine can reach, or at none; `started` is this time
    of the launcher. Else "train.py on node1:29500 (alice)": each node has a launcher with a time of
    its own. Two such jobs that are alike have numbers, as twins of any name (`fleet/labels.py`).
    """
    if name := find_given_name(environment):
        return name
    address, port = _find_master(environment)
    is_here = not address or is_loopback(address)
    place = host if is_here else f"{address}:{port}"
    known = (_find_label(environment, "user")[:MAX_PART], started if is_here else "")
    called = f"{program[:MAX_PART] or UNKNOWN_PROGRAM} on {place[:MAX_PLACE]}"
    about = ", ".join(filter(None, known))
    return printable(f"{called} ({about})" if about else called, MAX_NAME)


def find_given_name(environment: Mapping[str, str]) -> str:
    """Return the job's name from variables that name a job; empty if none of them is set."""
    return printable(_first_of(load_facts().job, environment), MAX_NAME)


def describe_launch(environment: Mapping[str, str], launcher: str, network: str) -> Launch:
    """Return the launch of a rank from its environment.

    `launcher` is the pid and start time of the process that started it, empty if not known.
    `network` identifies the network namespace of the rank, for an address that only its machine can
    reach. Equal launches have one id, also after a restart of the agent.
    """
    facts = load_facts()
    address, port = _find_master(environment)
    meeting = f"{address}:{port}" if address and port else _first_of(facts.rendezvous, environment)
    scheduler, ident = _find_scheduler(environment)
    words = {
        "rendezvous": printable(meeting, MAX_NAME),
        "network": printable(network, MAX_NAME) or "unknown" if is_loopback(address) else "",
        # A worker of Ray that was started in advance does not know the id of its job.
        "scheduler_id": printable(f"{scheduler} {ident}", MAX_NAME)
        if ident and scheduler != "ray"
        else "",
        "run_id": printable(_first_of(facts.run, environment), MAX_NAME),
    }
    text = "\n".join([launcher, *words.values()])
    digest = hashlib.blake2s(text.encode("utf-8", "replace"), digest_size=ID_BYTES).hexdigest()
    return Launch(id=digest, launcher=launcher, **words)


def _find_master(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the address and the port where the ranks of a launch meet; empty where not known."""
    address, port = (environment.get(name, "").strip() for name in ("MASTER_ADDR", "MASTER_PORT"))
    if not address:
        address, _, port = environment.get(COORDINATOR, "").strip().rpartition(":")
    return address.strip("[]"), port


def _find_scheduler(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the name of the scheduler and the id of its job; two empty strings without one."""
    variables = load_facts().scheduler.items()
    ids = ((name, environment.get(word, "").strip()) for name, word in variables)
    return next(((name, ident) for name, ident in ids if ident), ("", ""))


def label_job(environment: Mapping[str, str], job: str, owner: str, launch: str) -> JobLabels:
    """Return the labels of a job from an environment, as cleaned and bounded text."""
    facts = load_facts()
    scheduler, ident = _find_scheduler(environment)
    found = {label: _find_label(environment, label) for label in facts.labels}
    kind, _, namespace = owner.partition(":")
    return JobLabels(
        job=job,
        owner=owner,
        launch=launch,
        scheduler=scheduler,
        scheduler_id=printable(ident, MAX_NAME),
        namespace=namespace if kind == "namespace" else "",
        **{label: printable(value, MAX_NAME) for label, value in found.items()},
    )


def _find_label(environment: Mapping[str, str], label: str) -> str:
    words = load_facts().labels[label]
    return next(filter(None, (environment.get(word, "").strip() for word in words)), "")


def find_signs(names: Iterable[str]) -> Signs:
    """Return what the names of a process's threads show."""
    facts, every = load_facts(), list(names)
    return Signs(
        collectives=any(name.startswith(facts.collective_threads) for name in every),
        gpu=any(name.startswith(facts.gpu_threads) for name in every),
    )


def is_loopback(address: str) -> bool:
    """Return whether an address refers to the machine that uses it."""
    return address.lower() in LOOPBACK or address.startswith("127.")


def is_launcher(command: Sequence[str]) -> bool:
    """Return whether a command line is that of a launcher, which starts ranks."""
    facts = load_facts()
    words = [os.path.basename(word) for word in command[:2]]
    if any(word in facts.programs for word in words[: 2 if is_python(command) else 1]):
        return True
    if is_python(command) and "-m" in command[:8]:
        module = command[command.index("-m") + 1 : command.index("-m") + 2]
        return bool(module) and module[0] in facts.modules
    return False


def starts_ranks_only(command: Sequence[str]) -> bool:
    """Return whether the children of a launcher are ranks. Those of Ray may be any actors."""
    return not any(os.path.basename(word) in load_facts().of_actors for word in command[:2])


def is_wrapper(command: Sequence[str]) -> bool:
    """Return whether a command line only wraps another program (a shell, a container runtime)."""
    return bool(command) and os.path.basename(command[0]).lstrip("-") in load_facts().wrappers


def is_python(command: Sequence[str]) -> bool:
    """Return whether a command line runs Python."""
    return bool(command) and is_python_program(os.path.basename(command[0]))


def is_python_program(program: str) -> bool:
    """Return whether a program, named without its folder, is a Python interpreter."""
    return program.startswith(("python", "pypy"))


def find_port(command: Sequence[str]) -> str:
    """Return the value of `--port` in a command line; empty if it has none."""
    for at, word in enumerate(command[:MAX_SERVER_WORDS]):
        name, equals, value = word.partition("=")
        if name == "--port":
            value = value if equals else "".join(command[at + 1 : at + 2])
            return value if value.isascii() and value.isdigit() and len(value) <= 5 else ""
    return ""


MAX_SERVER_WORDS = 256
"""Words of a command line that are searched for a port. Those of inference servers have up to 100.
"""

MAX_WORDS = 16
"""Words of a command line that are searched for the name of a module."""

_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")
"""Options of Python whose value is the next word."""


def name_program(command: Sequence[str]) -> str:
    """Return "rsync", or "python3 -m package.module" for a module; "" without a command line.

    Arguments are never part of it: they may be secrets.
    """
    # A process may write a title into its first word. Only the first part of it is a program.
    first = command[0].split(maxsplit=1) if command else []
    if not first:
        return ""
    program = first[0].rpartition("/")[2]
    module, _ = _read_python(command) if is_python_program(program) else ("", "")
    return f"{program} -m {module}" if module else program


def name_what_runs(command: Sequence[str]) -> str:
    """Return what people call the program of a command line: "train.py", "package.module", "a.out".

    For a launcher it is the Python program that it starts. Empty if it is not known. Arguments are
    never part of it, as in `name_program`.
    """
    if is_launcher(command):
        return _find_launched(command[1:MAX_SERVER_WORDS])
    name = name_program(command)
    if not is_python_program(name.partition(" ")[0]):
        return name
    module, script = _read_python(command)
    return module or script


def _find_launched(words: Sequence[str]) -> str:
    """Return the first script or module that is not a launcher. Options of launchers come first."""
    for at, word in enumerate(words):
        if word in ("-m", "--module"):
            module = "".join(words[at + 1 : at + 2])
            if _is_module(module) and module not in load_facts().modules:
                return module
        elif word.endswith(".py") and not word.startswith("-"):
            return word.rpartition("/")[2]
    return ""


def _read_python(command: Sequence[str]) -> tuple[str, str]:
    """Return the module and the script that a command line of Python runs, or empty texts."""
    waiting = iter(command[1:MAX_WORDS])
    for word in waiting:
        if word.startswith("-m"):
            module = word[2:] or next(waiting, "")
            return (module, "") if _is_module(module) else ("", "")
        if not word.startswith("-"):
            return "", word.rpartition("/")[2]
        if word == "-c":
            break
        if word in _WITH_VALUE:
            next(waiting, "")
    return "", ""


def _is_module(word: str) -> bool:
    return all(part.isidentifier() for part in word.split("."))


def _first_of(rules: Iterable[JobRule], environment: Mapping[str, str]) -> str:
    return next(filter(None, (_apply(rule, environment) for rule in rules)), "")


def _apply(rule: JobRule, environment: Mapping[str, str]) -> str:
    values = [environment.get(part, "").strip() for part in rule.parts]
    if not all(values) or values[0] in rule.not_unique:
        return ""
    if rule.optional and (more := environment.get(rule.optional, "").strip()):
        values.append(more)
    return rule.prefix + ".".join(values)
