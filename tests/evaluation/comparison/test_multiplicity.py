"""Several questions at once: adjusted as statsmodels adjusts them."""

from __future__ import annotations

import numpy as np
import pytest

from osmosis_ai.evaluation.comparison.multiplicity import benjamini_hochberg, holm

PS = [0.04, 0.001, 0.7, 0.02, 0.02, 1.0, 0.0]


@pytest.mark.imports_much
@pytest.mark.parametrize(("adjust", "method"), [(holm, "holm"), (benjamini_hochberg, "fdr_bh")])
def test_p_values_are_adjusted_as_statsmodels_does(adjust, method) -> None:
    from statsmodels.stats.multitest import multipletests

    draw = np.random.default_rng(4)
    for ps in (PS, [0.3], draw.random(40).tolist(), (draw.random(200) ** 4).tolist()):
        assert adjust(ps) == pytest.approx(multipletests(ps, method=method)[1].tolist(), abs=1e-12)


@pytest.mark.parametrize("adjust", [holm, benjamini_hochberg])
def test_a_question_without_an_answer_is_not_counted(adjust) -> None:
    with_gap = adjust([0.01, None, 0.04])
    assert [with_gap[0], with_gap[2]] == adjust([0.01, 0.04])
    assert with_gap[1] is None
    assert adjust([]) == [] and adjust([None]) == [None]
