from __future__ import annotations

import pytest

from osmosis_ai.config.issues import Issue
from osmosis_ai.workspace.config_files import (
    InvalidConfigError,
)
from osmosis_ai.workspace.layout import WorkspaceDirectory
from tests.workspace.builders import MINIMAL_EVAL, issues_of, load_eval

FULL = """\
[experiment]
rollout = "multiply"
entrypoint = "main.py"
model_path = "openai/gpt-5-mini"
dataset = "multiply"
branch = "feature/x"

[evaluation]
limit = 100
n = 4
batch_size = 32
pass_threshold = 0
agent_workflow_timeout_s = 1.5
grader_timeout_s = 30

[env]
LOG_LEVEL = "INFO"
_PRIVATE = ""

[secrets]
required = ["OPENAI_API_KEY", "SEARCH_KEY"]

[advanced]
nested = { deep = [1, 2] }
"""


def with_line(line: str, after: str = "[experiment]") -> str:
    return MINIMAL_EVAL.replace(after, f"{after}\n{line}", 1)


def test_the_least_a_config_says_is_enough_and_the_rest_has_defaults(workspace: WorkspaceDirectory) -> None:
    config = load_eval(workspace, MINIMAL_EVAL)
    assert config.experiment.rollout == "multiply"
    assert config.evaluation.n == 1
    assert config.evaluation.pass_threshold == 1.0
    assert config.evaluation.limit is None
    assert config.evaluation.batch_size is None
    assert config.evaluation.agent_workflow_timeout_s is None
    assert (config.env, config.secrets, config.advanced) == ({}, (), {})


def test_everything_that_can_be_said_is_read(workspace: WorkspaceDirectory) -> None:
    config = load_eval(workspace, FULL)
    assert config.path == workspace.eval_configs_dir / "a.toml"
    assert (config.experiment.branch, config.experiment.commit_sha) == ("feature/x", None)
    assert (config.evaluation.limit, config.evaluation.n, config.evaluation.batch_size) == (100, 4, 32)
    assert config.evaluation.pass_threshold == 0.0
    assert (config.evaluation.agent_workflow_timeout_s, config.evaluation.grader_timeout_s) == (1.5, 30.0)
    assert config.env == {"LOG_LEVEL": "INFO", "_PRIVATE": ""}
    assert config.secrets == ("OPENAI_API_KEY", "SEARCH_KEY")
    assert config.advanced == {"nested": {"deep": [1, 2]}}


def test_the_payload_is_what_is_written_and_nothing_else(workspace: WorkspaceDirectory) -> None:
    assert load_eval(workspace, FULL).payload() == {
        "experiment_config": {
            "rollout": "multiply",
            "entrypoint": "main.py",
            "model_path": "openai/gpt-5-mini",
            "dataset": "multiply",
            "branch": "feature/x",
        },
        "evaluation_config": {
            "limit": 100,
            "n": 4,
            "batch_size": 32,
            "pass_threshold": 0,
            "agent_workflow_timeout_s": 1.5,
            "grader_timeout_s": 30,
        },
        "advanced_config": {"nested": {"deep": [1, 2]}},
        "env_config": {"LOG_LEVEL": "INFO", "_PRIVATE": ""},
        "secrets": {"required": ["OPENAI_API_KEY", "SEARCH_KEY"]},
    }


def test_empty_sections_are_not_sent(workspace: WorkspaceDirectory) -> None:
    payload = load_eval(workspace, MINIMAL_EVAL + "\n[evaluation]\n[env]\n[advanced]\n").payload()
    assert list(payload) == ["experiment_config"]


def test_everything_wrong_is_reported_at_once_in_the_order_of_the_file(workspace: WorkspaceDirectory) -> None:
    text = """\
[experiment]
rollout = "multiply"
entrypoint = "main.py"
model_path = 3
commit_sha = 1234567

[evalution]
n = 2

[evaluation]
limt = 10
n = "4"
pass_threshold = true
lr = 1e-6

[env]
lower = "x"
LEVEL = 5

[secrets]
required = ["openai_api_key", "TWICE", "TWICE"]
"""
    with pytest.raises(InvalidConfigError) as caught:
        load_eval(workspace, text)
    assert caught.value.message == (
        "Invalid eval config: configs/eval/a.toml\n"
        "  - experiment.dataset: Missing 'dataset' in [experiment] section (line 1)\n"
        "  - experiment.model_path: must be a string, got 3 (line 4)\n"
        "  - experiment.commit_sha: must be a string, got 1234567 (line 5)\n"
        "  - evalution: Unrecognized section (line 7; did you mean 'evaluation'?)\n"
        "  - evaluation.limt: Unrecognized key (line 11; did you mean 'limit'?)\n"
        '  - evaluation.n: must be an integer, got "4" (line 12)\n'
        "  - evaluation.pass_threshold: must be a number, got true (line 13)\n"
        "  - evaluation.lr: Unrecognized key (line 14)\n"
        "  - env.lower: the name of a variable must match ^[A-Z_][A-Z0-9_]*$ (line 17)\n"
        "  - env.LEVEL: must be a string, got 5 (line 18)\n"
        "  - secrets.required: 'openai_api_key' is no name of a secret: the name of a secret must match "
        "^[A-Z][A-Z0-9_]*$ (line 21; did you mean 'OPENAI_API_KEY'?)\n"
        "  - secrets.required: 'TWICE' is listed 2 times (line 21)"
    )
    assert caught.value.code == "VALIDATION"
    assert caught.value.details["error"] == "Invalid eval config"
    assert caught.value.details["issues"][1] == {
        "key": "experiment.model_path",
        "message": "must be a string, got 3",
        "line": 4,
    }
    assert caught.value.details["issues"][4]["suggestion"] == "limit"


@pytest.mark.parametrize(
    "written, message",
    [
        ("n = 0", "must be at least 1, got 0"),
        ("n = -3", "must be at least 1, got -3"),
        ("n = 2.0", "must be an integer, got 2.0"),
        ("n = true", "must be an integer, got true"),
        ("n = [1]", "must be an integer, got an array"),
        ("n = 99999999999", "must be at most 2147483647, got 99999999999"),
        ("limit = 0", "must be at least 1, got 0"),
        ("limit = 2024-01-01", "must be an integer, got 2024-01-01"),
        ("batch_size = { x = 1 }", "must be an integer, got a table"),
        ("pass_threshold = nan", "must be a finite number, got nan"),
        ("pass_threshold = -inf", "must be a finite number, got -inf"),
        ('pass_threshold = "1"', 'must be a number, got "1"'),
        ("agent_workflow_timeout_s = 0", "must be greater than 0, got 0"),
        ("agent_workflow_timeout_s = inf", "must be a finite number, got inf"),
        ("grader_timeout_s = -0.5", "must be greater than 0, got -0.5"),
        ("grader_timeout_s = false", "must be a number, got false"),
        ("n = " + "9" * 100, f"must be at most 2147483647, got {'9' * 59}…"),
    ],
)
def test_types_and_ranges_of_evaluation_values(
    workspace: WorkspaceDirectory, written: str, message: str
) -> None:
    assert issues_of(workspace, MINIMAL_EVAL + f"\n[evaluation]\n{written}\n") == [
        Issue(f"evaluation.{written.split()[0]}", message, line=11)
    ]


@pytest.mark.parametrize(
    "key, value, fragment",
    [
        ("rollout", '""', "must not be empty"),
        ("rollout", '"."', "one directory under rollouts/"),
        ("rollout", '".."', "one directory under rollouts/"),
        ("rollout", '"a/b"', "one directory under rollouts/"),
        ("rollout", '"a\\\\b"', "one directory under rollouts/"),
        ("rollout", '"/srv/multiply"', "not an absolute path"),
        ("rollout", '"C:\\\\multiply"', "not an absolute path"),
        ("rollout", '"absent"', "there is no directory rollouts/absent/"),
        ("entrypoint", '""', "must not be empty"),
        ("entrypoint", '"/etc/passwd"', "not an absolute path"),
        ("entrypoint", '"../other/main.py"', "must not leave the rollout's directory"),
        ("entrypoint", '"a/../../x.py"', "must not leave the rollout's directory"),
        ("entrypoint", '"serve.py"', "there is no file rollouts/multiply/serve.py"),
        ("model_path", '"  "', "must not be empty"),
        ("model_path", '"<your-model>"', "is still a placeholder"),
        ("dataset", '"<your-dataset-name>"', "is still a placeholder"),
        ("dataset", '"data/multiply.jsonl"', "the name of a dataset, not a path"),
    ],
)
def test_values_of_the_experiment(workspace: WorkspaceDirectory, key: str, value: str, fragment: str) -> None:
    lines = MINIMAL_EVAL.splitlines()
    number = next(index for index, line in enumerate(lines) if line.startswith(key))
    lines[number] = f"{key} = {value}"
    (issue,) = issues_of(workspace, "\n".join(lines))
    assert (issue.key, issue.line) == (f"experiment.{key}", number + 1)
    assert fragment in issue.message


@pytest.mark.parametrize(
    "written, fragment",
    [
        ('branch = ""', "must be the name of a branch"),
        ('branch = "a b"', "must be the name of a branch"),
        ('commit_sha = "abc12"', "must be 7 to 40 hexadecimal digits"),
        ('commit_sha = "abcdefg"', "must be 7 to 40 hexadecimal digits"),
        ('commit_sha = "' + "a" * 41 + '"', "must be 7 to 40 hexadecimal digits"),
        ("commit_sha = 1234567", "must be a string, got 1234567"),
        ('branch = "main"\ncommit_sha = "abcdef0"', "cannot stand beside `branch`"),
        ('brunch = "main"', "Unrecognized key"),
        ("limit = 3", "`limit` belongs in [evaluation]"),
    ],
)
def test_what_else_stands_in_the_experiment(
    workspace: WorkspaceDirectory, written: str, fragment: str
) -> None:
    (issue,) = issues_of(workspace, with_line(written))
    assert fragment in issue.message
    assert issue.line == written.count("\n") + 2


def test_a_misspelled_rollout_or_entrypoint_is_suggested(workspace: WorkspaceDirectory) -> None:
    (issue,) = issues_of(workspace, MINIMAL_EVAL.replace('"multiply"', '"multipy"', 1))
    assert (issue.key, issue.suggestion) == ("experiment.rollout", "multiply")
    (issue,) = issues_of(workspace, MINIMAL_EVAL.replace("main.py", "mian.py"))
    assert (issue.key, issue.suggestion) == ("experiment.entrypoint", "main.py")


def test_code_that_a_platform_takes_from_a_commit_need_not_be_here(workspace: WorkspaceDirectory) -> None:
    text = with_line('commit_sha = "ABCDEF0"').replace('"multiply"', '"elsewhere"', 1)
    assert load_eval(workspace, text).experiment.commit_sha == "ABCDEF0"


@pytest.mark.parametrize(
    "text, key, message",
    [
        ("[secrets]\nrequired = []", "experiment", "Missing [experiment] section"),
        ('experiment = "x"\n[secrets]\nrequired = []', "experiment", 'must be a table, got "x"'),
        ("evaluation = 3\n" + MINIMAL_EVAL, "evaluation", "must be a table, got 3"),
        ("advanced = 3\n" + MINIMAL_EVAL, "advanced", "must be a table, got 3"),
        ('env = ["A"]\n' + MINIMAL_EVAL, "env", "must be a table, got an array"),
        ("limit = 3\n" + MINIMAL_EVAL, "limit", "Unrecognized key; `limit` belongs in [evaluation]"),
        ("what = 3\n" + MINIMAL_EVAL, "what", "Unrecognized key"),
        (MINIMAL_EVAL + '[llm]\nmodel = "x"', "llm", "Unrecognized section"),
        (
            MINIMAL_EVAL + "[training]\nlr = 1",
            "training",
            "Unrecognized section; it belongs to configs in configs/training/",
        ),
        (MINIMAL_EVAL + "[evaluation.more]\nx = 1", "evaluation.more", "Unrecognized key"),
        (
            MINIMAL_EVAL + "[advanced]\nwhen = 2024-01-01",
            "advanced.when",
            "dates and times cannot be passed on",
        ),
        (MINIMAL_EVAL + "[advanced]\na = { b = [nan] }", "advanced.a.b", "must be a finite number, got nan"),
    ],
)
def test_sections_that_are_missing_misplaced_or_of_another_kind(
    workspace: WorkspaceDirectory, text: str, key: str, message: str
) -> None:
    (issue,) = issues_of(workspace, text)
    assert issue.key == key
    assert issue.message.startswith(message)


@pytest.mark.parametrize(
    "name, message",
    [
        ("lower", "the name of a variable must match"),
        ("1ST", "the name of a variable must match"),
        ('"WITH SPACE"', "the name of a variable must match"),
        ("_OSMOSIS_ROLLOUT_PORT", "names that start with _OSMOSIS_ are reserved"),
    ],
)
def test_names_of_variables(workspace: WorkspaceDirectory, name: str, message: str) -> None:
    (issue,) = issues_of(workspace, MINIMAL_EVAL + f'[env]\n{name} = "x"\n')
    assert issue.message.startswith(message)
    assert issue.line == 10


def test_a_variable_cannot_carry_a_nul_character(workspace: WorkspaceDirectory) -> None:
    (issue,) = issues_of(workspace, MINIMAL_EVAL + '[env]\nX = "a\\u0000b"\n')
    assert issue.message == "must not contain a NUL character"


@pytest.mark.parametrize(
    "section, key, fragment",
    [
        ("", "secrets", "Missing [secrets] section"),
        ("[secrets]", "secrets.required", "Missing 'required' in [secrets] section"),
        ("[secrets]\nrequired = 'KEY'", "secrets.required", "must be a list of strings"),
        ("[secrets]\nrequired = ['KEY', 3]", "secrets.required", "must be a list of strings"),
        ("[secrets]\nrequired = []\nOPENAI_API_KEY = 'x'", "secrets.OPENAI_API_KEY", "only lists names"),
        ("[secrets]\nrequired = ['_KEY']", "secrets.required", "entry 1 is no name of a secret"),
        ("[secrets]\nrequired = ['KEY', 'KEY']", "secrets.required", "'KEY' is listed 2 times"),
        (
            "[secrets]\nrequired = ['A', 'B', 'C']\n[env]\nB = ''\nA = ''",
            "env",
            "Name(s) appear in both [env] and [secrets]: A, B",
        ),
    ],
)
def test_rules_of_secrets(workspace: WorkspaceDirectory, section: str, key: str, fragment: str) -> None:
    (issue,) = issues_of(workspace, MINIMAL_EVAL.partition("[secrets]")[0] + section)
    assert issue.key == key
    assert fragment in issue.message


def test_the_old_list_of_secrets_at_the_top_is_no_table(workspace: WorkspaceDirectory) -> None:
    (issue,) = issues_of(workspace, 'secrets = ["KEY"]\n' + MINIMAL_EVAL.partition("[secrets]")[0])
    assert issue == Issue("secrets", "must be a table with the key `required`", line=1)


@pytest.mark.parametrize(
    "pasted", ["sk-proj-4bC1dEfGh2iJkLmNoPqRsTuV", "sk_live_51HxYz0123456789abcdefgh", "hunter2"]
)
@pytest.mark.parametrize("template", ["required = ['{}']", "required = '{}'", "required = []\nKEY = '{}'"])
def test_a_key_pasted_among_the_names_is_never_repeated(
    workspace: WorkspaceDirectory, pasted: str, template: str
) -> None:
    text = MINIMAL_EVAL.replace("required = []", template.format(pasted))
    with pytest.raises(InvalidConfigError) as caught:
        load_eval(workspace, text)
    assert pasted not in caught.value.message + str(caught.value.details)
