from __future__ import annotations

import subprocess
import sys

import pytest

from osmosis_ai.config.issues import InvalidConfigError
from osmosis_ai.config.release_checks import read_settings
from osmosis_ai.config.training import TrainingSettings


def from_config(model_path=None, *, shown_path="the training config", **sections):
    document = {**sections, **({"experiment": {"model_path": model_path}} if model_path else {})}
    return read_settings(document, shown_path=shown_path)


def issues_of(**sections):
    with pytest.raises(InvalidConfigError) as caught:
        from_config(**sections)
    return {issue.key: issue for issue in caught.value.issues}


def test_the_defaults_are_the_documented_ones():
    settings = from_config()
    documented = {
        "lr": 1e-5,
        "on_truncation": "grade",
        "on_timeout": "exclude",
        "total_epochs": 1,
        "n_samples_per_prompt": 8,
        "rollout_batch_size": 32,
        "max_prompt_length": 8192,
        "max_response_length": 8192,
        "agent_workflow_timeout_s": 450.0,
        "grader_timeout_s": 150.0,
        "rollout_temperature": 1.0,
        "rollout_top_p": 1.0,
        "eval_interval": 10,
        "checkpoint_save_freq": 20,
        "loss_type": "dapo",
        "clip_low": 0.2,
        "clip_high": 0.28,
        "lora_rank": 16,
        "lora_alpha": 32.0,
        "lora_targets": "all-linear",
        "kl_coef": 0.0,
        "max_staleness": 0,
    }
    assert {name: getattr(settings, name) for name in documented} == documented


def test_what_the_sections_say_is_what_the_settings_hold():
    settings = from_config(
        training={"lr": 1e-4, "agent_workflow_timeout_s": 120},
        sampling={"rollout_temperature": 0.7},
        checkpoints={"eval_interval": 5},
        advanced={"loss_type": "grpo", "lora_targets": ["q_proj", "v_proj"], "max_steps": 3},
    )
    assert (settings.lr, settings.agent_workflow_timeout_s, settings.rollout_temperature) == (
        1e-4,
        120.0,
        0.7,
    )
    assert (settings.eval_interval, settings.loss_type, settings.max_steps) == (5, "grpo", 3)
    assert settings.lora_targets == ["q_proj", "v_proj"]


def test_everything_that_is_wrong_is_reported_at_once():
    issues = issues_of(
        training={"lr": -1.0, "n_samples_per_prompt": 1, "total_epochs": True, "rollout_temperature": 1.0},
        sampling={"rollout_temperature": 0.0},
        advanced={"loss_type": "grop", "lora_rnak": 8, "eval_interval": 3, "adam_beta2": 1.0},
    )
    assert {key: (issue.message, issue.suggestion) for key, issue in issues.items()} == {
        "training.lr": ("must be greater than 0, got -1.0", None),
        "training.n_samples_per_prompt": (
            "must be at least 2: a reward counts only against others on the same prompt",
            None,
        ),
        "training.total_epochs": ("must be an integer, got true", None),
        "training.rollout_temperature": (
            "Unrecognized key; `rollout_temperature` belongs in [sampling]",
            None,
        ),
        "sampling.rollout_temperature": (
            "must be greater than 0: a greedy policy gives every attempt the same answer",
            None,
        ),
        "advanced.loss_type": ('must be one of grpo, dapo, dr_grpo, gspo, got "grop"', "grpo"),
        "advanced.lora_rnak": ("Unrecognized key", "lora_rank"),
        "advanced.eval_interval": ("Unrecognized key; `eval_interval` belongs in [checkpoints]", None),
        "advanced.adam_beta2": ("must be less than 1, got 1.0", None),
    }


def test_what_is_wrong_is_told_in_the_order_of_the_keys():
    issues = issues_of(
        training={"lr": 0, "total_epochs": 0, "rollout_batch_size": 0}, advanced={"vllm_command": 3}
    )
    keys = ["training.lr", "training.total_epochs", "training.rollout_batch_size", "advanced.vllm_command"]
    assert list(issues) == keys


def test_the_error_carries_the_issues_for_programs():
    with pytest.raises(InvalidConfigError) as caught:
        from_config(training={"lr": 0}, shown_path="configs/training/x.toml")
    assert str(caught.value).startswith("Invalid training config: configs/training/x.toml\n  - training.lr:")
    assert caught.value.details["issues"] == [
        {"key": "training.lr", "message": "must be greater than 0, got 0"}
    ]


def test_advanced_keys_of_another_trainer_are_ignored_and_said():
    settings = from_config(advanced={"cluster": {"max_parallel": 6}})
    assert settings.ignored == ("cluster",)
    assert any("`cluster`" in warning for warning in settings.warnings("some/model"))


def test_gspo_has_its_own_clip_range_unless_one_is_written():
    assert (from_config(advanced={"loss_type": "gspo"}).clip_low, TrainingSettings().clip_low) == (3e-4, 0.2)
    written = from_config(advanced={"loss_type": "gspo", "clip_high": 0.1})
    assert (written.clip_low, written.clip_high) == (3e-4, 0.1)


def test_the_built_in_model_has_a_learning_rate_of_its_own():
    assert from_config(model_path="osmosis/tiny").lr == 1e-3
    assert from_config(training={"lr": 1e-5}, model_path="osmosis/tiny").lr == 1e-5
    assert from_config(model_path="org/model").lr == 1e-5


def test_a_rate_that_does_not_fit_the_model_and_a_truncated_distribution_are_warned_of():
    assert "1e-05" in TrainingSettings().warnings("osmosis/tiny")[0]
    assert "a LoRA hardly moves below 3e-06" in TrainingSettings(lr=1e-6).warnings("org/model")[0]
    assert "collapse" in TrainingSettings(lr=0.01).warnings("org/model")[0]
    assert "biased" in TrainingSettings(rollout_top_p=0.9).warnings("org/model")[0]
    assert TrainingSettings().warnings("org/model") == []


@pytest.mark.parametrize(
    ("said", "warning"),
    [
        ({"clip_low": 0.1}, "`clip_low` has no effect: every batch is learned from once"),
        ({"clip_low": 0.1, "max_staleness": 1}, None),
        (
            {"clip_high": 0.3, "max_staleness": 1, "importance_cap": 2.0},
            "`clip_high` has no effect: with imp",
        ),
        ({"loss_type": "gspo"}, "its ratio is 1 but for rounding"),
        ({"loss_type": "gspo", "max_staleness": 1}, None),
        ({"loss_type": "gspo", "max_staleness": 1, "importance_cap": 2.0}, 'learns as "grpo" does'),
        ({"importance_cap": 2.0}, None),
    ],
)
def test_a_clip_or_a_ratio_without_effect_is_warned_of(said, warning):
    found = TrainingSettings(**said).warnings("org/model")
    assert len(found) == (warning is not None)
    assert all(warning in sentence for sentence in found)


def test_what_becomes_of_a_rollout_that_was_cut_off_is_one_of_three():
    assert from_config(advanced={"on_truncation": "zero", "on_timeout": "zero"}).on_timeout == "zero"
    message = issues_of(advanced={"on_timeout": "ignore"})["advanced.on_timeout"].message
    assert "must be one of exclude, zero, grade" in message


def test_a_model_that_is_split_for_nothing_is_warned_of():
    alone = TrainingSettings(shard_model=True)
    assert "changes nothing with one learner process" in alone.warnings("org/model")[0]
    assert "still serves the whole model" in alone.warnings("org/model", processes=2)[0], "under torchrun"
    vllm = {"policy_engine": "vllm", "vllm_url": "http://gpu:8000", "learner_processes": 2}
    assert TrainingSettings(shard_model=True, **vllm).warnings("org/model") == []


def test_only_dr_grpo_leaves_advantages_unscaled():
    assert [TrainingSettings(loss_type=t).normalise_advantages for t in ("grpo", "dr_grpo")] == [True, False]


@pytest.mark.integration
def test_reading_settings_and_advantages_imports_no_torch():
    script = (
        "import sys, osmosis_ai.config.training, osmosis_ai.training.objective.advantages, osmosis_ai.training\n"
        "assert not {'torch', 'transformers', 'peft', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_vllm_is_told_apart_by_where_it_is_and_corrects_for_its_log_probabilities():
    command = from_config(advanced={"policy_engine": "vllm", "vllm_command": ["/opt/vllm/bin/vllm"]})
    assert (command.vllm_command, command.importance_cap) == (["/opt/vllm/bin/vllm"], 2.0)
    url = from_config(
        advanced={"policy_engine": "vllm", "vllm_url": "http://gpu:8000", "importance_cap": 1.5}
    )
    assert (url.vllm_url, url.importance_cap) == ("http://gpu:8000", 1.5)
    assert (from_config().policy_engine, from_config().importance_cap) == ("torch", None)


@pytest.mark.parametrize(
    ("sections", "key", "words"),
    [
        ({"advanced": {"policy_engine": "vllm"}}, "advanced.policy_engine", "either `vllm_url`"),
        (
            {"advanced": {"policy_engine": "vllm", "vllm_url": "http://a", "vllm_command": "vllm"}},
            "advanced.policy_engine",
            "either `vllm_url`",
        ),
        ({"advanced": {"vllm_url": "http://a"}}, "advanced.vllm_url", 'is for `policy_engine = "vllm"`'),
        (
            {"advanced": {"policy_engine": "vllm", "vllm_url": "a:1"}},
            "advanced.vllm_url",
            "begin with http://",
        ),
        (
            {"advanced": {"policy_engine": "vllm", "vllm_command": 3}},
            "advanced.vllm_command",
            "must be a string or an array of strings, got 3",
        ),
        (
            {"advanced": {"lora_targets": ["q_proj", 3]}},
            "advanced.lora_targets",
            "must be a string or an array of strings, got an array",
        ),
        (
            {"advanced": {"policy_engine": "sglang"}},
            "advanced.policy_engine",
            "SGLang's documents do not say",
        ),
        ({"advanced": {"policy_engine": "torhc"}}, "advanced.policy_engine", "must be one of torch, vllm"),
        (
            {
                "advanced": {"policy_engine": "vllm", "vllm_command": "vllm"},
                "sampling": {"rollout_top_p": 0.9},
            },
            "sampling.rollout_top_p",
            "must be 1.0 with vLLM",
        ),
    ],
)
def test_an_engine_that_can_not_be_opened_is_refused_with_its_key(sections, key, words):
    assert words in issues_of(**sections)[key].message


def test_what_is_wrong_only_together_is_said_beside_what_is_wrong_alone():
    vllm = {"policy_engine": "vllm", "vllm_url": "a:1", "lora_rank": 0}
    found = issues_of(training={"lr": 0}, sampling={"rollout_top_p": 0.9}, advanced=vllm)
    assert set(found) == {"training.lr", "advanced.lora_rank", "advanced.vllm_url", "sampling.rollout_top_p"}
    # Which engine is meant is not known then.
    assert set(issues_of(advanced={"policy_engine": "vlm", "vllm_url": "a:1"})) == {"advanced.policy_engine"}


def test_a_format_of_tool_calls_is_one_of_those_that_are_known():
    assert from_config().tool_call_format is None
    assert from_config(advanced={"tool_call_format": "pythonic"}).tool_call_format == "pythonic"
    [(key, issue)] = issues_of(advanced={"tool_call_format": "mistrall"}).items()
    assert key == "advanced.tool_call_format"
    assert issue.message == (
        'must be one of hermes, qwen3_coder, mistral, deepseek, llama3_json, pythonic, got "mistrall"'
    )
    assert issue.suggestion == "mistral"
