from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from osmosis_ai.rubric.scores import mean_where_known, median_where_known, rescaled
from tests.rubric.tables import NAN, table

with_gaps = arrays(
    np.float64,
    array_shapes(min_dims=2, max_dims=3, max_side=6),
    elements=st.one_of(st.floats(-10, 10), st.just(NAN)),
)


@given(with_gaps)
def test_means_and_medians_leave_out_what_is_missing(values: np.ndarray) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        means, medians = np.nanmean(values, axis=-1), np.nanmedian(values, axis=-1)
    assert mean_where_known(values) == pytest.approx(means, nan_ok=True)
    assert median_where_known(values) == pytest.approx(medians, nan_ok=True)


def test_every_model_has_one_vote_in_the_consensus_however_many_runs_it_scored() -> None:
    sheet = table([[[0.0, NAN, NAN], [1.0, 1.0, 1.0], [0.2, 0.2, 0.2]], [[NAN] * 3] * 3])
    assert sheet.consensus().tolist() == [pytest.approx(0.4), pytest.approx(NAN, nan_ok=True)]
    assert sheet.consensus_median()[0] == pytest.approx(0.2)


def test_scores_of_records_with_bounds_of_their_own_come_to_one_scale() -> None:
    moved = rescaled(
        np.array([[3.0], [0.5]]), np.array([[1.0], [0.0]]), np.array([[5.0], [1.0]]), to_low=0, to_high=10
    )
    assert moved.tolist() == [[5.0], [5.0]]


def test_means_that_are_equal_on_paper_are_equal() -> None:
    sheet = table([[[0.1, 0.5]], [[0.3, 0.3]], [[0.2, 0.4]]])
    assert set(sheet.model_means()[:, 0].tolist()) == {0.3}
