"""The agent's settings and every bound it keeps, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass, field

from watchtower.access.tokens import ClientToken

DEFAULT_INTERVAL_S = 1.0
"""One report a second: the tower's suspect deadline starts at 5 s."""

LONGEST_ASKED_INTERVAL_S = 10.0
"""Whatever a tower asks for, the agent reports at least this often, if it is set to."""

MIN_INTERVAL_S = 0.1
MAX_INTERVAL_S = 60.0
"""Slower than a minute the tower would take the node for lost."""

DEFAULT_PORT = 19650
DEFAULT_METRICS_HOST = "127.0.0.1"
"""Metrics name jobs and nodes; whoever wants them from outside puts a proxy in front."""

MAX_MATCHES = 16
"""`--match` conditions; each is one search per new process."""

CHECK_AGAIN_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
"""When a process that may become a rank is checked again; the last one repeats."""

DESCRIPTORS_PER_S = 200
"""Links read per second in the search for pages: at 5 us each a tenth of a percent of a core."""

DESCRIPTORS_PER_CANDIDATE_S = 0.25
"""On a node with ten thousand processes more are read: each has its turn within half a minute."""

DESCRIPTOR_BURST = 4000
"""Links read at once after a quiet time: eight trainers that start together are found at once."""

MAX_DESCRIPTORS_PER_PROCESS = 4096
"""Links read of one process in one check; a page is made early and has a low descriptor."""

FIRST_DESCRIPTORS = 64
DEEPER_EACH_CHECK = 4
"""The first check of a process is short, because most pages are found in it and most processes have
none; each later check goes four times as far."""

MAX_PAGES_TRIED = 32
"""Pages opened in one check of a process: it has its own and those it inherited."""

MAX_VARIABLES = 4096
"""Variables checked in one environment; real ones have a hundred."""

MAX_ARGUMENTS = 10
"""Words of a command line that are kept: whether it is a launcher stands in the first."""

CONSIDER_FOR_S = 0.25
"""Time per tick for processes never seen before: a whole node is considered in one tick, and ten
thousand that start at once in some, without holding up the reports."""

MAX_REPORT_BYTES = 1 << 20
"""A tower takes twice as much; 8 ranks are 5 kB."""

SAMPLES_PER_TICK = 32
"""Child processes whose CPU and bytes are read per tick; more of them take turns."""

MAX_METERED_CHILDREN = 256
"""Children of one rank whose movement counts; each takes two descriptors of ours."""

MAX_OWN_DESCRIPTORS = 65536
"""The usual limit of 1024 is that of programs with select(2): 8 ranks with 64 workers need more."""

MAX_LINEAGE = 64
"""Ancestors checked: deeper chains exist only in loops of our own making."""

ENDED_KEPT_S = 3600.0
"""An ended rank stays in the reports this long, so that a tower that starts late learns of it."""

MAX_ENDED = 256
"""Ended ranks kept; beyond it the oldest go, as a job that restarts in a loop would fill memory."""

MAX_POD_FOLDERS = 4096
"""Folders checked in /var/log/pods; a node runs 110 pods by default, and old ones stay."""

MAX_KNOWN_PODS = 4096

POD_WAIT_S = 1.0
"""That folder is not read again sooner, however many pods are not in it."""

PROC_ARGS_WAIT_S = 0.25
"""To read what a process was started with. It takes 20 us; longer, and its memory map is locked."""

PROC_ARGS_WAIT_BURST_S = 1.0
PROC_ARGS_WAIT_SHARE = 0.1
"""What such waits may cost at once and, after that, of all time: reports go on meanwhile, however
many processes hang."""

MAX_STUCK_READS = 64
"""Threads left behind in such a read. An owner that has its share of them gets nothing more read
until one is back."""

PY_SPY_DEADLINE_S = 3.0
"""A dump takes 10 ms; one that takes this long will not come back."""

PY_SPY_TRIES = 3
"""A dump without stopping the process is torn in about 4 of 100 tries on a busy one."""

PY_SPY_AT_ONCE = 3
"""Two at once take two thirds of the time of one by one, more give nothing. One owner has two at
most, and the third is for the others: py-spy may hang on each process of an owner."""

MAX_PY_SPY_OUTPUT_BYTES = 4 << 20
"""The largest real dump seen has 48 kB."""

MAX_TOOL_MEMORY_BYTES = 128 << 20
"""Memory of its own that a tool may have. py-spy takes 3 MB, 17 MB for 300 threads of 100 frames
(more it cannot read before its deadline), the child that reads source 9 MB. Three py-spy at this
limit and the agent fit into the MemoryMax of its unit."""

CHILD_STACKS_PER_RANK = 16
"""Children of one rank dumped by py-spy; of the others the kernel's words must do."""

MAX_BATCH_CHILDREN = 4096
MAX_BATCH_THREADS = 50_000
"""In one batch, about 10 MB; the ranks of a node share them evenly."""

MAX_BATCH_FRAMES = 50_000
"""Frames in one batch, about 8 MB; ranks hang in the same few places: real ones have hundreds."""

RECORDS_DEADLINE_S = 1.0
"""For all that a process is asked of its collective records: an answer takes a millisecond, a full
ring 27."""

RECORDS_AT_ONCE = 4
"""Processes asked at the same time. Who does not answer costs a second, but no CPU."""

MAX_RANK_RECORDS = 4096
"""Collectives of one rank: the last eight of 512 groups. Of further groups only the numbers go."""

MAX_BATCH_LOG_BYTES = 3 << 20
"""Of logs of collectives in one batch. A log with its last calls is 1 kB, ranks share many, and 8
ranks in 16 groups are 120 kB; what is more goes without the calls, 150 bytes each."""

MAX_BATCH_MEMBERS_TEXT = 1 << 20
"""Characters of members of all groups in one batch: spans are short, subsets of no order long."""

SOURCE_DEADLINE_S = 2.0
"""For all source files of a round; reading some takes 30 ms, and one that hangs never ends."""

MAX_SOURCES_PER_ROUND = 64
"""Files read in one round: a stack has a handful of the user's own, and ranks have the same."""

MAX_LINES_PER_SOURCE = 256
"""Lines checked in one file at once."""

MAX_KNOWN_SOURCES = 1024
"""Files of living processes whose lines are remembered, so that the second round reads nothing."""

MAX_KNOWN_LINES = 4096
"""Of one of them: who is seen in more lines than that makes them up."""

SOURCE_CHANGED_SLACK_S = 1.0
"""A file that changed later than this after its process began is not what the process runs; a
process begins with a hundredth of a second's accuracy, and loads its files after that."""

MAX_SOURCE_OUTPUT_BYTES = 1 << 20
"""Line numbers of one round: 64 files of 256 lines with eight loops are 0.9 MB."""

ROUND_DEADLINE_S = 10.0
"""What a round has not reached by then is sent as a timeout: evidence now beats evidence later."""

ROUND_GRACE_S = 5.0
"""After that deadline a py-spy that runs may end; then the round is sent with what there is."""

MAX_ROUNDS_LEFT_BEHIND = 8
"""Rounds that were sent although they were not over, as something in /proc hangs. An owner that has
its share of them gets no further one, the others do."""

ROUND_GAP_S = 1.0
"""Between the two rounds of a dump: equal stacks a second apart mean stuck, not slow."""

DUMPS_AT_ONCE = 8
"""Jobs dumped at the same time on one node. One owner has four at most."""

DUMP_EXPIRES_S = 60.0
"""A dump that has not said by then that it is over is over: two rounds take half of it."""

SATISFIED_BY_S = 3.0
"""An order is satisfied by a dump of that job that ended less than this ago."""

REPEAT_DUMP_S = 30.0
"""The earliest a rank that stays overdue makes the agent dump again; doubles each time."""

MAX_REPEAT_DUMP_S = 480.0

MAX_DUMPS_PER_MINUTE = 6
"""Of one job, whoever asks: a hang needs two or three, and a deadline of 0 s must not cost more."""

MAX_JITTER_S = 10.0
"""An agent delays a dump by no more than this, whatever jitter the tower asks for."""

MAX_SAMPLES_PER_MINUTE = 60
"""Of one job; a tower asks for two, and for one a second where its settings say so."""

REMEMBERED_ORDERS = 1024
"""Ids of orders already carried out."""

MAX_WAITING_BATCHES = 64
MAX_WAITING_BYTES = 32 << 20
"""Dumps in memory while the tower is away; real ones have 100 kB each, the largest 16 MB."""

MAX_SPOOL_BATCHES = 256
MAX_SPOOL_BYTES = 64 << 20
"""Dumps on disk: an hour without the tower takes about 24 for each job that hangs."""

MAX_SPOOL_ENTRIES = 4096
"""Names checked in the spool's folder; there are more only when it is not ours alone."""

SPOOL_RETRY_S = 30.0
"""When a folder that could not be used is tried again."""

SPOOL_IS_SLOW_S = 10.0
"""A write that takes this long is said: the disk hangs, and dumps are in memory only."""

MAX_HELD_S = 24 * 3600.0
"""Older dumps are not sent: that hang has been examined without them."""

STOP_FLUSH_S = 1.0
"""How long the end of the agent waits for the spool."""

STOP_DEADLINE_S = 4.0
"""The agent is gone this long after SIGTERM, whatever hangs: 5 s are promised."""

RETRY_SPREAD_S = 2.0
"""After a failed report the next one waits up to this long, by chance: 2000 agents come back at
1000 connections a second, as many as their reports, and detection starts again within 2 s."""

OLD_DUMP_S = 60.0
BACKLOG_SPREAD_S = 10.0
"""After an old dump the next one waits up to this long, by chance: 2000 agents that kept theirs for
an hour must not take the room of the dumps of a hang of now. A new dump does not wait."""

FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 15.0
"""Longest pause between two tries to deliver a dump."""

GAPS_EVERY_S = 60.0
"""How often the agent checks again what it may do (Yama, capabilities, py-spy)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the command line said, checked."""

    tower: str
    node: str
    interval_s: float = DEFAULT_INTERVAL_S
    metrics_host: str = DEFAULT_METRICS_HOST
    port: int = DEFAULT_PORT
    match: tuple[tuple[str, str], ...] = ()
    root: str = "/"
    token: ClientToken = field(default_factory=ClientToken)
    ca_file: str = ""
    """Empty: the system's authorities."""
    py_spy: str = ""
    """Empty: the one beside this Python, else on PATH."""
    read_source: bool = True
    """Tell where loops begin in the source of what is dumped."""
    log_level: str = "info"
    spool_dir: str = ""
    """Empty: dumps wait in memory only."""
    check_only: bool = False
    settings_file: str = ""
    """Environment file of the service that a check read; empty without one."""
    """Say what could not be done, and do nothing."""
