from __future__ import annotations

import pytest

from tests.lazily import lazily

with lazily("torch"):
    import torch

    from osmosis_ai.training.objective import logprobs as module
    from osmosis_ai.training.objective.logprobs import sampled_logprobs


def setup_module() -> None:
    global LOGITS, TARGETS
    LOGITS = torch.randn(2, 5, 11, generator=torch.Generator().manual_seed(0))
    TARGETS = torch.randint(0, 11, (2, 5), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_they_are_the_log_softmax_at_the_temperature(temperature):
    logprobs, entropies = sampled_logprobs(LOGITS, TARGETS, temperature)
    distribution = torch.distributions.Categorical(logits=LOGITS / temperature)
    torch.testing.assert_close(logprobs, distribution.log_prob(TARGETS))
    torch.testing.assert_close(entropies, distribution.entropy())


def test_chunks_give_the_same_values_and_gradients(monkeypatch):
    def values_and_gradient():
        logits = LOGITS.clone().requires_grad_()
        logprobs, entropies = sampled_logprobs(logits, TARGETS, 0.7)
        (logprobs * torch.arange(10.0).view(2, 5)).sum().backward()
        return logprobs.detach(), entropies, logits.grad

    whole = values_and_gradient()
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 3 * 11)
    for one, other in zip(whole, values_and_gradient(), strict=True):
        torch.testing.assert_close(one, other)


def test_entropy_has_no_gradient_and_half_precision_is_widened():
    logits = LOGITS.bfloat16().requires_grad_()
    logprobs, entropies = sampled_logprobs(logits, TARGETS, 1.0)
    assert (logprobs.dtype, entropies.requires_grad) == (torch.float32, False)
