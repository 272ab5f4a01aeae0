"""Right and wrong verdicts by confidence."""

from __future__ import annotations

from watchtower.incidents.calibration import BANDS, Judged, calibrate


def test_every_verdict_is_in_one_band():
    judged = [Judged(confidence=number / 100, is_right=number % 2 == 0) for number in range(101)]
    bands = calibrate(judged)
    assert [band.right_count + band.wrong_count for band in bands] == [50, 10, 10, 10, 10, 11]
    assert sum(band.right_count for band in bands) == 51
    assert [band.confidence_from for band in bands] == list(BANDS)
    assert [band.confidence_to for band in bands] == [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]


def test_a_band_compares_what_was_promised_with_what_was_true():
    (*_, last) = calibrate(
        [Judged(confidence=0.9, is_right=True), Judged(confidence=0.98, is_right=False)]
    )
    assert (last.mean_confidence, last.right_share) == (0.94, 0.5)


def test_a_band_without_verdicts_has_no_share():
    assert {(band.mean_confidence, band.right_share) for band in calibrate([])} == {(None, None)}
