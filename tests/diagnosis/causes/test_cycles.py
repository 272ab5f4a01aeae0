"""Cycles of four ranks: one called in the wrong group, or two of each took them in two orders."""

from tests.diagnosis.builders import IN_TORCH_ALL_REDUCE, a_rank
from tests.diagnosis.causes.asking import named
from tests.diagnosis.recording import a_recorded_case, calls
from watchtower.diagnosis.diagnosis import diagnose

NUMBERED = {"1": [0, 1], "2": [2, 3], "3": [0, 2], "4": [1, 3]}


class TestWrongGroup:
    """2 x 2 ranks, groups named by numbers; a step calls tp once and dp twice (or tp, then dp)."""

    LINES = ("main.py:41", "main.py:43", "main.py:45")

    def diagnose(self, counts, lines):
        """`counts`: calls of each rank in its tp and its dp group, and which of them is open."""
        built = [
            a_rank(rank, IN_TORCH_ALL_REDUCE.replace("main.py:41", lines[rank]))
            for rank in range(4)
        ]
        made = {}
        for rank, (tensor, data, inside) in counts.items():
            names = ("1" if rank < 2 else "2", "3" if rank % 2 == 0 else "4")
            made[rank] = {
                name: calls("", before=count)
                if name != inside
                else calls("all_reduce", before=count - 1, open=1)
                for name, count in zip(names, (tensor, data), strict=True)
            }
        return diagnose(a_recorded_case(built, NUMBERED, made))

    def test_the_one_whose_counts_cross_all_others_is_named(self):
        first, second, third = self.LINES
        diagnosis = self.diagnose(
            {0: (16, 32, "3"), 1: (17, 32, "1"), 2: (18, 31, "2"), 3: (17, 33, "4")},
            [third, first, first, second],
        )
        assert named(diagnosis) == ("mismatched_collective", [2])
        assert (
            "Compared with rank 1 in its groups, it has made 1 call more in group 2 (ranks 2-3), "
            "but 1 call fewer in group 3 (ranks 0,2); no other rank differs both ways"
        ) in diagnosis.summary

    def test_a_cycle_that_no_two_orders_explain_is_not_sure(self):
        first, second, third = self.LINES
        diagnosis = self.diagnose(
            {0: (16, 32, "3"), 1: (17, 32, "1"), 2: (19, 30, "2"), 3: (17, 33, "4")},
            [third, first, first, second],
        )
        assert diagnosis.confidence <= 0.55

    def test_groups_taken_in_two_orders_by_two_each_are_a_cycle_for_sure(self):
        first, second, _ = self.LINES
        diagnosis = self.diagnose(
            {0: (4, 3, "1"), 1: (3, 4, "4"), 2: (3, 4, "3"), 3: (4, 3, "2")},
            [first, second, second, first],
        )
        assert named(diagnosis) == ("collective_cycle", [0, 1, 2, 3])
        assert diagnosis.confidence > 0.9

    def test_two_orders_in_the_first_step_are_a_cycle_too(self):
        """One of the groups has no call before: groups of other ranks show that it is used."""
        norm, scale, last = self.LINES
        groups = {**NUMBERED, "5": [0, 1], "6": [2, 3]}
        done, waits = calls("all_reduce"), calls("all_reduce", open=1)
        again = calls("all_reduce all_reduce", open=1)
        made = {
            0: {"1": done, "3": done, "5": waits},
            1: {"1": again, "4": done, "5": calls("")},
            2: {"2": calls("all_reduce all_reduce"), "6": done, "3": again},
            3: {"2": calls("all_reduce all_reduce"), "6": done, "4": again},
        }
        built = [
            a_rank(rank, IN_TORCH_ALL_REDUCE.replace("main.py:41", line))
            for rank, line in enumerate((scale, norm, last, last))
        ]
        assert named(diagnose(a_recorded_case(built, groups, made))) == (
            "collective_cycle",
            [0, 1],
        )
