"""Makes the summary of a case, right after its diagnosis and from the same picture."""

from __future__ import annotations

from watchtower.core.case_summary import CaseSummary
from watchtower.core.diagnosed import Diagnosis
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.summary.contrast import contrast_suspect
from watchtower.core.summary.grid import draw_grid
from watchtower.core.summary.stacks import merge_main_stacks
from watchtower.core.summary.states import Places, find_states
from watchtower.core.summary.waits import draw_waits


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
