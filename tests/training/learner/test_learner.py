"""Steps of the learner: the update, what refuses it, memory, adapters, and where its model comes from."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.errors import OsmosisError
from tests.lazily import lazily
from tests.tiny_model import SIZES

with lazily("torch", "huggingface_hub"):
    import torch
    import transformers
    from huggingface_hub import constants
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, Qwen3MoeConfig

    from osmosis_ai.training.learner.distributed import World
    from osmosis_ai.training.learner.forward_backward import ForwardBackward, LearnerStep
    from osmosis_ai.training.learner.learner import Learner, OutOfMemoryError, StepRefusedError, warmed_up
    from osmosis_ai.training.learner.policy_model import model_source
    from osmosis_ai.training.learner.step import DivergedError, MismatchLimits
    from osmosis_ai.training.objective import losses
    from osmosis_ai.training.objective.batches import batch_totals, collate, training_rows
    from osmosis_ai.training.objective.losses import policy_objective
    from tests.training.learner_builders import (
        TINY,
        as_sampled_by,
        batch_for,
        made_up_sequences,
        tiny_learner,
    )
    from tests.training.torchrun_member import take_steps


def adapter_of(learner):
    return learner.state_dict()["adapter"]


def assert_same_state(one, other):
    torch.testing.assert_close(one, other, atol=0, rtol=0)


def state_without_rng(learner):
    return {key: value for key, value in learner.state_dict().items() if key != "rng"}


def test_a_new_adapter_changes_nothing_and_the_seed_decides_its_start():
    one, same, other = tiny_learner(seed=1), tiny_learner(seed=1), tiny_learner(seed=2)
    assert_same_state(adapter_of(one), adapter_of(same))
    assert any(not torch.equal(adapter_of(one)[name], adapter_of(other)[name]) for name in adapter_of(one))
    sequences = made_up_sequences(2)
    assert one.logprobs(sequences) == other.logprobs(sequences)


def test_logprobs_are_those_of_a_plain_forward_pass_and_zero_where_nothing_was_sampled():
    learner = tiny_learner(rollout_temperature=0.8)
    [sequence] = made_up_sequences(1)
    with torch.no_grad():
        logits = learner.model(input_ids=torch.tensor([sequence.ids])).logits[0]
    expected = (logits / 0.8).log_softmax(-1)
    for position, value in enumerate(learner.logprobs([sequence])[0]):
        if sequence.mask[position]:
            assert value == pytest.approx(float(expected[position - 1, sequence.ids[position]]), abs=1e-5)
        else:
            assert value == 0.0


@pytest.mark.parametrize(
    ("kind", "own", "targets"),
    [
        ("Gemma2Config", {"final_logit_softcapping": 0.5}, "all-linear"),
        ("GraniteConfig", {"logits_scaling": 3.0}, "all-linear"),
        ("GPTNeoXConfig", {"num_key_value_heads": 4}, "all-linear"),
        (
            "Qwen3MoeConfig",
            {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
            ["q_proj", "v_proj"],
        ),
        ("LlamaConfig", {"tie_word_embeddings": False}, ["q_proj", "lm_head"]),
    ],
)
def test_scores_and_gradients_are_those_of_the_whole_logits(monkeypatch, kind, own, targets):
    torch.manual_seed(0)
    base = transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**{**SIZES, **own}))
    lora = LoraConfig(r=4, target_modules=targets, init_lora_weights=False, task_type="CAUSAL_LM")
    policy = get_peft_model(base, lora).eval()
    settings = TrainingSettings(loss_type="dr_grpo", max_response_length=8, rollout_temperature=0.7)
    device = torch.device("cpu")
    passes = ForwardBackward(policy, settings, device, World.join(device), sharded=False)
    rows, rollouts = training_rows(made_up_sequences(3), [1.0, -0.5, 0.25])
    rows = [replace(row, ids=tuple(token % 97 for token in row.ids)) for row in rows]
    totals = batch_totals(rows, rollouts, 8)
    batch = collate(rows, device)
    logits = policy(input_ids=batch.ids_BT, logits_to_keep=batch.columns_K).logits / 0.7
    expected = logits.log_softmax(-1).gather(2, batch.targets_BK[..., None])[..., 0]
    loss = policy_objective(settings, batch, totals, expected)[0]
    learned = [p for p in policy.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss, learned, allow_unused=True)
    monkeypatch.setattr(losses, "CHUNK_ELEMENTS", 5 * 97)
    done = passes.accumulate(LearnerStep(rows, totals, None, measure_kl=False), micro_batch_tokens=10_000)
    assert float(done.sums.loss) == pytest.approx(loss.item(), rel=1e-6)
    entropy = torch.distributions.Categorical(logits=logits.detach()).entropy()
    assert float(done.sums.entropy) == pytest.approx(float((entropy * batch.mask_BK).sum()), rel=1e-6)
    for parameter, gradient in zip(learned, gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-7, rtol=1e-4)


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo", "gspo"])
def test_one_big_batch_and_micro_batches_are_the_same_update(loss_type):
    # A step of plain gradient size, not of Adam's sign: the gradients themselves are compared.
    gradients, metrics = [], []
    for micro_batch_tokens in (10_000, 30):
        learner = tiny_learner(
            loss_type=loss_type, micro_batch_tokens=micro_batch_tokens, kl_coef=0.05, grad_clip=1e9
        )
        captured: list[torch.Tensor] = []
        learner._optimizer.register_step_pre_hook(
            lambda *_, learner=learner, captured=captured: captured.extend(
                p.grad.clone() for p in learner._parameters
            )
        )
        sequences, advantages = batch_for(learner, 8)
        off_policy = [
            replace(s, logprobs=[p - 0.1 * (i % 3) for i, p in enumerate(s.logprobs)]) for s in sequences
        ]
        metrics.append(learner.step(off_policy, advantages, policy_version=1))
        gradients.append(captured)
    assert metrics[0].micro_batches == 1 and metrics[1].micro_batches > 3
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)
    for name in ("loss", "grad_norm", "entropy_loss", "clip_fraction", "kl_sampler", "kl_base"):
        assert getattr(metrics[0], name) == pytest.approx(getattr(metrics[1], name), abs=1e-6), name
    assert metrics[0].tokens == metrics[1].tokens


def test_metrics_describe_the_step():
    learner = tiny_learner()
    sequences, advantages = batch_for(learner)
    metrics = learner.step(sequences, advantages)
    assert metrics.learned and metrics.updates == learner.updates == 1
    assert metrics.tokens == sum(sum(sequence.mask[1:]) for sequence in sequences)
    assert metrics.sequences == len(sequences)
    assert metrics.logprob_gap_max < 1e-4 and metrics.logprob_gap_mean <= metrics.logprob_gap_max
    assert (metrics.clip_fraction, metrics.stale_fraction, metrics.learning_rate) == (0.0, 0.0, 1e-3)
    assert (
        metrics.kl_base == pytest.approx(0, abs=1e-6) and metrics.grad_norm > 0 and metrics.entropy_loss > 0
    )
    assert metrics.warnings == ()


def test_under_an_importance_cap_the_distance_to_the_policy_that_sampled_is_still_told():
    told = []
    for cap in (None, 2.0):
        learner = tiny_learner(importance_cap=cap, logprob_gap_limit=10.0, lr=1e-2)
        sequences, advantages = batch_for(learner)
        learner.step(sequences, advantages)
        told.append(learner.step(sequences, advantages, policy_version=1))
    assert told[0].kl_sampler > 1e-4
    assert told[1].kl_sampler == pytest.approx(told[0].kl_sampler, rel=0.2)
    assert told[0].clip_fraction > 0 and told[1].clip_fraction > 0
    assert told[1].importance_capped is not None


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_step_raises_good_sequences_and_lowers_bad_ones(sign):
    learner = tiny_learner()
    sequences = as_sampled_by(learner, made_up_sequences(4))
    before = [sum(logprobs) for logprobs in learner.logprobs(sequences)]
    learner.step(sequences, [sign] * 4)
    changes = [sum(p) - b for p, b in zip(learner.logprobs(sequences), before, strict=True)]
    assert all(change * sign > 0 for change in changes)


def test_a_weight_on_the_divergence_holds_the_policy_near_the_base():
    distances = []
    for kl_coef in (0.0, 1.0):
        learner = tiny_learner(kl_coef=kl_coef, kl_interval=1)
        sequences, advantages = batch_for(learner)
        faint = [0.01 * advantage for advantage in advantages]
        for _ in range(8):
            distance = learner.step(sequences, faint, policy_version=1).kl_base
        distances.append(distance)
    assert distances[1] < distances[0] / 2


def test_measuring_the_divergence_does_not_change_the_update():
    states = []
    for kl_interval in (0, 1):
        learner = tiny_learner(kl_interval=kl_interval)
        learner.step(*batch_for(learner))
        states.append(adapter_of(learner))
    assert_same_state(*states)


def test_a_rate_that_destroys_the_policy_ends_the_run_at_the_update_that_did_it():
    learner = tiny_learner(lr=1e30)
    with pytest.raises(DivergedError, match=r"update 1 made .* \(lr = 1e\+30\): the policy is lost"):
        learner.step(*batch_for(learner))


def test_a_loss_or_gradient_that_is_no_number_refuses_the_step_and_changes_nothing():
    learner = tiny_learner()
    before = learner.state_dict()
    nothing = learner.step([], [])
    assert (nothing.learned, nothing.updates, nothing.tokens, nothing.loss) == (False, 0, 0, None)
    assert_same_state(learner.state_dict(), before)
    sequences, advantages = batch_for(learner)
    learner.step(sequences, advantages)
    before = learner.state_dict()
    sequences = as_sampled_by(learner, sequences)
    for poison in (math.nan, math.inf):
        refused = "update 2 was refused: its loss is not a finite number; the policy is unchanged"
        with pytest.raises(StepRefusedError, match=refused):
            learner.step(sequences, [poison, *advantages[1:]])
        assert_same_state(learner.state_dict(), before)
    hook = learner._parameters[0].register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(StepRefusedError, match="its gradient is not a finite number"):
        learner.step(sequences, advantages)
    assert_same_state(learner.state_dict(), before)
    hook.remove()
    learner.step(sequences, advantages)


def test_a_server_with_other_probabilities_is_refused_and_the_limit_can_be_set():
    learner = tiny_learner()
    sequences, advantages = batch_for(learner)
    shifted = [
        replace(s, logprobs=[p - 0.02 * m for p, m in zip(s.logprobs, s.mask, strict=True)])
        for s in sequences
    ]
    before = learner.state_dict()
    with pytest.raises(StepRefusedError, match=r"differ from the learner's by up to 0\.02 \(limit 0\.0001\)"):
        learner.step(shifted, advantages)
    assert_same_state(learner.state_dict(), before)
    assert tiny_learner(logprob_gap_limit=0.05).step(shifted, advantages).logprob_gap_max == pytest.approx(
        0.02, abs=1e-4
    )
    assert tiny_learner(importance_cap=2.0).step(shifted, advantages).learned
    # A stale token may differ, but not one of the current policy.
    stale = [replace(s, versions=[-1 if version < 0 else 6 for version in s.versions]) for s in shifted]
    assert tiny_learner(max_staleness=2).step(stale, advantages, policy_version=7).learned
    with pytest.raises(StepRefusedError, match="differ from the learner's") as refused:
        tiny_learner(max_staleness=2).step(shifted, advantages)
    assert refused.value.hint == "[advanced].logprob_gap_limit sets the limit"


def test_importance_weights_of_another_engine_are_cut_off_and_counted():
    learner = tiny_learner(importance_cap=2.0)
    sequences, advantages = batch_for(learner, 4)
    # The server found half of the rollouts a third as likely as the learner does.
    mistaken = [
        replace(s, logprobs=[p - math.log(3) for p in s.logprobs]) if i % 2 else s
        for i, s in enumerate(sequences)
    ]
    tokens = [sum(s.mask[1:]) for s in sequences]
    metrics = learner.step(mistaken, advantages)
    assert metrics.importance_capped == pytest.approx(sum(tokens[1::2]) / sum(tokens))
    assert metrics.clip_fraction == 0.0, "the clip compares the learner with itself"
    assert tiny_learner().step(sequences, advantages).importance_capped is None


def test_another_model_in_float32_is_warned_of_from_a_ten_thousandth_and_refused_from_a_hundredth():
    learner = tiny_learner()
    learner._mismatch_limits = MismatchLimits.expected("a/model", torch.float32, learner.settings)
    sequences, advantages = batch_for(learner)

    def off_by(gap):
        return [replace(s, logprobs=[p - gap for p in s.logprobs]) for s in sequences]

    with pytest.raises(StepRefusedError, match=r"limit 0\.01"):
        learner.step(off_by(0.02), advantages)
    [warning] = learner.step(off_by(0.001), advantages).warnings
    assert "differ by up to 0.001 nats on a token; in float32, at most 0.0001 is expected" in warning


def test_only_tokens_of_the_current_policy_are_compared_with_the_learner():
    learner = tiny_learner()
    sequences, advantages = batch_for(learner, 4)[0], [1.0, 1.0, -1.0, -1.0]
    stale = [
        replace(s, versions=[6] * len(s.ids), logprobs=[p - 0.3 for p in s.logprobs]) if i < 2 else
        replace(s, versions=[7] * len(s.ids))
        for i, s in enumerate(sequences)
    ]  # fmt: skip
    metrics = learner.step(stale, advantages, policy_version=7)
    tokens = [sum(s.mask[1:]) for s in stale]
    assert metrics.stale_fraction == pytest.approx(sum(tokens[:2]) / sum(tokens))
    assert metrics.logprob_gap_max < 1e-4
    assert metrics.clip_fraction > 0, "a ratio of e^0.3 is outside the clip"
    nothing_fresh = learner.step(stale, advantages, policy_version=8)
    assert nothing_fresh.logprob_gap_max is None and nothing_fresh.stale_fraction == 1.0


def out_of_memory_above(monkeypatch, tokens, error):
    """Let every forward pass fail that is given more than so many tokens."""
    forward = ForwardBackward._forward
    sizes = []

    def limited(self, batch):
        sizes.append(batch.ids_BT.numel())
        if batch.ids_BT.numel() > tokens:
            raise error
        return forward(self, batch)

    monkeypatch.setattr(ForwardBackward, "_forward", limited)
    return sizes


CPU_ERROR = RuntimeError(
    "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
)


@pytest.mark.parametrize("device", ["CUDA", "CPU"])
def test_out_of_memory_halves_the_micro_batch_once_and_the_step_is_the_same(device, monkeypatch):
    error = torch.OutOfMemoryError("CUDA out of memory") if device == "CUDA" else CPU_ERROR
    expected = tiny_learner(micro_batch_tokens=60)
    sequences, advantages = batch_for(expected, 8)
    expected.step(sequences, advantages)
    learner = tiny_learner(micro_batch_tokens=120)
    out_of_memory_above(monkeypatch, 60, error)
    metrics = learner.step(sequences, advantages)
    assert metrics.learned and metrics.micro_batch_tokens == 60
    assert_same_state(adapter_of(learner), adapter_of(expected))


def test_out_of_memory_twice_is_a_clear_error_and_changes_nothing(monkeypatch):
    learner = tiny_learner(micro_batch_tokens=120)
    sequences, advantages = batch_for(learner, 8)
    before = state_without_rng(learner) | {"micro_batch_tokens": 60}
    out_of_memory_above(monkeypatch, 5, CPU_ERROR)
    with pytest.raises(
        OutOfMemoryError, match="does not have enough memory to learn from sequences of up to"
    ) as caught:
        learner.step(sequences, advantages)
    assert "max_response_length" in caught.value.hint
    assert_same_state(state_without_rng(learner), before)
    out_of_memory_above(monkeypatch, 0, RuntimeError("size mismatch"))
    with pytest.raises(RuntimeError, match="size mismatch"):
        learner.step(sequences, advantages)


def test_the_learning_rate_rises_in_a_line_and_stays():
    assert [warmed_up(0.4, updates, 4) for updates in range(6)] == pytest.approx(
        [0.1, 0.2, 0.3, 0.4, 0.4, 0.4]
    )
    assert warmed_up(0.4, 0, 0) == 0.4
    learner = tiny_learner(warmup_steps=2)
    sequences, advantages = batch_for(learner)
    rates = [learner.step(sequences, advantages, policy_version=1).learning_rate for _ in range(3)]
    assert rates == pytest.approx([5e-4, 1e-3, 1e-3])


def test_training_goes_on_from_an_adapter(tmp_path):
    first = tiny_learner(lr=1e-2)
    first.step(*batch_for(first))
    first.save_adapter(tmp_path)
    second = Learner(TINY, TrainingSettings(lr=1e-2), "cpu", adapter=tmp_path)
    assert_same_state(adapter_of(second), adapter_of(first))
    assert second.step(*batch_for(second)).learned


def test_an_adapter_or_a_state_that_does_not_fit_the_model_is_refused(tmp_path):
    with pytest.raises(OsmosisError, match=r"the model `.*nothing` cannot be loaded"):
        Learner(str(tmp_path / "nothing"), TrainingSettings(), "cpu")
    with pytest.raises(OsmosisError, match="lora_targets matches no layer: no_such_layer"):
        tiny_learner(lora_targets=["no_such_layer"])
    state = tiny_learner().state_dict()
    for settings, message in (
        ({"lora_rank": 4}, "does not fit the settings"),
        ({"lora_targets": ["q_proj"]}, "name different layers"),
    ):
        with pytest.raises(OsmosisError, match=message):
            tiny_learner(**settings).load_state_dict(state)


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_a_model_comes_from_this_machine_and_is_fetched_only_if_the_user_allows_it(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(OsmosisError, match="`some/model` cannot be loaded: it is not on this machine") as e:
        model_source("some/model")
    assert e.value.hint == "fetch it with `hf download some/model`, or set [advanced].allow_download = true"
    with pytest.raises(OsmosisError, match=r"`some/model` cannot be (loaded: it could not be )?fetched"):
        model_source("some/model", allow_download=True)
    cached = tmp_path / "models--some--model"
    (cached / "snapshots" / COMMIT).mkdir(parents=True)
    (cached / "snapshots" / COMMIT / "config.json").write_text("{}")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(COMMIT)
    assert model_source("some/model") == str(cached / "snapshots" / COMMIT)


ROOT = Path(__file__).parents[3]
NOBODY = "-1"


def run_two_ranks(output: Path, fails_on: str = NOBODY, shard: str = "whole", model: str = "osmosis/tiny"):
    """Have `torchrun` start two processes, and return what rank 0 wrote."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run(
        [
            sys.executable,
            *launch,
            "-m",
            "tests.training.torchrun_member",
            str(output),
            fails_on,
            shard,
            model,
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        timeout=300,
        check=True,
    )
    return torch.load(output, weights_only=True)


def assert_like_one_process(found, model: str = "osmosis/tiny") -> None:
    expected = take_steps(tiny_learner(model, micro_batch_tokens=40))
    assert found["refusal"] == expected["refusal"] == "StepRefusedError"
    for one, other in zip(found["metrics"], expected["metrics"], strict=True):
        for name in (
            "loss",
            "grad_norm",
            "entropy_loss",
            "tokens",
            "sequences",
            "kl_base",
            "logprob_gap_max",
        ):
            if other[name] is None:
                assert one[name] is None, name
            else:
                assert one[name] == pytest.approx(other[name], rel=1e-5, abs=1e-5), name
    # Adam turns a gradient's rounding near zero into a step of up to lr, so single entries may differ.
    for kind in ("adapter", "merged"):
        assert found[kind].keys() == expected[kind].keys()
        for name, tensor in found[kind].items():
            assert float((tensor - expected[kind][name]).abs().mean()) < 1e-6, name
    for ours, theirs in zip(found["logprobs"], expected["logprobs"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)


@pytest.mark.e2e
@pytest.mark.parametrize(("shard", "share"), [("whole", 1), ("shard", 1 / 2)])
def test_two_processes_learn_what_one_learns(tmp_path, shard, share):
    found = run_two_ranks(tmp_path / "result.pt", shard=shard)
    assert_like_one_process(found)
    frozen = sum(p.numel() for p in tiny_learner().model.parameters() if not p.requires_grad)
    assert found["weights_held"] == pytest.approx(frozen * share, rel=0.01)


@pytest.mark.e2e
@pytest.mark.nightly
def test_two_processes_share_experts(tmp_path):
    sizes = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
    config = Qwen3MoeConfig(
        vocab_size=512, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, **sizes
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    model = str(tmp_path / "model")
    found = run_two_ranks(tmp_path / "result.pt", shard="shard", model=model)
    assert_like_one_process(found, model)
    frozen = sum(p.numel() for p in tiny_learner(model).model.parameters() if not p.requires_grad)
    assert found["weights_held"] == pytest.approx(frozen / 2, rel=0.01)


@pytest.mark.e2e
@pytest.mark.nightly
def test_one_rank_that_runs_out_of_memory_makes_both_try_again(tmp_path):
    found = run_two_ranks(tmp_path / "result.pt", fails_on="1")
    assert found["metrics"][0]["micro_batch_tokens"] == 20
    assert found["metrics"][0]["learned"]
