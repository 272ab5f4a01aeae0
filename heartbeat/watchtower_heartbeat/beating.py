"""The functions that training code calls: `beat`, `phase`, `Heartbeat`. They never raise or wait.

`beat` is a plain function over module globals because nothing in Python is faster: one clock read
and three stores. It is never replaced; only `hot` changes.
"""

from __future__ import annotations

from time import monotonic_ns

from watchtower_heartbeat.notice import warn_once
from watchtower_heartbeat.own_page import NO_PAGE, OwnPage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

hot = NO_PAGE  # words: 0 step, 1 time in ns, 2 step begun


def beat(step: int, loss: object = None) -> None:
    """Report that this rank has reached `step`. Call it once per step, from one thread.

    Pass a plain `int`: to read a tensor on a device, Python waits for that device.

    A `loss` that is NaN or infinite is counted and becomes evidence. It is checked only if that
    costs nothing: a number, or a tensor on the CPU.
    """
    try:
        hot[2] = step
        hot[1] = monotonic_ns()
        hot[0] = step
    except Exception:
        _beat_slowly(step)
    if loss is not None:
        check_loss(step, loss)


def _bind(words: memoryview) -> None:
    global hot
    hot = words


_page = OwnPage(_bind)


def _beat_slowly(step: object) -> None:
    """Make the page at the first heartbeat, or convert a step that is not an `int`."""
    try:
        if hot is NO_PAGE:
            _page.open()
        number = int(step)  # type: ignore[call-overload]
        hot[2] = number
        hot[1] = monotonic_ns()
        hot[0] = number
    except Exception as error:
        warn_once("step", f"beat() needs a whole number of at most 63 bits: {error}")


def check_loss(step: int, loss: object) -> None:
    """Count a loss that is NaN or infinite. Never waits for a device and never raises."""
    try:
        if is_on_device(loss):
            warn_once("loss", "the loss is not checked, because it is not on the CPU; pass a float")
            return
        value = float(loss)  # type: ignore[arg-type]
        if value - value != 0.0:  # true only for NaN and both infinities
            _page.note_nonfinite_loss(int(step))
    except Exception as error:
        warn_once("loss", f"beat() cannot read the loss: {error}")


def is_on_device(loss: object) -> bool:
    """Return whether reading the value would wait for a device, perhaps forever."""
    return type(loss) is not float and str(getattr(loss, "device", "cpu")) != "cpu"


class Phase:
    """Work that takes longer than a step; made by `phase`."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        """`name`: a short word such as "checkpoint" or "eval"."""
        self._name = name

    def __enter__(self) -> None:
        """Begin the phase, inside the current phase."""
        try:
            _page.enter_phase(self, str(self._name))
        except Exception as error:
            warn_once("phase", f"phase() could not be noted: {error}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the phase, also after an exception, and return to the outer phase."""
        try:
            _page.leave_phase(self)
        except Exception as error:
            warn_once("phase", f"phase() could not be noted: {error}")


def phase(name: str) -> Phase:
    """Return a context manager that shows `name` as the activity of this rank.

    "checkpoint" and "eval" have longer deadlines. Phases nest; the innermost one is shown.
    """
    return Phase(name)


def declare(**values: object) -> None:
    """Say what all ranks must have in common: `declare(global_batch=1024, precision="bf16")`.

    At most 16 numbers or words; of each name the first value stays. A rank that differs becomes an
    advisory. Give plain numbers: the value of a tensor on a device is not read.
    """
    try:
        named = {name: value for name, value in values.items() if not is_on_device(value)}
        if not (_page.declare(named) and len(named) == len(values)):
            warn_once("declare", "declare() takes 16 numbers or words that are not on a device")
    except Exception as error:
        warn_once("declare", f"declare() cannot read a value: {error}")


class Heartbeat:
    """The heartbeat of this process, for environments that do not contain the rank.

    A process has one page: `beat` and `phase` of every instance are the module's own.
    """

    beat = staticmethod(beat)
    phase = staticmethod(phase)

    def __init__(
        self,
        job: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        local_rank: int | None = None,
    ) -> None:
        """Make the page now. Arguments have priority over the environment."""
        try:
            numbers = {"rank": rank, "world_size": world_size, "local_rank": local_rank}
            if job is not None:
                _page.name(job=str(job))
            _page.name(**{name: int(it) for name, it in numbers.items() if it is not None})
        except Exception as error:
            warn_once("name", f"invalid argument of Heartbeat(): {error}")
        open_page()


def open_page() -> None:
    """Make the page now instead of at the first heartbeat. Prints one line if that fails."""
    if hot is NO_PAGE:
        _page.open()
