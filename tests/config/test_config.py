"""The keys of configs and decide files: values, defaults, errors and their lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.config.checks import EVAL, TRAINING, ConfigKind, read_settings, settings_issues
from osmosis_ai.config.decisions import Decisions, decide_file, parse_decisions
from osmosis_ai.config.execution import ExecutionSection, execution_issues, read_execution
from osmosis_ai.config.issues import InvalidConfigError, Issue
from osmosis_ai.config.toml_text import key_lines, parse_toml
from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.runs.requests import check_body
from osmosis_ai.workspace.config_files import decisions_about, load_eval_config
from tests.workspace.builders import MINIMAL_EVAL, make_workspace, write_config


def settings_of(text: str) -> TrainingSettings:
    return read_settings(parse_toml(text, "a.toml"))


def issues_of(text: str) -> dict[str, Issue]:
    with pytest.raises(InvalidConfigError) as caught:
        settings_of(text)
    return {issue.key: issue for issue in caught.value.issues}


def test_advanced_keys_of_another_trainer_are_ignored_with_a_warning() -> None:
    settings = settings_of("advanced.cluster = { max_parallel = 6 }")
    assert settings.ignored == ("cluster",)
    assert any("`cluster`" in warning for warning in settings.warnings("some/model"))


TINKER, HERE = "backend = 'tinker'\n", "tinker_url = 'http://127.0.0.1:1'\n"
VLLM, TORCH = 'policy_engine = "vllm"\n', 'policy_engine = "torch"\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {"lr": 1e-5, "clip_low": 0.2, "policy_engine": "torch", "importance_cap": None}),
        (
            "[training]\nlr = 1e-4\nagent_workflow_timeout_s = 120",
            {"lr": 1e-4, "agent_workflow_timeout_s": 120},
        ),
        ("checkpoints.eval_interval = 5\nadvanced.max_steps = 3", {"eval_interval": 5, "max_steps": 3}),
        ("advanced.lora_targets = ['q_proj', 'v_proj']", {"lora_targets": ["q_proj", "v_proj"]}),
        ("advanced.tool_call_format = 'pythonic'", {"tool_call_format": "pythonic"}),
        ("experiment.model_path = 'osmosis/tiny'", {"lr": 1e-3}),
        ("experiment.model_path = 'osmosis/tiny'\ntraining.lr = 1e-5", {"lr": 1e-5}),
        ("advanced.loss_type = 'gspo'", {"clip_low": 3e-4, "clip_high": 4e-4}),
        ("[advanced]\nloss_type = 'gspo'\nclip_high = 0.1", {"clip_low": 3e-4, "clip_high": 0.1}),
        (f"[advanced]\n{VLLM}vllm_command = ['vllm']", {"vllm_command": ["vllm"], "importance_cap": 2.0}),
        (f"[advanced]\n{VLLM}vllm_url = 'http://gpu:8000'\nimportance_cap = 1.5", {"importance_cap": 1.5}),
        ("[advanced]\nmax_staleness = 1", {"importance_cap": 2.0, "policy_engine": "torch"}),
        ("[advanced]\nmax_staleness = 4\nimportance_cap = 5.0", {"importance_cap": 5.0}),
    ],
)
def test_training_settings_and_their_defaults(text: str, expected: dict[str, Any]) -> None:
    settings = settings_of(text)
    assert {name: getattr(settings, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("written", "warning"),
    [
        ({}, None),
        ({"lr": 1e-6}, "outside the usual range for a LoRA (1e-5 to 3e-4): the policy hardly"),
        ({"lr": 1e-3}, "(1e-5 to 3e-4): the policy is likely to collapse"),
        ({"lr": 0.01}, "collapse"),
        ({"rollout_top_p": 0.9}, "biased"),
        ({"clip_low": 0.1}, "`clip_low` has no effect: the policy that sampled a batch learns from it once"),
        ({"clip_low": 0.1, "max_staleness": 1}, "`clip_low` has no effect: with max_staleness > 0 the clip"),
        ({"clip_high": 0.3, "importance_cap": 2.0}, "`clip_high` has no effect: with importance_cap the"),
        ({"loss_type": "gspo"}, "its ratio is 1 except for rounding"),
        ({"loss_type": "gspo", "max_staleness": 1}, 'learns like "grpo"'),
        ({"loss_type": "gspo", "importance_cap": 2.0}, 'learns like "grpo"'),
        ({"max_staleness": 1}, None),
        (
            {"method": "sft", "max_staleness": 1, "vllm_replicas": 2},
            '`max_staleness`, `vllm_replicas`: ignored with method = "sft"',
        ),
        ({"method": "sft", "policy_engine": "vllm"}, None),
        ({"importance_cap": 2.0}, None),
        ({"shard_model": True}, "changes nothing with one learner process"),
        ({"shard_model": True, "policy_engine": "vllm", "learner_processes": 2}, None),
    ],
)
def test_probably_unintended_settings_cause_a_warning(written: dict[str, Any], warning: str | None) -> None:
    found = TrainingSettings(**written).warnings("org/model")
    assert len(found) == (warning is not None)
    assert all(warning in sentence for sentence in found if warning)


def test_warnings_depend_on_the_model_and_the_processes_of_torchrun() -> None:
    assert "1e-05" in TrainingSettings().warnings("osmosis/tiny")[0]
    [warning] = TrainingSettings(shard_model=True).warnings("a/b", processes=2)
    assert "still samples from the whole model" in warning


FORMATS = "hermes, qwen3_coder, mistral, deepseek, llama3_json, pythonic"


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("n_samples_per_prompt = 1", "training.n_samples_per_prompt", "must be at least 2: a reward"),
        ("rollout_temperature = 1.0", "training.rollout_temperature", "belongs in [sampling]"),
        ("[sampling]\nrollout_temperature = 0.0", "sampling.rollout_temperature", "greater than 0: a gre"),
        ("[advanced]\neval_interval = 3", "advanced.eval_interval", "belongs in [checkpoints]"),
        ("[advanced]\nlora_rnak = 8", "advanced.lora_rnak", "Unrecognized key"),
        ("[advanced]\nadam_beta2 = 1.0", "advanced.adam_beta2", "must be less than 1, got 1.0"),
        ("[advanced]\nlora_targets = ['q', 3]", "advanced.lora_targets", "an array of strings, got an array"),
        ("[advanced]\npolicy_engine = 'torhc'", "advanced.policy_engine", "must be one of torch, vllm"),
        ("[advanced]\ntool_call_format = 'm'", "advanced.tool_call_format", f'one of {FORMATS}, got "m"'),
        (
            "[advanced]\nreport_to = ['wandb', 'wandbb']",
            "advanced.report_to",
            'must be one of trackio, tensorboard, wandb, got "wandbb"',
        ),
        (
            f"[advanced]\n{TORCH}vllm_url = 'http://a'",
            "advanced.vllm_url",
            'requires `policy_engine = "vllm"`',
        ),
        (f"[advanced]\n{VLLM}vllm_url = 'http://a'\nvllm_command = 'v'", "advanced.policy_engine", "either"),
        (f"[advanced]\n{VLLM}vllm_command = 'vllm \"'", "advanced.vllm_command", "not closed"),
        (f"[advanced]\n{VLLM}vllm_url = 'a:1'", "advanced.vllm_url", "begin with http://"),
        (f"[advanced]\n{VLLM}vllm_url = ['http://a', 'b']", "advanced.vllm_url", "begin with http://"),
        (f"[advanced]\n{VLLM}vllm_url = []", "advanced.vllm_url", "at least one server"),
        (f"[advanced]\n{VLLM}vllm_url = ['http://a', 'http://a/']", "advanced.vllm_url", "a server twice"),
        (f"[advanced]\n{VLLM}vllm_url = 'http://u:p@h'", "advanced.vllm_url", "use the secret VLLM_API_KEY"),
        (f"[advanced]\n{VLLM}vllm_url = 'http://['", "advanced.vllm_url", "is not a valid URL"),
        (f"[advanced]\n{VLLM}vllm_replicas = 0", "advanced.vllm_replicas", "at least 1"),
        (
            f"[advanced]\n{VLLM}vllm_url = 'http://a'\nvllm_replicas = 2",
            "advanced.vllm_replicas",
            "list running ones in `vllm_url`",
        ),
        (
            f"[advanced]\n{TORCH}vllm_replicas = 2",
            "advanced.vllm_replicas",
            'requires `policy_engine = "vllm"`',
        ),
        (
            "[advanced]\ntinker_url = 'http://localhost:1'",
            "advanced.tinker_url",
            'requires `backend = "tinker"`',
        ),
        ("[advanced]\ntinker_server = 'other'", "advanced.tinker_server", 'requires `backend = "tinker"`'),
        (
            f"[advanced]\n{VLLM}vllm_url = ['http://a', 'http://b/v1/']",
            "advanced.vllm_url",
            "must not end with /v1",
        ),
        ("[advanced]\nbackend = 'tinker'", "advanced.tinker_url", "is required"),
        (
            f"[advanced]\n{TINKER}tinker_url = 'http://example.com'",
            "advanced.tinker_url",
            "must begin with https://",
        ),
        (f"[advanced]\n{TINKER}tinker_url = 'http://['", "advanced.tinker_url", "is not a valid URL"),
        (f"[advanced]\n{TINKER}tinker_url = 'https://h:99999'", "advanced.tinker_url", "is not a valid URL"),
        (f"[advanced]\n{TINKER}tinker_url = 'https://h?key=k'", "advanced.tinker_url", "a query"),
        (f"[advanced]\n{TINKER}{HERE}lora_targets = 'q_proj'", "advanced.lora_targets", 'backend = "local"'),
        (f"[advanced]\n{TINKER}{HERE}policy_engine = 'vllm'", "advanced.policy_engine", "server samples"),
        ("[advanced]\nvllm_url = []", "advanced.vllm_url", "at least one server"),
        (f"[advanced]\n{TINKER}tinker_url = 'https://u:p@h'", "advanced.tinker_url", "name or password"),
        (f"[advanced]\n{TINKER}{HERE}loss_type = 'gspo'", "advanced.loss_type", "does not support gspo"),
        (f"[advanced]\n{TINKER}{HERE}kl_coef = 0.1", "advanced.kl_coef", "must be 0"),
        (
            f"[advanced]\n{TINKER}{HERE}shard_model = true",
            "advanced.shard_model",
            'requires `backend = "local"`',
        ),
        (
            f"[sampling]\nrollout_top_p = 0.9\n[advanced]\n{TINKER}{HERE}",
            "sampling.rollout_top_p",
            "must be 1.0",
        ),
        (
            f"[advanced]\n{VLLM}vllm_command = 3",
            "advanced.vllm_command",
            "a string or an array of strings, got 3",
        ),
        (
            f"[sampling]\nrollout_top_p = 0.9\n[advanced]\n{VLLM}vllm_command = 'vllm'",
            "sampling.rollout_top_p",
            "must be 1.0 with vLLM",
        ),
    ],
)
def test_an_unusable_setting_is_an_error_with_its_key(text: str, key: str, words: str) -> None:
    [(found, issue)] = issues_of("[training]\n" + text).items()
    assert (found, words in issue.message) == (key, True)


@pytest.mark.parametrize(
    ("settings", "parameters", "engine"),
    [
        ({}, 8 * 10**9, "vllm"),
        ({}, None, "vllm"),
        ({}, 5 * 10**8, "torch"),
        ({"policy_engine": "torch"}, 8 * 10**9, "torch"),
        ({"vllm_url": "http://a"}, 10**6, "vllm"),
        ({"vllm_replicas": 2}, 10**6, "vllm"),
    ],
)
def test_the_engine_on_a_gpu_follows_the_size_of_the_model(settings, parameters, engine) -> None:
    chosen = TrainingSettings(**settings).on_gpu(parameters)
    assert chosen.policy_engine == engine
    assert chosen.importance_cap == (2.0 if engine == "vllm" else None)


def test_all_unusable_settings_are_reported_at_once() -> None:
    issues = issues_of("training.lr = -1.0\n[advanced]\nlora_rnak = 8\nvllm_url = 'a'")
    assert set(issues) == {"training.lr", "advanced.lora_rnak", "advanced.vllm_url"}
    assert issues["advanced.lora_rnak"].suggestion == "lora_rank"


DECISIONS = """\
[decide]
against = "git:main"
confidence = 0.9
slices = ["difficulty", "split"]
reward_range = [-1, 1.5]

[min]
pass_rate = 0.6
"pass^4" = 0

[max]
unscored = 0.05
cost_per_row = 0.02

[margin]
reward = 2
"pass@2" = 0.03
latency = 0.1
"""


def decision_issues(text: str) -> dict[str, tuple[int | None, str, str | None]]:
    with pytest.raises(InvalidConfigError) as raised:
        parse_decisions(text, "configs/eval/a.decide.toml")
    return {issue.key: (issue.line, issue.message, issue.suggestion) for issue in raised.value.issues}


def test_every_key_of_a_decide_file() -> None:
    assert parse_decisions(DECISIONS, "a.decide.toml") == Decisions(
        minima={"pass_rate": 0.6, "pass^4": 0.0},
        maxima={"unscored": 0.05, "cost_per_row": 0.02},
        margins={"reward": 2.0, "pass@2": 0.03, "latency": 0.1},
        against="git:main",
        confidence=0.9,
        slices=("difficulty", "split"),
        reward_range=(-1.0, 1.5),
        shown="a.decide.toml",
    )
    assert parse_decisions("", "a.decide.toml") == Decisions(shown="a.decide.toml")


def test_all_errors_of_a_decide_file_are_in_one_report() -> None:
    found = decision_issues(
        "[decide]\nagaints = 'x'\nconfidence = 95\nslices = ['a', 'a']\nreward_range = [1, 0]\n"
        "[min]\npas_rate = 0.6\npass_rate = 60\nreward = '1'\n\"pass@0\" = 0.5\n"
        "[max]\nunscored = true\ncost_per_row = -1\n"
        "[margins]\npass_rate = 0.1\n"
        "[margin]\npass_rate = 3\nfailed = -0.1\ninfrastructure = 0.1\nlatency = 10\ntokens = nan\n"
    )
    whole_share = "a margin of 3 accepts every run, because a share is from 0 to 1: write 3 points as 0.03"
    not_compared = "infrastructure is not compared with a baseline; give it a limit with max"
    assert found == {
        "decide.againts": (2, "Unrecognized key", "against"),
        "decide.confidence": (3, "must be at most 0.999999, got 95", None),
        "decide.slices": (4, 'names "a" twice', None),
        "decide.reward_range": (5, "must be the lowest and the highest reward, such as [0, 1]", None),
        "min.pas_rate": (7, "Unrecognized metric", "pass_rate"),
        "min.pass_rate": (8, "is a share, from 0 to 1: write 60% as 0.6", None),
        "min.reward": (9, 'must be a number, got "1"', None),
        "min.pass@0": (10, "Unrecognized metric", "pass@1"),
        "max.unscored": (12, "must be a number, got true", None),
        "max.cost_per_row": (13, "is never below 0, got -1", None),
        "margins": (14, "Unrecognized section", "margin"),
        "margin.pass_rate": (17, whole_share, None),
        "margin.failed": (18, "a margin is how much worse is still accepted, 0 or more, got -0.1", None),
        "margin.infrastructure": (19, not_compared, None),
        "margin.latency": (20, "a margin of 10 accepts 11 times as much: write 10% as 0.1", None),
        "margin.tokens": (21, "must be a finite number", None),
    }


def test_a_margin_as_wide_as_the_reward_range_is_an_error() -> None:
    ranged = "[decide]\nreward_range = [0, 1]\n[margin]\nreward = {}\n"
    assert "rewards are from 0 to 1" in decision_issues(ranged.format(1))["margin.reward"][1]
    assert parse_decisions(ranged.format(0.9), "x").margins == {"reward": 0.9}


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("against = 'x'\n", "against"),
        ("min = 3\n", "min"),
        ("decide = 3\n", "decide"),
        ("[decide]\nreward_range = [0]\n", "decide.reward_range"),
        ("[decide]\nreward_range = ['a', 'b']\n[margin]\nreward = 0.1\n", "decide.reward_range"),
        ("[decide]\nslices = ['']\n", "decide.slices"),
        ("[decide]\nslices = [1]\n", "decide.slices"),
        ("[decide]\nslices = 'split'\n", "decide.slices"),
        ('[decide]\nagainst = "a\\u001bb"\n', "decide.against"),
        ("[secrets]\nrequired = []\n", "secrets"),
        (f"[max]\nreward = 1{'0' * 400}\n", "max.reward"),
    ],
)
def test_an_error_of_a_decide_file_has_its_key(text: str, key: str) -> None:
    issues = decision_issues(text)
    assert not issues[key][1].startswith("Input should")


def test_a_decide_file_is_next_to_its_config_and_is_not_a_config(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "agents")
    config = write_config(workspace, MINIMAL_EVAL, name="a.toml")
    assert decisions_about(config) == Decisions()
    path = write_config(workspace, DECISIONS, name="a.decide.toml")
    assert decide_file(config) == path
    assert decisions_about(config).minima == {"pass_rate": 0.6, "pass^4": 0.0}
    with pytest.raises(OsmosisError) as raised:
        load_eval_config(path, workspace)
    assert raised.value.hint == "name the config that the rules are for: a.toml"
    with pytest.raises(OsmosisError) as raised:
        load_eval_config(path.with_name("b.toml"), workspace)
    assert "decide" not in (raised.value.hint or "")


@pytest.mark.parametrize(
    "written, message, suggestion",
    [
        ({"isolaton": "auto"}, "Unrecognized key", "isolation"),
        ({"isolation": "requird"}, 'must be one of auto, required, off, got "requird"', "required"),
        ({"network": True}, "must be one of host, none, got true", None),
        ({"servers": 0}, "must be at least 1, got 0", None),
        ({"servers": 9}, "must be at most 8, got 9", None),
        ({"workers": 65}, "must be at most 64, got 65", None),
        ({"servers": True}, "must be an integer, got true", None),
        ({"cpus": 0}, "must be greater than 0, got 0", None),
        ({"gpus": -1}, "must be at least 0, got -1", None),
        ({"memory_gb": float("inf")}, "must be a finite number, got inf", None),
        ({"pool": "../x"}, "must be the name of a pool of workers", None),
        ({"pool": ""}, "must be the name of a pool of workers", None),
        ({"labels": ["a"] * 17, "pool": "gpu"}, "must be an array of at most 16 items", None),
    ],
)
def test_errors_of_the_execution_table(written: dict[str, Any], message: str, suggestion: str | None) -> None:
    (issue,) = execution_issues({"advanced": {"execution": written}})
    assert issue.key == f"advanced.execution.{next(iter(written))}"
    assert issue.message.startswith(message)
    assert issue.suggestion == suggestion
    assert read_execution({"execution": written}) == ExecutionSection()


def test_isolation_off_is_an_error_but_an_earlier_run_that_has_it_keeps_its_other_keys() -> None:
    written = {"cpus": 2, "memory_gb": 4.5, "pool": "gpu-a100.spot_1", "network": "none", "isolation": "off"}
    (issue,) = execution_issues({"advanced": {"execution": written}})
    assert issue.key == "advanced.execution.isolation"
    assert "for more isolation than a machine gives by itself, never for less" in issue.message
    assert "OSMOSIS_ISOLATION=off" in issue.message
    assert read_execution({"execution": written}) == ExecutionSection.model_validate(written)


@pytest.mark.parametrize(
    ("key", "value", "refusing", "suggestion"),
    [
        ("networks", "none", (EVAL, TRAINING), "network"),
        ("isolation", "off", (EVAL, TRAINING), None),
        ("workers", 64, (TRAINING,), None),
        ("workers", 1, (), None),
    ],
)
@pytest.mark.parametrize("kind", [EVAL, TRAINING])
def test_the_platform_reports_the_same_execution_errors_as_commands(
    kind: ConfigKind, key: str, value: object, refusing: tuple[ConfigKind, ...], suggestion: str | None
) -> None:
    advanced = {"execution": {key: value}}
    found = settings_issues({"advanced": advanced}, kind)
    _, issues = check_body({"advanced_config": advanced}, kind)
    place = f"advanced.execution.{key}"
    assert [issue for issue in issues if issue.key.startswith("advanced")] == found
    assert [(issue.key, issue.suggestion) for issue in found] == [(place, suggestion)] * (kind in refusing)


# Values whose text looks like keys and headers, and keys in unusual spellings.
DOCUMENT = '''\
top = 1
# fake = 2
  [table]  # [fake]
text = """
fake = 3
[fake]
"""
literal = \'\'\'

[[fake]]
fake = '1\'\'\'\'
list = [
  1, # fake = 4

  ["""
]
fake = 5
"""],
]
"quoted = key" = '# no comment'
dotted . "in.ner" = { deep.er = 2024-01-01T00:00:00Z } # fake = 6
separators = "\u2028fake = 7\x85"
[ table . 'sub ]' ]
\tafter = 1
[[array]]
inside = 1
[array.below]
inside = 2
["last"]
key = 1
'''
LINES = {
    ("top",): 1,
    ("table",): 3,
    ("table", "text"): 4,
    ("table", "literal"): 8,
    ("table", "list"): 12,
    ("table", "quoted = key"): 20,
    ("table", "dotted"): 21,
    ("table", "dotted", "in.ner"): 21,
    ("table", "dotted", "in.ner", "deep"): 21,
    ("table", "dotted", "in.ner", "deep", "er"): 21,
    ("table", "separators"): 22,
    ("table", "sub ]"): 23,
    ("table", "sub ]", "after"): 24,
    ("last",): 29,
    ("last", "key"): 30,
}


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_the_lines_of_keys_outside_arrays_of_tables(line_end: str) -> None:
    text = DOCUMENT.replace("\n", line_end)
    parse_toml(text, "a.toml")
    assert key_lines(text) == LINES
