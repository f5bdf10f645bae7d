"""Each loss against arithmetic done by hand, and the properties all of them share.

The example: two sequences of three tokens. The first samples all three, the second two (its third
position is masked). Advantages +1 and -1. Only ratios that are easy to follow occur: the policy gives
the tokens of the first sequence 1, 1.5 and 0.5 times the probability they were sampled with, those of
the second 2 and 0.9 times."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_ai.config.training import TrainingSettings
from tests.lazily import lazily

with lazily("torch"):
    import torch

    from osmosis_ai.training.objective import losses as module
    from osmosis_ai.training.objective.batches import (
        BatchTotals,
        MicroBatch,
        UnsampledTokenError,
        batch_totals,
        collate,
        plan_micro_batches,
        training_rows,
    )
    from osmosis_ai.training.objective.losses import k3_divergence, policy_objective, score_tokens
    from osmosis_ai.training.objective.sequences import TokenSequence

LOSS_TYPES = ["grpo", "dapo", "dr_grpo", "gspo"]
LOW, HIGH = 0.2, 0.28


def setup_module() -> None:
    global MASK, ADVANTAGES, OLD, LOGPROBS, LOGITS, TARGETS
    MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])
    ADVANTAGES = torch.tensor([1.0, -1.0], dtype=torch.float64)
    OLD = torch.tensor([[-1.0, -2.0, -0.5], [-1.5, -0.7, 0.0]], dtype=torch.float64)
    ratios = torch.tensor([[1.0, 1.5, 0.5], [2.0, 0.9, 1.0]], dtype=torch.float64)
    LOGPROBS = OLD + ratios.log()
    LOGITS = torch.randn(2, 5, 11, generator=torch.Generator().manual_seed(0))
    TARGETS = torch.randint(0, 11, (2, 5), generator=torch.Generator().manual_seed(1))


def objective_of(
    loss_type, logprobs=None, old=None, advantages=None, mask=None, lengths=None, settings=None, **given
):
    logprobs, old, advantages, mask = (
        default if value is None else value
        for value, default in ((logprobs, LOGPROBS), (old, OLD), (advantages, ADVANTAGES), (mask, MASK))
    )
    lengths = mask.sum(1) if lengths is None else lengths
    batch = MicroBatch(None, None, None, mask.bool(), old, None, advantages, lengths)
    totals = BatchTotals(rollouts=2, tokens=5, max_response_length=4)
    clip = {"clip_low": LOW, "clip_high": HIGH}
    settings = TrainingSettings(**{"loss_type": loss_type, **clip, **(settings or {})})
    return policy_objective(settings, batch, totals, logprobs, **given)


def loss_of(loss_type, **changes):
    return objective_of(loss_type, **changes)[0]


def gradient(loss_type: str, **changes):
    logprobs = changes.pop("logprobs", LOGPROBS).clone().requires_grad_()
    loss_of(loss_type, logprobs=logprobs, **changes).backward()
    return logprobs.grad


# Clipped objectives, token by token. First sequence (A = 1): 1, min(1.5, 1.28) = 1.28, min(0.5, 0.8) = 0.5.
# Second (A = -1): min(-2, -1.28) = -2 (a bad token that became likelier is not clipped), min(-0.9, -0.9) = -0.9.
FIRST = 1 + 1.28 + 0.5
SECOND = -2 - 0.9


@pytest.mark.parametrize(
    ("loss_type", "by_hand"),
    [
        ("grpo", -(FIRST / 3 + SECOND / 2) / 2),  # mean over tokens, then over sequences
        ("dapo", -(FIRST + SECOND) / 5),  # mean over all five tokens
        ("dr_grpo", -(FIRST + SECOND) / (2 * 4)),  # two sequences, four tokens allowed to each
        # s_1 = (1 * 1.5 * 0.5)^(1/3) = 0.9086, inside the clip; s_2 = (2 * 0.9)^(1/2) = 1.3416, A < 0: not clipped.
        ("gspo", -(0.75 ** (1 / 3) * 1 + 1.8**0.5 * -1) / 2),
    ],
)
def test_a_loss_is_what_its_equation_gives_by_hand(loss_type, by_hand):
    assert float(loss_of(loss_type)) == pytest.approx(by_hand, abs=1e-12)


def test_the_gradient_of_a_token_is_its_weighted_ratio_times_advantage_and_zero_where_clipped():
    # d/dlogp of -w r A is -w r A. Token (0, 1) is clipped (1.5 > 1.28 with A > 0); (0, 2), a good token that
    # became unlikely, is not: PPO's minimum is a lower bound, and the clip never stops a correction.
    by_hand = torch.tensor([[-1.0, 0.0, -0.5], [2.0, 0.9, 0.0]], dtype=torch.float64) / 5
    torch.testing.assert_close(gradient("dapo"), by_hand, atol=1e-12, rtol=0)


def test_the_clip_fraction_counts_sampled_tokens_only():
    clipped = objective_of("dapo")[1]["clipped"]
    assert clipped.tolist() == [[False, True, False], [False, False, False]]
    assert float(clipped.sum() / MASK.sum()) == pytest.approx(1 / 5)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_the_gradient_agrees_with_finite_differences(loss_type):
    proximal = OLD + torch.tensor([[0.5, 2.0, 1.0], [1.5, 0.7, 1.0]], dtype=torch.float64).log()
    settings = {"kl_coef": 0.3, "importance_cap": 1.8}

    def loss(logprobs):
        return loss_of(
            loss_type, logprobs=logprobs, base_BK=OLD - 0.1, proximal_BK=proximal, settings=settings
        )

    torch.manual_seed(0)
    logprobs = (proximal + 0.15 * torch.randn(2, 3, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(loss, (logprobs,))


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.parametrize("garbage", [123.0, math.inf, -math.inf, math.nan])
def test_a_masked_token_has_no_gradient_and_no_say_whatever_stands_there(loss_type, garbage):
    logprobs, old = LOGPROBS.clone(), OLD.clone()
    logprobs[1, 2], old[1, 2] = garbage, -garbage
    assert float(loss_of(loss_type, logprobs=logprobs, old=old)) == float(loss_of(loss_type))
    changed = gradient(loss_type, logprobs=logprobs, old=old)
    assert changed[1, 2] == 0
    torch.testing.assert_close(changed, gradient(loss_type))


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_flipping_the_advantages_reverses_the_gradient_on_policy_and_none_removes_it(loss_type):
    assert gradient(loss_type, advantages=torch.zeros(2, dtype=torch.float64)).abs().max() == 0
    on_policy = gradient(loss_type, logprobs=OLD)
    torch.testing.assert_close(gradient(loss_type, logprobs=OLD, advantages=-ADVANTAGES), -on_policy)
    assert (on_policy[0] < 0).all(), "what was better than its group becomes likelier"
    assert (on_policy[1, :2] > 0).all(), "what was worse becomes less likely"


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
def test_a_rollout_recorded_as_two_sequences_weighs_like_one(loss_type):
    whole = loss_of(loss_type)
    mask = torch.tensor([[1, 0, 0], [0, 1, 1], [1, 1, 0]])  # the first rollout forked after one token
    rows = [0, 0, 1]
    forked = loss_of(
        loss_type,
        logprobs=LOGPROBS[rows],
        old=OLD[rows],
        advantages=ADVANTAGES[rows],
        mask=mask,
        lengths=torch.tensor([3, 3, 2]),
    )
    assert float(forked) == pytest.approx(float(whole), abs=1e-15)


def test_the_divergence_from_the_base_is_the_k3_estimate():
    base = LOGPROBS + torch.tensor([[0.5, -0.25, 0.0], [0.1, 0.0, 9.0]], dtype=torch.float64)
    k3 = [math.exp(d) - d - 1 for d in (0.5, -0.25, 0.0, 0.1, 0.0)]
    measured = k3_divergence(LOGPROBS, base, MASK)
    assert measured.flatten().tolist() == pytest.approx([*k3, 0.0])
    with pytest.raises(ValueError, match="base model"):
        loss_of("dapo", settings={"kl_coef": 0.2})
    with_kl = loss_of("dapo", base_BK=base, settings={"kl_coef": 0.2})
    assert float(with_kl) == pytest.approx(float(loss_of("dapo")) + 0.2 * sum(k3) / 5)


def test_k3_is_unbiased_for_the_true_divergence():
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    q = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    estimates = k3_divergence(p.log()[None], q.log()[None], torch.ones(1, 3))[0]
    assert float((p * estimates).sum()) == pytest.approx(float((p * (p / q).log()).sum()))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_they_are_the_log_softmax_at_the_temperature(temperature):
    logprobs, entropies, _ = score_tokens(LOGITS, TARGETS, temperature)
    distribution = torch.distributions.Categorical(logits=LOGITS / temperature)
    torch.testing.assert_close(logprobs, distribution.log_prob(TARGETS))
    torch.testing.assert_close(entropies, distribution.entropy())


def test_chunks_give_the_same_values_and_gradients(monkeypatch):
    def values_and_gradient():
        logits = LOGITS.clone().requires_grad_()
        logprobs, entropies, _ = score_tokens(logits, TARGETS, 0.7)
        (logprobs * torch.arange(10.0).view(2, 5)).sum().backward()
        return logprobs.detach(), entropies, logits.grad

    whole = values_and_gradient()
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 3 * 11)
    for one, other in zip(whole, values_and_gradient(), strict=True):
        torch.testing.assert_close(one, other)


def test_entropy_has_no_gradient_and_half_precision_is_widened():
    logits = LOGITS.bfloat16().requires_grad_()
    logprobs, entropies, _ = score_tokens(logits, TARGETS, 1.0)
    assert (logprobs.dtype, entropies.requires_grad) == (torch.float32, False)


def sequence(ids, mask, rollout_id="r"):
    logprobs = [-0.1 * number if sampled else 0.0 for number, sampled in enumerate(mask)]
    return TokenSequence(rollout_id, ids, mask, logprobs, [3] * len(ids))


def test_targets_are_the_tokens_after_the_columns_and_carry_their_own_logprobs():
    rows, _ = training_rows([sequence([5, 6, 7, 8], [0, 1, 0, 1]), sequence([9, 10], [0, 1])], [1.0, -1.0])
    batch = collate(rows, torch.device("cpu"))
    assert batch.ids_BT.tolist() == [[5, 6, 7, 8], [9, 10, 0, 0]]
    # Column 1 predicts token 2, which nobody sampled.
    assert batch.columns_K.tolist() == [0, 2]
    assert batch.targets_BK.tolist() == [[6, 8], [10, 0]]
    assert batch.mask_BK.tolist() == [[True, True], [True, False]]
    assert batch.logged_logprobs_BK[0].tolist() == pytest.approx([-0.1, -0.3])
    assert batch.versions_BK.tolist() == [[3, 3], [3, 0]]
    assert batch.advantages_B.tolist() == [1.0, -1.0]


def test_a_rollouts_sequences_share_its_length_and_count_once():
    forked = [
        sequence([1, 2, 3], [0, 1, 1], "a"),
        sequence([1, 4, 5], [0, 0, 1], "a"),
        sequence([1, 6], [0, 1], "b"),
    ]
    rows, rollouts = training_rows(forked, [1.0, 1.0, -1.0])
    assert [row.response_length for row in rows] == [3, 3, 1]
    totals = batch_totals(rows, rollouts, 10)
    assert (totals.rollouts, totals.tokens, totals.max_response_length) == (2, 4, 10)


def test_a_sequence_in_which_nothing_was_sampled_is_left_out():
    rows, rollouts = training_rows([sequence([1, 2], [0, 0], "a"), sequence([1, 2], [1, 0], "b")], [1.0, 1.0])
    assert (rows, rollouts) == ([], 0)


@pytest.mark.parametrize(
    ("sequences", "advantages", "message"),
    [
        ([([1, 2], [0], [0.0, 0.0], [0, 0])], 1, "differ in length"),
        ([([1], [0], [0.0], [])], 1, "differ in length"),
        ([([1, 2], [0, 1], [0.0, -0.1], [3, 3])], 2, "1 sequences but 2 advantages"),
        (
            [([5, 6, 7, 8], [1, 1, 1, 1], [0.0, 0.0, -0.1, -0.2], [-1, -1, 3, 3])],
            1,
            "2 of 4 tokens of rollout r are marked as sampled",
        ),
    ],
)
def test_lists_that_do_not_fit_together_are_refused(sequences, advantages, message):
    with pytest.raises((ValueError, UnsampledTokenError), match=message):
        training_rows([TokenSequence("r", *each) for each in sequences], [1.0] * advantages)


def test_a_micro_batch_may_have_exactly_as_many_tokens_as_the_limit():
    assert plan_micro_batches([10, 8, 10], 30) == [[1, 0, 2]]
    assert plan_micro_batches([10, 8, 10], 29) == [[1, 0], [2]]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 200))
def test_micro_batches_hold_every_sequence_once_within_the_limit(lengths, limit):
    plan = plan_micro_batches(lengths, limit)
    assert sorted(index for batch in plan for index in batch) == list(range(len(lengths)))
    for batch in plan:
        assert len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= limit
