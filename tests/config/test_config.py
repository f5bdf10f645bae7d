"""The keys of configs and decide files: what is read, what is refused, and on which line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osmosis_ai.config.checks import EVAL, TRAINING, ConfigKind, read_settings, settings_issues
from osmosis_ai.config.decisions import Decisions, decide_file, parse_decisions
from osmosis_ai.config.execution import ExecutionSection, execution_issues, read_execution
from osmosis_ai.config.issues import InvalidConfigError
from osmosis_ai.config.toml_text import KeyPath, key_lines
from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.runs.submit.run_request import check_body
from osmosis_ai.workspace.config_files import decisions_about, load_eval_config
from osmosis_ai.workspace.layout import WorkspaceDirectory
from tests.workspace.builders import MINIMAL_EVAL, make_workspace, write_config


def from_config(model_path=None, *, shown_path="the training config", **sections):
    document = {**sections, **({"experiment": {"model_path": model_path}} if model_path else {})}
    return read_settings(document, shown_path=shown_path)


def issues_of(**sections):
    with pytest.raises(InvalidConfigError) as caught:
        from_config(**sections)
    return {issue.key: issue for issue in caught.value.issues}


def test_advanced_keys_of_another_trainer_are_ignored_and_said():
    settings = from_config(advanced={"cluster": {"max_parallel": 6}})
    assert settings.ignored == ("cluster",)
    assert any("`cluster`" in warning for warning in settings.warnings("some/model"))


@pytest.mark.parametrize(
    ("sections", "held"),
    [
        ({}, {"lr": 1e-5, "clip_low": 0.2, "policy_engine": "torch", "importance_cap": None}),
        (
            {"training": {"lr": 1e-4, "agent_workflow_timeout_s": 120}},
            {"lr": 1e-4, "agent_workflow_timeout_s": 120},
        ),
        (
            {"checkpoints": {"eval_interval": 5}, "advanced": {"max_steps": 3}},
            {"eval_interval": 5, "max_steps": 3},
        ),
        ({"advanced": {"lora_targets": ["q_proj", "v_proj"]}}, {"lora_targets": ["q_proj", "v_proj"]}),
        ({"advanced": {"tool_call_format": "pythonic"}}, {"tool_call_format": "pythonic"}),
        ({"model_path": "osmosis/tiny"}, {"lr": 1e-3}),
        ({"model_path": "osmosis/tiny", "training": {"lr": 1e-5}}, {"lr": 1e-5}),
        ({"advanced": {"loss_type": "gspo"}}, {"clip_low": 3e-4, "clip_high": 4e-4}),
        ({"advanced": {"loss_type": "gspo", "clip_high": 0.1}}, {"clip_low": 3e-4, "clip_high": 0.1}),
        (
            {"advanced": {"policy_engine": "vllm", "vllm_command": ["/opt/vllm/bin/vllm"]}},
            {"vllm_command": ["/opt/vllm/bin/vllm"], "importance_cap": 2.0},
        ),
        (
            {"advanced": {"policy_engine": "vllm", "vllm_url": "http://gpu:8000", "importance_cap": 1.5}},
            {"vllm_url": "http://gpu:8000", "importance_cap": 1.5},
        ),
    ],
)
def test_written_keys_defaults_and_those_that_follow_other_keys(sections, held):
    settings = from_config(**sections)
    assert {name: getattr(settings, name) for name in held} == held


VLLM = {"policy_engine": "vllm", "vllm_url": "http://gpu:8000", "learner_processes": 2}


@pytest.mark.parametrize(
    ("said", "warning"),
    [
        ({}, None),
        ({"lr": 1e-6}, "a LoRA hardly moves below 3e-06"),
        ({"lr": 0.01}, "collapse"),
        ({"rollout_top_p": 0.9}, "biased"),
        ({"clip_low": 0.1}, "`clip_low` has no effect: every batch is learned from once"),
        ({"clip_low": 0.1, "max_staleness": 1}, None),
        (
            {"clip_high": 0.3, "max_staleness": 1, "importance_cap": 2.0},
            "`clip_high` has no effect: with imp",
        ),
        ({"loss_type": "gspo"}, "its ratio is 1 except for rounding"),
        ({"loss_type": "gspo", "max_staleness": 1}, None),
        ({"loss_type": "gspo", "max_staleness": 1, "importance_cap": 2.0}, 'learns as "grpo" does'),
        ({"importance_cap": 2.0}, None),
        ({"shard_model": True}, "changes nothing with one learner process"),
        ({"shard_model": True, **VLLM}, None),
    ],
)
def test_a_setting_that_is_hardly_meant_is_warned_of(said, warning):
    found = TrainingSettings(**said).warnings("org/model")
    assert len(found) == (warning is not None)
    assert all(warning in sentence for sentence in found)


def test_warnings_know_the_model_and_the_processes_of_torchrun():
    assert "1e-05" in TrainingSettings().warnings("osmosis/tiny")[0]
    assert (
        "still serves the whole model" in TrainingSettings(shard_model=True).warnings("a/b", processes=2)[0]
    )


@pytest.mark.parametrize(
    ("sections", "key", "words"),
    [
        (
            {"training": {"n_samples_per_prompt": 1}},
            "training.n_samples_per_prompt",
            "must be at least 2: a reward",
        ),
        (
            {"sampling": {"rollout_temperature": 0.0}},
            "sampling.rollout_temperature",
            "must be greater than 0: a gre",
        ),
        ({"training": {"rollout_temperature": 1.0}}, "training.rollout_temperature", "belongs in [sampling]"),
        ({"advanced": {"eval_interval": 3}}, "advanced.eval_interval", "belongs in [checkpoints]"),
        ({"advanced": {"lora_rnak": 8}}, "advanced.lora_rnak", "Unrecognized key"),
        ({"advanced": {"adam_beta2": 1.0}}, "advanced.adam_beta2", "must be less than 1, got 1.0"),
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
            {"advanced": {"tool_call_format": "mistrall"}},
            "advanced.tool_call_format",
            'must be one of hermes, qwen3_coder, mistral, deepseek, llama3_json, pythonic, got "mistrall"',
        ),
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
def test_a_setting_of_no_use_is_refused_with_its_key(sections, key, words):
    [(found, issue)] = issues_of(**sections).items()
    assert (found, words in issue.message) == (key, True)


def test_all_refused_settings_are_reported_at_once():
    issues = issues_of(training={"lr": -1.0}, advanced={"lora_rnak": 8, "vllm_url": "http://a"})
    assert set(issues) == {"training.lr", "advanced.lora_rnak", "advanced.vllm_url"}
    assert issues["advanced.lora_rnak"].suggestion == "lora_rank"


@pytest.fixture
def workspace(tmp_path: Path) -> WorkspaceDirectory:
    return make_workspace(tmp_path / "agents")


FULL = """\
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


def issues_of_decisions(text: str) -> dict[str, tuple[int | None, str, str | None]]:
    with pytest.raises(InvalidConfigError) as raised:
        parse_decisions(text, "configs/eval/a.decide.toml")
    return {issue.key: (issue.line, issue.message, issue.suggestion) for issue in raised.value.issues}


def test_everything_that_can_be_decided_is_read() -> None:
    assert parse_decisions(FULL, "a.decide.toml") == Decisions(
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


def test_everything_that_is_wrong_is_in_one_report_with_its_line_and_what_was_meant() -> None:
    found = issues_of_decisions(
        "[decide]\nagaints = 'x'\nconfidence = 95\nslices = ['a', 'a']\nreward_range = [1, 0]\n"
        "[min]\npas_rate = 0.6\npass_rate = 60\nreward = '1'\n\"pass@0\" = 0.5\n"
        "[max]\nunscored = true\ncost_per_row = -1\n"
        "[margins]\npass_rate = 0.1\n"
        "[margin]\npass_rate = 3\nfailed = -0.1\ninfrastructure = 0.1\nlatency = 10\ntokens = nan\n"
    )
    assert found == {
        "decide.againts": (2, "Unrecognized key", "against"),
        "decide.confidence": (3, "must be at most 0.999999, got 95", None),
        "decide.slices": (4, 'names "a" twice', None),
        "decide.reward_range": (5, "must be the lowest and the highest reward, such as [0, 1]", None),
        "min.pas_rate": (7, "Unrecognized metric", "pass_rate"),
        "min.pass_rate": (8, "is a share, from 0 to 1: write 80% as 0.8", None),
        "min.reward": (9, 'must be a number, got "1"', None),
        "min.pass@0": (10, "Unrecognized metric", "pass@1"),
        "max.unscored": (12, "must be a number, got true", None),
        "max.cost_per_row": (13, "is never below 0, got -1", None),
        "margins": (14, "Unrecognized section", "margin"),
        "margin.pass_rate": (
            17,
            "a margin of 3 accepts every run, because a share is from 0 to 1: write 3 points as 0.03",
            None,
        ),
        "margin.failed": (18, "a margin is how much worse is still accepted, 0 or more, got -0.1", None),
        "margin.infrastructure": (
            19,
            "infrastructure is not compared with a baseline; give it a limit with max",
            None,
        ),
        "margin.latency": (20, "a margin of 10 accepts 11 times as much: write 10% as 0.1", None),
        "margin.tokens": (21, "must be a finite number", None),
    }


def test_a_margin_as_wide_as_the_rewards_accepts_every_run_and_is_refused() -> None:
    ranged = "[decide]\nreward_range = [0, 1]\n[margin]\nreward = {}\n"
    assert "rewards are from 0 to 1" in issues_of_decisions(ranged.format(1))["margin.reward"][1]
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
        ('[decide]\nagainst = "a\\u001bb"\n', "decide.against"),
        ("[secrets]\nrequired = []\n", "secrets"),
        (f"[max]\nreward = 1{'0' * 400}\n", "max.reward"),
    ],
)
def test_what_a_decide_file_cannot_have_is_told_by_its_key(text: str, key: str) -> None:
    assert key in issues_of_decisions(text)


def test_it_is_found_beside_its_config_and_a_config_without_one_decides_nothing(tmp_path: Path) -> None:
    config = tmp_path / "a.toml"
    assert decisions_about(config) == Decisions()
    decide_file(config).write_text("[min]\nreward = 1\n")
    assert decisions_about(config).minima == {"reward": 1.0}
    assert decide_file(config).name == "a.decide.toml"


WHOLE: dict[str, Any] = {
    "cpus": 2,
    "gpus": 0,
    "memory_gb": 4.5,
    "pool": "gpu-a100.spot_1",
    "network": "none",
    "isolation": "required",
    "servers": 8,
}


def found(execution: Any, name: str = "execution") -> dict[str, tuple[str, str | None]]:
    """Return what is wrong with a table, by key, with its suggestion."""
    issues = execution_issues({"advanced": {name: execution}})
    return {issue.key: (issue.message, issue.suggestion) for issue in issues}


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
    ],
)
def test_what_is_wrong_in_it_is_said_by_key(
    written: dict[str, Any], message: str, suggestion: str | None
) -> None:
    ((key, (said, meant)),) = found(written).items()
    assert key == f"advanced.execution.{next(iter(written))}"
    assert said.startswith(message)
    assert meant == suggestion
    assert read_execution({"execution": written}) == ExecutionSection()


def test_less_isolation_than_a_machine_gives_is_refused_and_nothing_else_of_an_earlier_run_is_lost() -> None:
    asked = {**WHOLE, "isolation": "off"}
    ((key, (said, _)),) = found(asked).items()
    assert key == "advanced.execution.isolation"
    assert said.startswith(
        "a config may ask for more isolation than a machine gives by itself, never for less"
    )
    assert "OSMOSIS_ISOLATION=off" in said
    assert read_execution({"execution": asked}) == ExecutionSection(**asked)


@pytest.mark.parametrize(
    ("key", "value", "suggestion"), [("networks", "none", "network"), ("isolation", "off", None)]
)
@pytest.mark.parametrize("kind", [EVAL, TRAINING])
def test_a_platform_refuses_what_a_command_doubts(
    kind: ConfigKind, key: str, value: str, suggestion: str | None
) -> None:
    advanced = {"execution": {key: value}}
    (doubt,) = settings_issues({"advanced": advanced}, kind)
    _, issues = check_body({"advanced_config": advanced}, kind)
    assert doubt in issues
    assert (doubt.key, doubt.suggestion) == (f"advanced.execution.{key}", suggestion)


@pytest.mark.parametrize(
    ("kind", "workers", "is_refused"), [(EVAL, 64, False), (TRAINING, 1, False), (TRAINING, 2, True)]
)
def test_only_evaluations_have_several_workers(kind: ConfigKind, workers: int, is_refused: bool) -> None:
    advanced = {"execution": {"workers": workers}}
    _, issues = check_body({"advanced_config": advanced}, kind)
    for found_issues in (issues, settings_issues({"advanced": advanced}, kind)):
        assert ("advanced.execution.workers" in {issue.key for issue in found_issues}) == is_refused


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Values whose text looks like anything but a value; several span lines.
VALUES = st.sampled_from(
    [
        "1",
        "true",
        '"# no comment"',
        "'[no.header]'",
        '"""\nfake = 1\n[fake]\n"""',
        "'''\n\n[[fake]]\nfake = '1'\n'''",
        '"""quotes "" inside \\""" and\nfake = 2"""',
        "[1, 2]",
        "[\n  1, # fake = 1\n\n  [2,\n 3],\n]",
        '[\n"""\n]\nfake = 3\n""",\n]',
        "{ inner = 1, deep.er = 2 }",
        "2024-01-01T00:00:00Z # fake = 4",
        '"\u2028fake = 5\x85"',
    ]
)
KEY_FORMS = st.sampled_from(
    ["k{}", '"k{} = x"', "'k{} # y'", '"k{}.z"', "k{}.sub.leaf", ' k{} . "sub" ', "\tk{}"]
)
FILLERS = st.sampled_from(["", "   ", "# fake = 6", "# [fake]", "\t# '''"])
HEADER_FORMS = st.sampled_from(["[t{}]", '[ t{} . "in.ner" ]', "  [t{}.a.b]  # [fake]", "['t{} ]']"])


@st.composite
def documents(draw: st.DrawFn) -> str:
    """A valid TOML document: tables, arrays of tables, and keys, in odd but legal spellings."""
    lines: list[str] = []
    serial = 0
    for block in range(draw(st.integers(1, 4))):
        if block:
            header = draw(HEADER_FORMS).format(serial)
            is_array = header.startswith("[t") and draw(st.booleans())
            lines.append(f"[{header}]" if is_array else header)
            if is_array and draw(st.booleans()):
                lines.append(f"[t{serial}.below]")
            serial += 1
        for _ in range(draw(st.integers(0, 4))):
            lines += draw(st.lists(FILLERS, max_size=2))
            lines.append(f"{draw(KEY_FORMS).format(serial)} = {draw(VALUES)}")
            serial += 1
    return draw(st.sampled_from(["\n", "\r\n"])).join("\n".join(lines).split("\n"))


def paths_of(value: Any, prefix: KeyPath = ()) -> set[KeyPath]:
    """Every path to a key in a parsed document; what is inside an array has none."""
    if not isinstance(value, dict):
        return set()
    found: set[KeyPath] = set()
    for key, inner in value.items():
        found |= {(*prefix, key)} | paths_of(inner, (*prefix, key))
    return found


def parsed_paths(lines: list[str]) -> set[KeyPath] | None:
    try:
        return paths_of(tomllib.loads("\n".join(lines)))
    except tomllib.TOMLDecodeError:
        return None


def first_line_of(path: KeyPath, lines: list[str]) -> int:
    """The line where ``path`` appears, by the parser alone: what stands before it lacks the path."""
    complete = [number for number in range(len(lines) + 1) if parsed_paths(lines[:number]) is not None]
    with_path = next(number for number in complete if path in (parsed_paths(lines[:number]) or ()))
    before = max(number for number in complete if number < with_path)
    return before + 1


@settings(max_examples=60, deadline=None)
@given(documents())
def test_keys_outside_arrays_of_tables_have_the_line_where_the_parser_meets_them(text: str) -> None:
    lines = text.replace("\r\n", "\n").split("\n")
    document = tomllib.loads(text)
    arrays = {
        key for key, value in document.items() if isinstance(value, list) and isinstance(value[0], dict)
    }
    assert key_lines(text) == {
        path: first_line_of(path, lines) for path in paths_of(document) if path[0] not in arrays
    }


@settings(deadline=None)
@given(st.text(alphabet="ab=.[]{}\"'#\\ \t\n\r1,", max_size=60))
def test_any_text_at_all_is_taken(text: str) -> None:
    found = key_lines(text)
    count = len(text.replace("\r\n", "\n").split("\n"))
    assert all(1 <= number <= count for number in found.values())


def test_it_is_never_taken_for_a_config(workspace: WorkspaceDirectory) -> None:
    write_config(workspace, MINIMAL_EVAL, name="a.toml")
    path = write_config(workspace, FULL, name="a.decide.toml")
    with pytest.raises(OsmosisError) as raised:
        load_eval_config(path, workspace)
    assert raised.value.hint == "name the config that the rules are for: a.toml"
    with pytest.raises(OsmosisError) as raised:
        load_eval_config(path.with_name("b.toml"), workspace)
    assert "decide" not in (raised.value.hint or "")
