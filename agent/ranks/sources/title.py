"""The place that a process of vLLM or SGLang has in its title.

These servers start their processes themselves and give them their ranks as arguments. Each process
sets a title, with all its positions that are not the only one:

    VLLM::EngineCore  VLLM::EngineCore_DP1  VLLM::Worker_TP0  VLLM::Worker_DP1_PP0_TP3
    sglang::scheduler_TP0  sglang::scheduler_DP0_TP1_EP1

An engine of vLLM starts its workers, sends them each step, and waits for the answer. It is the last
member of its group: only its stack shows whether a request waits. Each engine is a group of its
own: the engines of one server serve different requests. A prefix may stand before the title
(VLLM_PROCESS_NAME_PREFIX).

Sources: set_process_title in vllm/utils/system_utils.py, setup_proc_title_and_log_prefix in
vllm/v1/executor/multiproc_executor.py; configure_scheduler_process in sglang's scheduler.py.
"""

from __future__ import annotations

import re

from agent.ranks.sources.source import Membership, Shown, Source

TITLE = re.compile(
    r"(?:.{0,64}::)?(?P<server>VLLM|sglang)::(?P<role>EngineCore|Worker|scheduler)"
    r"(?P<place>(?:_[A-Z]{2,3}[0-9]{1,5}){0,8})\Z"
)

AXIS = re.compile(r"_([A-Z]{2,3})([0-9]+)")

REPLICA = "DP"
"""Data parallel: the number of the engine."""

AXES = ("PP", "TP", "CP", "EP")
"""The outermost first, as the servers number their workers."""


def find_place(shown: Shown) -> Membership | None:
    """Return the place in a title; None for another title."""
    found = TITLE.match(shown.title)
    if found is None:
        return None
    at = {axis: int(number) for axis, number in AXIS.findall(found["place"])}
    group = found["server"].lower()
    if found["server"] == "VLLM" and REPLICA in at:
        group += f".{REPLICA}{at[REPLICA]}"
    leads = found["role"] == "EngineCore"
    replica = at.get(REPLICA, 0)
    return Membership(
        group=group,
        role=found["role"] + found["place"],
        position=(int(leads), replica, *(at.get(axis, 0) for axis in AXES)),
        leads=leads,
    )


SOURCE = Source(find_member=find_place)
