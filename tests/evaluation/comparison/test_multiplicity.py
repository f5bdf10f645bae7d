"""Several questions at once: adjusted as statsmodels adjusts them."""

from __future__ import annotations

import numpy as np
import pytest

from osmosis_ai.evaluation.comparison.numbers import benjamini_hochberg, holm

PS = [0.04, 0.001, 0.7, 0.02, 0.02, 1.0, 0.0]


@pytest.mark.nightly
@pytest.mark.parametrize(("adjust", "method"), [(holm, "holm"), (benjamini_hochberg, "fdr_bh")])
def test_p_values_are_adjusted_as_statsmodels_does(adjust, method) -> None:
    from statsmodels.stats.multitest import multipletests

    draw = np.random.default_rng(4)
    for ps in (PS, [0.3], draw.random(40).tolist(), (draw.random(200) ** 4).tolist()):
        assert adjust(ps) == pytest.approx(multipletests(ps, method=method)[1].tolist(), abs=1e-12)


def test_p_values_are_adjusted_by_hand() -> None:
    # Holm: 3 * 0.01, then 2 * 0.02, then 1 * 0.03, never below the one before. Benjamini-Hochberg: 3/1, 3/2, 3/3.
    assert holm([0.02, 0.01, 0.03]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.5, 0.4]) == pytest.approx([0.8, 0.8])
    assert benjamini_hochberg([0.02, 0.01, 0.03]) == pytest.approx([0.03, 0.03, 0.03])
    assert benjamini_hochberg([0.04, 0.001, 0.9]) == pytest.approx([0.06, 0.003, 0.9])


@pytest.mark.parametrize("adjust", [holm, benjamini_hochberg])
def test_a_question_without_an_answer_is_not_counted(adjust) -> None:
    with_gap = adjust([0.01, None, 0.04])
    assert [with_gap[0], with_gap[2]] == adjust([0.01, 0.04])
    assert with_gap[1] is None
    assert adjust([]) == [] and adjust([None]) == [None]
