"""A process of another user that attacks the agent and the tower.

Usage: python -I neighbour.py PLAN, as root. It drops root's rights before it becomes visible.
"""

import ctypes
import itertools
import json
import os
import random
import signal
import struct
import sys
import threading
import time

from watchtower_heartbeat import layout

PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
BEAT_S = 0.2
SMALL_STACK_BYTES = 512 << 10
EXTREMES = (-(2**63), -1, 0, 1, 2**31, 2**53 + 1, 2**62, 2**63 - 1)
HUGE_GROUPS_BYTES = 1 << 40  # sparse: it uses no memory
STACKS = {
    # Number of threads, their depth, and the start of function names and file names.
    "plain": (1, 1, "train"),
    "names": (16, 90, "_" * 1000),
    "words": (16, 90, "checkpoint_" * 90),
    "threads": (400, 40, "wait"),
    "deep": (2, 900, "all_reduce_"),
}


def become(user):
    """Drop root's rights, and end with the process that started this one."""
    parent = os.getppid()
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent or 0 in os.getresuid():
        sys.exit("the drill has ended, or root's rights could not be dropped")


class ForgedPage:
    """A heartbeat file written by hand, with invalid values."""

    def __init__(self, job, rank, world_size):
        self.descriptor = os.memfd_create(layout.MEMFD_NAME)
        os.ftruncate(self.descriptor, layout.PAGE_SIZE)
        groups = os.memfd_create(layout.GROUPS_MEMFD_NAME)
        os.ftruncate(groups, HUGE_GROUPS_BYTES)
        head = layout.GROUPS_MAGIC + struct.pack("=qq", layout.GROUPS_VERSION, HUGE_GROUPS_BYTES)
        os.pwrite(groups, head, 0)
        os.pwrite(self.descriptor, layout.MAGIC, layout.MAGIC_AT)
        self.put(layout.SIZE_AT, layout.PAGE_SIZE)
        for name in layout.STARTS_UNKNOWN:
            self.word(name, layout.UNKNOWN)
        self.word("pid", os.getpid())
        self.word("rank", rank)
        self.word("local_rank", rank)
        self.word("world_size", world_size)
        self.word("groups_descriptor", groups)
        self.text("job", job)
        self.put(layout.STEP_AT, layout.UNKNOWN)
        self.put(layout.STEP_BEGUN_AT, layout.UNKNOWN)
        # Last: from now on it counts as a heartbeat file.
        self.put(layout.VERSION_AT, layout.VERSION)

    def put(self, offset, value):
        os.pwrite(self.descriptor, struct.pack("=q", value), offset)

    def word(self, name, value):
        self.put(layout.COLD_WORDS[name], value)

    def text(self, name, text):
        offset, size = layout.COLD_TEXTS[name]
        os.pwrite(self.descriptor, text.encode()[: size - 1].ljust(size, b"\0"), offset)

    def beat(self, step, moment_ns):
        self.put(layout.STEP_BEGUN_AT, step)
        self.put(layout.TIME_NS_AT, moment_ns)
        self.put(layout.STEP_AT, step)


class Neighbour:
    def __init__(self, plan):
        self.plan = plan
        self.page = ForgedPage(plan["job"], plan["rank"], plan["world_size"])
        self.ends_at = time.monotonic() + (plan.get("lives_s") or float("inf"))
        self.hangs = False

    def run(self):
        signal.signal(signal.SIGUSR1, self.hang)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        threads, depth, name = STACKS[self.plan["stacks"]]
        threading.stack_size(SMALL_STACK_BYTES)
        forever = threading.Event()
        for number in range(threads - 1):
            descend = build_descent(f"{name}{number}_", depth)
            thread = threading.Thread(target=descend, args=(forever.wait,), daemon=True)
            thread.name = f"{name}{number}"
            thread.start()
        sys.setrecursionlimit(2 * depth + 1000)
        build_descent(name, depth)(self.attack)

    def hang(self, number, frame):
        """Stop the steps, so that all attackers are dumped at the same time."""
        self.hangs = True

    def attack(self):
        """Step for some seconds, then pause for some, repeatedly. Each pause causes a dump."""
        for step in itertools.count():
            while self.hangs:
                self.stay(BEAT_S)
            if step and step % self.plan["steps"] == 0:
                self.stay(self.plan["still_s"])
            if self.plan["forges"]:
                self.forge()
            else:
                self.page.beat(step, time.monotonic_ns())
            self.stay(BEAT_S)

    def stay(self, seconds):
        left_s = self.ends_at - time.monotonic()
        time.sleep(max(0.0, min(seconds, left_s)))
        if seconds >= left_s:
            self.die()

    def forge(self):
        """Write the smallest and largest numbers of a word."""
        for name in ("phase_since_ns", "nonfinite_losses", "last_nonfinite_step"):
            self.page.word(name, random.choice(EXTREMES))
        self.page.text("phase", random.choice(("", "checkpoint", "_" * 60, "\x1b[2J")))
        for offset in range(layout.TRANSFERS_AT, layout.TRANSFERS_LEFT_OUT_AT, 8):
            self.page.put(offset, random.choice(EXTREMES))
        self.page.beat(random.choice(EXTREMES), random.choice(EXTREMES))

    def die(self):
        """End like a rank with an uncaught exception, with forged texts."""
        self.page.text("exception_type", "torch.OutOfMemoryError")
        self.page.text("exception_message", "<!channel> `rank 0` \x1b[31m" + "_" * 400)
        self.page.word("ended", layout.ENDED_EXCEPTION)
        self.page.word("ended_ns", 2**63 - 1)
        os._exit(1)


def build_descent(name, depth):
    """Return a function that calls `depth` functions in sequence; the last one calls its
    argument.
    """
    names = [f"{name}{level}" for level in range(depth)]
    lines = [f"def {names[-1]}(last): last()"]
    for outer, inner in itertools.pairwise(names):
        lines.append(f"def {outer}(last): {inner}(last)")
    scope = {}
    exec(compile("\n".join(lines), f"/checkpoint/{name}.py", "exec"), scope)
    return scope[names[0]]


def main():
    plan = json.loads(sys.argv[1])
    become(plan["user"])
    Neighbour(plan).run()


if __name__ == "__main__":
    main()
