"""The classes of Python frames and stacks, and one table of what each class shows about a rank.

Code that has a question about a class asks for a trait. A set of classes beside this table would be
one more place to change for a new class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class FrameClass(Enum):
    """The work or wait of a rank with a frame of this class."""

    # Hash the singleton, in C. Enum hashes the name in Python, and a case hashes each many times.
    __hash__ = object.__hash__

    INIT = "init"
    COLLECTIVE = "collective"
    DATALOADER = "dataloader"
    CHECKPOINT = "checkpoint"
    COMPILE = "compile"
    DEVICE = "device"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    LOCK = "lock"
    NETWORK = "network"
    CHILD = "child"
    """It waits for a program that it started."""
    THREAD = "thread"
    """It waits for a thread that it started."""
    SERVER = "server"
    """It waits for clients."""
    USER = "user"
    NONE = "none"

    @property
    def traits(self) -> ClassTraits:
        """What a stack of this class shows about a rank."""
        return TRAITS[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassTraits:
    """What a stack of a class shows about a rank. In the table, all that is not named is False."""

    # Purposes

    shows_purpose: bool = False
    """The class describes the purpose of a call. It counts more than the classes of calls inside: a
    socket read inside all_reduce is a collective. If two such classes are nested, the inner
    counts."""
    is_busy_elsewhere: bool = False
    """The rank does not wait for a collective there, even while one that it started earlier is
    still under way."""
    is_work: bool = False
    """A rank there whose process tree computes is working, at any length."""
    may_be_saving: bool = False
    """The class does not contradict a phase in which the job itself reports that it saves."""

    # Waits for other ranks

    waits_for_ranks: bool = False
    """The rank waits for other ranks."""
    waits_if_asleep: bool = False
    """A sleeping rank waits for other ranks there, and a running rank works."""
    shows_wait_for_ranks: bool = False
    """The stack shows a wait for ranks. DDP's reducer waits inside of backward."""
    may_spin_in_wait: bool = False
    """A rank waits for others there, asleep or not, though no log names the call."""
    hides_any_call: bool = False
    """The line may make any call into C: the kernel's wait may be in that call, and a rank that
    uses a whole core is in a loop."""
    may_hide_collective: bool = False
    """The frames may hide a collective. A data loader or a checkpoint does not."""

    # Waits inside the process

    waits_for_thread: bool = False
    """The thread waits for another thread."""
    may_be_at_lock: bool = False
    """The class does not contradict a wait for a lock."""
    waits_by_lock: bool = False
    """The wait is implemented by a lock or a condition, which is an inner frame."""
    names_wait: bool = False
    """The frames name what a thread waits for. The kernel is asked about the main thread only."""
    is_often_idle: bool = False
    """A thread there most often waits for work."""
    is_own_code: bool = False
    """The stack waits or computes for a reason inside the program."""

    @property
    def may_be_collective(self) -> bool:
        """Whether the thread that trains may be in a recorded call itself."""
        return self.waits_for_ranks or self.waits_if_asleep


TRAITS: Mapping[FrameClass, ClassTraits] = {
    FrameClass.INIT: ClassTraits(
        shows_purpose=True,
        waits_for_ranks=True,
        shows_wait_for_ranks=True,
        may_spin_in_wait=True,
        names_wait=True,
    ),
    FrameClass.COLLECTIVE: ClassTraits(
        shows_purpose=True,
        waits_for_ranks=True,
        shows_wait_for_ranks=True,
        may_spin_in_wait=True,
        names_wait=True,
    ),
    FrameClass.DATALOADER: ClassTraits(shows_purpose=True, is_busy_elsewhere=True, is_work=True),
    FrameClass.CHECKPOINT: ClassTraits(shows_purpose=True, is_busy_elsewhere=True, is_work=True),
    FrameClass.COMPILE: ClassTraits(shows_purpose=True, is_busy_elsewhere=True, is_work=True),
    FrameClass.DEVICE: ClassTraits(
        waits_if_asleep=True, may_spin_in_wait=True, may_hide_collective=True
    ),
    FrameClass.BACKWARD: ClassTraits(
        waits_if_asleep=True, shows_wait_for_ranks=True, may_hide_collective=True
    ),
    FrameClass.OPTIMIZER: ClassTraits(
        hides_any_call=True, may_hide_collective=True, may_be_at_lock=True, may_be_saving=True
    ),
    FrameClass.LOCK: ClassTraits(
        may_hide_collective=True,
        waits_for_thread=True,
        may_be_at_lock=True,
        may_be_saving=True,
        is_often_idle=True,
        is_own_code=True,
    ),
    FrameClass.NETWORK: ClassTraits(
        # Not busy elsewhere: the other end of the socket may be a rank.
        is_work=True,
        may_be_saving=True,
        may_hide_collective=True,
        names_wait=True,
    ),
    FrameClass.CHILD: ClassTraits(
        is_busy_elsewhere=True,
        is_work=True,
        may_be_saving=True,
        names_wait=True,
        is_own_code=True,
    ),
    FrameClass.THREAD: ClassTraits(
        may_hide_collective=True,
        waits_for_thread=True,
        waits_by_lock=True,
        names_wait=True,
        is_own_code=True,
    ),
    # A thread of a library that serves clients is not what another thread waits for, so its frames
    # do not name a wait.
    FrameClass.SERVER: ClassTraits(waits_by_lock=True),
    FrameClass.USER: ClassTraits(
        hides_any_call=True,
        may_hide_collective=True,
        may_be_at_lock=True,
        may_be_saving=True,
        is_own_code=True,
    ),
    FrameClass.NONE: ClassTraits(
        hides_any_call=True,
        may_hide_collective=True,
        may_be_at_lock=True,
        may_be_saving=True,
        is_often_idle=True,
    ),
}
