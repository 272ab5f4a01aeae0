"""The sentences of doubts: why the confidence of a verdict is not higher."""

from __future__ import annotations

from watchtower.diagnosis.accusation import Accusation
from watchtower.diagnosis.picture import Picture
from watchtower.wire.verdict import Doubt
from watchtower.writing.ranksets import name_ranks
from watchtower.writing.text import clean

MAX_DOUBTS = 4
"""Doubts of one verdict, those that limit the confidence most."""

MAX_RANKS = 60
"""Most characters of a rank set in a doubt."""

SENTENCES = {
    "no_heartbeats": "no rank has heartbeats, so only stack samples show that the job has stopped",
    "serves_clients": "{suspects} waits for clients, and the job may have nothing to do",
    "stack_missing": "the position of {unseen} is unknown, and the cause may be there",
    "several_deaths": "several ranks ended at the same moment",
    "leads": "{suspects} completed at least two steps more than the waiting ranks",
    "may_not_be_awaited": "{suspects} may be waiting for another rank, or may still make progress",
    "may_poll": "{suspects} may wait for its GPU like the others: its native place is not known",
    "came_out": "{suspects} just left a collective that other ranks are still in",
    "all_go_on": "the stacks changed between two samples, so possibly no rank is blocked",
    "may_be_moving": "{suspects} may still make progress: no two samples show the same stack",
    "gave_up": "the ranks that waited have ended, and {suspects} may have come to this place only "
    "afterwards",
    "no_rank_waits": "no stack and no collective log shows a rank that waits for {suspects}",
    "by_threads": "the collectives run in other threads, so that main threads wait is inferred",
    "presumed": "no collective log shows that the other ranks wait for {suspects}",
    "scattered": "the other ranks are at several lines of one function, and one line may be a lock",
    "many_elsewhere": "more ranks are suspected than wait, so this may be normal work",
    "coarse": "the stack of {suspects} fits none of the known causes",
    "pair": "there are only two ranks, and either may be in a call that the other never makes",
    "no_answer": "{suspects} may wait like the others: the samples do not show it",
    "fed_by_process": "no stack frame shows that {suspects} was loading a batch: the process queue "
    "may carry something else",
    "gil_inside_call": "the main thread of {suspects} is in a collective and may wait for others",
    "latecomer": "{suspects} may be creating a process group that the other ranks do not create",
    "most_latecomers": "most ranks are still in set-up",
    "most_outside": "most ranks are not in set-up",
    "most_missing": "most ranks were never seen",
    "connection_lost": "the other end of the lost connection may be outside the job",
    "connection_lost_among_others": "a lost connection may be a consequence, and other ranks are "
    "in trouble",
    "first_of_same": "other ranks raised the same error, and only the time separates {suspects} "
    "from them",
    "first_of_victims": "each rank reports a lost connection, and only the time separates "
    "{suspects} from the others",
    "odd_text": "other ranks ended at the same moment, and only the text separates {suspects} "
    "from them",
    "may_have_given_up": "these ranks may have given up waiting for a rank that ended after them",
    "had_not_given_up": "only that {suspects} ended later, and in another way, separates it from "
    "the others",
    "left_afterwards": "no rank waits, so the job may have ended normally, with errors at exit",
    "most_left": "most ranks have exited",
    "agent_alone": "only the agent of the node may be gone, and a rank of that node may hang",
    "node_left_earlier": "the job made steps after the node stopped reporting",
    "others_elsewhere": "another rank, on a live node, does not wait and may hold up the job",
    "all_blocked": "all ranks on several nodes are blocked, so they may share the cause",
    "gpu_error_earlier": "the job continued after the error of the GPU",
    "gpu_frozen": "counters that stand still may be a fault of the counters alone",
    "gpus_unknown": "it is not known what the GPUs of all ranks do",
    "gpu_error_beside": "{suspects} waits for others, and another rank does not",
    "lines_alone": "only source lines show which calls differ: there are no collective logs",
    "lines_may_fit": "without collective logs, calls at these lines may belong together",
    "condition_unknown": "the sources do not show whether a loop ended or a condition differs",
    "other_sends": "the message may have been sent by isend(), which is not counted",
    "other_messages": "the messages may have been sent by isend(), which is not counted",
    "may_have_left_out": "{suspects} may instead have left out an earlier call and come here "
    "before the others",
    "even_split": "no majority of the ranks makes the same call",
    "logs_missing": "some members of these groups have no collective log",
    "both_ahead": "both ends of the exchange seem to be ahead of each other",
    "cycle_unproven": "some ranks of the cycle have no collective log, and may have made the calls",
    "mixed_cycle": "a skipped or repeated call would cause the same cycle",
    "one_of_cycle": "one rank may have called the wrong group, and it is not known which rank",
    "same_line": "no collective log shows whether a rank is at this line in another iteration",
    "rank_differs": "something measured separates a rank from the others",
    "may_be_unrelated": "what separates {suspects} from the others may have another reason",
    "some_left": "some ranks have left the call, so the others may wait for something else",
    "call_queued": "one rank may not have begun the call, and that rank would be the cause",
    "log_has_hole": "a collective log does not show whether some call is over",
    "also_held_up": "the ranks in this call also wait for a rank in another call",
    "called_less": "some ranks have made fewer calls, and their stacks show no wait for ranks",
    "link_errors_alone": "the link has errors, but was not lost",
    "link_may_be_unused": "it is not known whether the job uses this link",
    "counts_apart": "some ranks are several calls ahead, and may count other calls",
    "roots_may_differ": "ranks that passed different roots would wait in the same way",
    "one_of_two": "there are only two ranks, and one of them always waits less",
    "uncounted": "some ranks have too few samples",
}
"""Each completes "not certain because ..."."""


def write_doubts(picture: Picture, accusation: Accusation) -> tuple[Doubt, ...]:
    """Return the doubts that limit the confidence, the lowest ceiling first."""
    names = {
        "suspects": clean(name_ranks(accusation.ranks), MAX_RANKS) if accusation.suspects else "",
        "unseen": clean(name_ranks(i.rank for i in picture.unseen), MAX_RANKS)
        if picture.unseen
        else "",
    }
    return tuple(
        Doubt(kind=each.kind, text=SENTENCES[each.kind].format_map(names))
        for each in accusation.limits[:MAX_DOUBTS]
    )
