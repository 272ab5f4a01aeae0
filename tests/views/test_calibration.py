"""Right and wrong verdicts by confidence."""

from __future__ import annotations

from watchtower.incidents.incident import Feedback
from watchtower.views.people import BANDS, count_bands
from watchtower.wire.verdict import Cause


def judged(confidence: float, right: bool) -> Feedback:
    return Feedback(
        incident="01A",
        job="llama",
        at=0.0,
        right=right,
        verdict_cause=Cause.EXCEPTION,
        confidence=confidence,
    )


def test_every_verdict_is_in_one_band():
    bands = count_bands([judged(number / 100, number % 2 == 0) for number in range(101)])
    assert [band.right_count + band.wrong_count for band in bands] == [50, 10, 10, 10, 10, 11]
    assert sum(band.right_count for band in bands) == 51
    assert [band.confidence_from for band in bands] == list(BANDS)
    assert [band.confidence_to for band in bands] == [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]


def test_a_band_compares_what_was_promised_with_what_was_true():
    (*_, last) = count_bands([judged(0.9, True), judged(0.98, False)])
    assert (last.mean_confidence, last.right_share) == (0.94, 0.5)


def test_a_band_without_verdicts_has_no_share():
    bands = count_bands([])
    assert {(band.mean_confidence, band.right_share) for band in bands} == {(None, None)}
