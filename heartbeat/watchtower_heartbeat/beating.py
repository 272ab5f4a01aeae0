"""What training code calls: `beat`, `phase`, `Heartbeat`. Nothing here raises or waits.

`beat` is a plain function over module globals because that is the fastest thing Python has: a
clock read and three stores. It is one function for the life of the process; what changes is `hot`.
"""

from __future__ import annotations

from time import monotonic_ns

from watchtower_heartbeat.notice import say_once
from watchtower_heartbeat.own_page import NO_PAGE, OwnPage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

hot = NO_PAGE  # words: 0 step, 1 time in ns, 2 step begun


def beat(step: int, loss: object = None) -> None:
    """Say that this rank has reached `step`; call it once per step, from one thread.

    Give it a plain `int`: for the value of a tensor on a device Python waits for that device.

    A `loss` that is NaN or infinite is counted and becomes evidence. It is only checked when
    that costs nothing: a number, or a tensor on the CPU.
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
    """Make the page at the first beat, or take a step that is no `int`."""
    try:
        if hot is NO_PAGE:
            _page.open()
        number = int(step)  # type: ignore[call-overload]
        hot[2] = number
        hot[1] = monotonic_ns()
        hot[0] = number
    except Exception as error:
        say_once("step", f"beat() wants a whole number of at most 63 bits: {error}")


def check_loss(step: int, loss: object) -> None:
    """Count a loss that is NaN or infinite; never waits for a device, never raises."""
    try:
        if is_on_device(loss):
            say_once("loss", "the loss is not on the CPU and is not checked; pass a float")
            return
        value = float(loss)  # type: ignore[arg-type]
        if value - value != 0.0:  # true for NaN and both infinities only
            _page.note_nonfinite_loss(int(step))
    except Exception as error:
        say_once("loss", f"beat() cannot read the loss: {error}")


def is_on_device(loss: object) -> bool:
    """Say whether reading it would wait for a device, and for ever on a device that hangs."""
    return type(loss) is not float and str(getattr(loss, "device", "cpu")) != "cpu"


class Phase:
    """A stretch of work that takes longer than a step; made by `phase`."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        """Name it: a short word such as "checkpoint" or "eval"."""
        self._name = name

    def __enter__(self) -> None:
        """Begin the phase, inside whatever phase there is."""
        try:
            _page.enter_phase(self, str(self._name))
        except Exception as error:
            say_once("phase", f"phase() could not be noted: {error}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it, also by an exception, and go back to the phase around it."""
        try:
            _page.leave_phase(self)
        except Exception as error:
            say_once("phase", f"phase() could not be noted: {error}")


def phase(name: str) -> Phase:
    """Return a context manager that shows `name` as what this rank is doing.

    Known words bring more patience: "checkpoint", "eval". They nest; the innermost is shown.
    """
    return Phase(name)


class Heartbeat:
    """The heartbeat of this process, for when the environment does not say which rank it is.

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
        """Make the page now; what is given wins over the environment, the rest is found there."""
        try:
            numbers = {"rank": rank, "world_size": world_size, "local_rank": local_rank}
            if job is not None:
                _page.name(job=str(job))
            _page.name(**{name: int(it) for name, it in numbers.items() if it is not None})
        except Exception as error:
            say_once("name", f"Heartbeat() cannot take that: {error}")
        open_page()


def open_page() -> None:
    """Make the page now instead of at the first beat; says so once when it cannot."""
    if hot is NO_PAGE:
        _page.open()
