"""Makes the summary of a case, right after its diagnosis and from the same picture. It decides
nothing. Each part that pages show is one file.
"""

from __future__ import annotations

from watchtower.diagnosis.diagnosed import Diagnosis
from watchtower.diagnosis.picture import Picture
from watchtower.views.case_summary import CaseSummary
from watchtower.views.summary.contrast import contrast_suspect
from watchtower.views.summary.grid import Places, draw_grid, find_states
from watchtower.views.summary.stacks import merge_main_stacks
from watchtower.views.summary.waits import draw_waits


def summarize(picture: Picture, diagnosis: Diagnosis) -> CaseSummary:
    """Return what pages show of the case."""
    named = [suspect.rank for suspect in diagnosis.suspects]
    suspects, places = frozenset(named), Places()
    states = find_states(picture, suspects)
    return CaseSummary(
        ranks=draw_grid(picture, states, places),
        stacks=merge_main_stacks(picture, suspects),
        waits=draw_waits(picture, states, places),
        contrast=contrast_suspect(picture, named, places),
    )
