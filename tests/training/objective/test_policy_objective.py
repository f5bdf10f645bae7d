"""The policy objective, from recorded rollouts to loss and gradient, against numbers worked by hand.

Rollout a has two turns: it samples two tokens, gets a tool's reply, and samples a third. Its advantage is 1. Rollout b
samples two tokens, and its advantage is -2. All but the last token of a were sampled two updates ago.
"""

from __future__ import annotations

import math

import pytest

from osmosis_ai.config.training import TrainingSettings
from tests.lazily import lazily

with lazily("torch"):
    import torch

    from osmosis_ai.training.objective.batches import batch_totals, collate, training_rows
    from osmosis_ai.training.objective.losses import policy_objective
    from osmosis_ai.training.objective.sequences import TokenSequence

MASKS = [[0, 1, 1, 0, 1], [0, 1, 1]]
SAMPLER = [[1.0, 0.5, 0.2, 1.0, 0.4], [1.0, 0.6, 0.1]]
VERSIONS = [[-1, 0, 0, -1, 2], [-1, 0, 0]]
ADVANTAGES = [1.0, -2.0]
# pi_proximal / pi_sampler at each sampled token.
C = [[1.2, 3.0, 0.5], [1.0, 4.0]]
# pi / pi_proximal. With advantage 1, 1.5 is clipped to 1.28, and 0.7 is not clipped. With advantage -2, 1.5 is not
# clipped, and 0.5 is clipped to 0.8.
R = [[1.1, 1.5, 0.7], [1.5, 0.5]]
# The sequence ratios are (1 * 1.21 * 1.1)^(1/3) = 1.1 and (0.25 * 1)^(1/2) = 0.5, clipped to 0.8.
R_GSPO = [[1.0, 1.21, 1.1], [0.25, 1.0]]
ONES = [[1.0] * 3, [1.0] * 2]


def objective(settings, ratios, proximal_ratios=None):
    """Return loss, gradient at each sampled token, and terms where pi / pi_sampler = ``ratios`` times ``proximal_ratios``."""
    sequences = [
        TokenSequence(name, [7] * len(mask), mask, [math.log(p) for p in sampler], versions)
        for name, mask, sampler, versions in zip("ab", MASKS, SAMPLER, VERSIONS, strict=True)
    ]
    rows, rollouts = training_rows(sequences, ADVANTAGES)
    batch = collate(rows, torch.device("cpu"))
    places = batch.mask_BK.nonzero(as_tuple=True)

    def plus(logprobs, factors):
        changed = logprobs.clone()
        changed[places] += torch.tensor([factor for row in factors for factor in row]).log()
        return changed

    proximal = plus(batch.logged_logprobs_BK, proximal_ratios or ONES)
    logprobs = plus(proximal, ratios).requires_grad_()
    loss, terms, gaps = policy_objective(
        settings,
        batch,
        batch_totals(rows, rollouts, settings.max_response_length),
        logprobs,
        proximal_BK=proximal if proximal_ratios else None,
        policy_version=2,
    )
    loss.backward()
    assert (logprobs.grad[~batch.mask_BK] == 0).all()
    found = {name: values[places].tolist() for name, values in terms.items()}
    return float(loss.detach()), logprobs.grad[places].tolist(), {**found, "gaps": gaps[places].tolist()}


def settings(loss_type, **changes):
    known = {"clip_low": 0.2, "clip_high": 0.28, "max_response_length": 8}
    return TrainingSettings(loss_type=loss_type, **{**known, **changes})


@pytest.mark.parametrize(
    ("loss_type", "loss", "gradient"),
    [
        # -(mean(1, 1, 1) + mean(-2, -2)) / 2; a token of a weighs 1/6, one of b 1/4.
        ("grpo", 0.5, [-1 / 6, -1 / 6, -1 / 6, 0.5, 0.5]),
        # -(3 - 4) / 5
        ("dapo", 0.2, [-0.2, -0.2, -0.2, 0.4, 0.4]),
        # -(3 - 4) / (2 rollouts * 8 tokens)
        ("dr_grpo", 0.0625, [-0.0625, -0.0625, -0.0625, 0.125, 0.125]),
        ("gspo", 0.5, [-1 / 6, -1 / 6, -1 / 6, 0.5, 0.5]),
    ],
)
def test_without_staleness_the_policy_is_the_sampler(loss_type, loss, gradient):
    found, slopes, terms = objective(settings(loss_type), ONES)
    assert found == pytest.approx(loss, abs=1e-6)
    assert slopes == pytest.approx(gradient, abs=1e-6)
    assert not any(terms["clipped"]) and "capped" not in terms


@pytest.mark.parametrize(
    ("loss_type", "loss", "gradient"),
    [
        # c A is 1.2, 2 (3 capped), 0.5 and -2, -4 (4 capped): sums 3.7 and -6.
        # -(3.7/3 - 6/2) / 2
        ("grpo", 0.8833333, [-0.2, -1 / 3, -0.5 / 6, 0.5, 1.0]),
        # -(3.7 - 6) / 5
        ("dapo", 0.46, [-0.24, -0.4, -0.1, 0.4, 0.8]),
        # -(3.7 - 6) / 16
        ("dr_grpo", 0.14375, [-0.075, -0.125, -0.03125, 0.125, 0.25]),
        # The gradient of a sequence's ratio is spread over its tokens: 3.7/3 * 1/6 and 3/2 * 2 * 1/4.
        ("gspo", 0.8833333, [-0.2055556, -0.2055556, -0.2055556, 0.75, 0.75]),
    ],
)
def test_with_staleness_the_importance_of_each_token_is_capped_and_nothing_is_clipped(
    loss_type, loss, gradient
):
    # The proximal policy is the current one, so C is pi / pi_sampler.
    found, slopes, terms = objective(settings(loss_type, max_staleness=2), C)
    assert found == pytest.approx(loss, abs=1e-6)
    assert slopes == pytest.approx(gradient, abs=1e-6)
    assert terms["capped"] == [False, True, False, False, True]


def test_a_larger_cap_is_not_reached():
    # c A is 1.2, 3, 0.5 and -2, -8: -(4.7 - 10) / 5.
    found, slopes, terms = objective(settings("dapo", max_staleness=2, importance_cap=10.0), C)
    assert found == pytest.approx(1.06, abs=1e-6)
    assert slopes == pytest.approx([-0.24, -0.6, -0.1, 0.4, 1.6], abs=1e-6)
    assert not any(terms["capped"])


@pytest.mark.parametrize(
    ("loss_type", "ratios", "loss", "gradient"),
    [
        # a: 1.2 * 1.1 + 2 * 1.28 + 0.5 * 0.7 = 4.23, and b: 1 * 1.5 * -2 + 2 * 0.8 * -2 = -6.2.
        # -(4.23/3 - 6.2/2) / 2; a clipped token has no gradient, another one -w c r A.
        ("grpo", R, 0.845, [-0.22, 0.0, -0.35 / 6, 0.75, 0.0]),
        # -(4.23 - 6.2) / 5
        ("dapo", R, 0.394, [-0.264, 0.0, -0.07, 0.6, 0.0]),
        # -(4.23 - 6.2) / 16
        ("dr_grpo", R, 0.123125, [-0.0825, 0.0, -0.021875, 0.1875, 0.0]),
        # a: 3.7 * 1.1 = 4.07, and b: (1 + 2) * 0.8 * -2 = -4.8. -(4.07/3 - 4.8/2) / 2; a's slope is 4.07/3 * 1/6.
        ("gspo", R_GSPO, 0.5216667, [-0.2261111, -0.2261111, -0.2261111, 0.0, 0.0]),
    ],
)
def test_the_ratio_to_another_proximal_policy_is_clipped_on_both_sides(loss_type, ratios, loss, gradient):
    found, slopes, _ = objective(settings(loss_type, max_staleness=2), ratios, proximal_ratios=C)
    assert found == pytest.approx(loss, abs=1e-6)
    assert slopes == pytest.approx(gradient, abs=1e-6)


def test_drift_is_measured_from_the_sampler_and_gaps_only_on_tokens_of_the_current_version():
    _, _, terms = objective(settings("dapo", max_staleness=2), C)
    # Only 3 is above 1.28 with a positive advantage; 1 and 4 are not below 0.8 with a negative one.
    assert terms["clipped"] == [False, True, False, False, False]
    # x - 1 - ln x
    k3 = [0.2 - 0.1823216, 2 - 1.0986123, -0.5 + 0.6931472, 0.0, 3 - 1.3862944]
    assert terms["approx_kl"] == pytest.approx(k3, abs=1e-6)
    assert terms["gap_tokens"] == [False, False, True, False, False]
    assert terms["gaps"] == pytest.approx([0.0, 0.0, 0.6931472, 0.0, 0.0], abs=1e-6)
