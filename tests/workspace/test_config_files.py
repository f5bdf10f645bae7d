"""Config files of a workspace: their location, values and payload; secrets files."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest

from osmosis_ai.config.issues import InvalidConfigError, Issue
from osmosis_ai.errors import OsmosisError
from osmosis_ai.workspace.config_files import load_eval_config, load_training_config, rollout_directory
from osmosis_ai.workspace.layout import WorkspaceDirectory
from osmosis_ai.workspace.secrets_file import read_secrets_file
from tests.workspace.builders import MINIMAL_EVAL, MINIMAL_TRAINING, issues_of, load_eval, write_config


@pytest.mark.parametrize(
    "text, problem, line, column, excerpt",
    [
        ("[experiment]\n\tlimit 5\n", "expected '=' after a key", 2, 8, "  2 | \tlimit 5\n    | \t      ^"),
        ("[experiment]\r\na = 1\r\nb = x\r\n", "invalid value", 3, 5, "  3 | b = x\n    |     ^"),
        ("a = 1\na = 2\n", "cannot overwrite a value", 2, 6, "  2 | a = 2\n    |      ^"),
        ("a = [1,\n", "", 1, 8, "  1 | a = [1,\n    |        ^"),
    ],
)
def test_toml_syntax_errors(
    workspace: WorkspaceDirectory, text: str, problem: str, line: int, column: int, excerpt: str
) -> None:
    with pytest.raises(OsmosisError) as caught:
        load_eval(workspace, text)
    message = caught.value.message
    assert message.startswith(f"Invalid TOML in configs/eval/a.toml: {problem}")
    assert f"(line {line}, column {column})" in message
    assert message.endswith(excerpt)
    assert caught.value.details == {"path": "configs/eval/a.toml", "line": line, "column": column}


@pytest.mark.parametrize(
    "text, problem",
    [
        (b"a = " + b"9" * 5000, "Invalid TOML in configs/eval/a.toml: "),
        (b"a = " + b"[" * 20000, "Invalid TOML in configs/eval/a.toml: values are nested too deeply"),
        (b"a = 'x\xff'", "Cannot read config file configs/eval/a.toml: it is not UTF-8 (byte 6)"),
    ],
)
def test_unreadable_configs(workspace: WorkspaceDirectory, text: bytes, problem: str) -> None:
    with pytest.raises(OsmosisError) as caught:
        load_eval(workspace, text)
    assert caught.value.message.startswith(problem)


def test_missing_config(workspace: WorkspaceDirectory) -> None:
    def hint(name: str) -> str | None:
        with pytest.raises(OsmosisError) as caught:
            load_eval_config(Path(f"configs/eval/{name}"), workspace)
        assert caught.value.message == f"Config file not found: configs/eval/{name}"
        return caught.value.hint

    assert hint("nope.toml") == "configs/eval/ has no config yet"
    write_config(workspace, MINIMAL_EVAL, name="multiply.toml")
    assert hint("multipy.toml") == "did you mean configs/eval/multiply.toml?"
    write_config(workspace, MINIMAL_EVAL, name="nokey.toml")
    assert hint("nope.toml") == "configs/eval/ has multiply.toml, nokey.toml"


def test_relative_config_paths(workspace: WorkspaceDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_config(workspace, MINIMAL_EVAL)
    monkeypatch.chdir(workspace.data_dir)
    assert load_eval_config(Path("configs/eval/a.toml"), workspace).path == file
    assert load_eval_config(Path("../configs/eval/a.toml"), workspace).path == file
    monkeypatch.chdir(workspace.eval_configs_dir)
    assert load_eval_config(Path("a.toml"), workspace).path == file


def test_config_in_another_directory(workspace: WorkspaceDirectory, tmp_path: Path) -> None:
    training = write_config(workspace, MINIMAL_EVAL, kind="training")
    outside = tmp_path / "b.toml"
    outside.write_text(MINIMAL_EVAL)
    link = workspace.eval_configs_dir / "link.toml"
    link.symlink_to(outside)
    for path, found in ((training, training), (outside, outside), (link, outside)):
        with pytest.raises(OsmosisError) as caught:
            load_eval_config(path, workspace)
        assert str(found) in caught.value.message
        assert str(workspace.eval_configs_dir) in caught.value.message
        assert caught.value.hint == f"move it there, and name it as configs/eval/{path.name}"


def test_links_out_of_the_workspace(workspace: WorkspaceDirectory, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("")
    (workspace.rollouts_dir / "away").symlink_to(tmp_path)
    with pytest.raises(OsmosisError, match="leads out of rollouts/"):
        rollout_directory(workspace, "away")
    (workspace.rollouts_dir / "multiply" / "away.py").symlink_to(tmp_path / "main.py")
    (issue,) = issues_of(workspace, MINIMAL_EVAL.replace("main.py", "away.py"))
    assert issue.key == "experiment.entrypoint"
    assert "leads out of rollouts/multiply/" in issue.message


def test_missing_rollout(workspace: WorkspaceDirectory) -> None:
    with pytest.raises(OsmosisError, match=r"\(did you mean 'multiply'\?\)") as caught:
        rollout_directory(workspace, "Multiply")
    assert "osmosis rollout init" in str(caught.value.hint)


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


def test_complete_config(workspace: WorkspaceDirectory) -> None:
    config = load_eval(workspace, b"\xef\xbb\xbf" + FULL.encode())
    assert config.path == workspace.eval_configs_dir / "a.toml"
    assert (config.experiment.branch, config.evaluation.limit) == ("feature/x", 100)
    assert config.evaluation.pass_threshold == 0.0
    assert config.env == {"LOG_LEVEL": "INFO", "_PRIVATE": ""}
    assert config.secrets == ("OPENAI_API_KEY", "SEARCH_KEY")
    assert config.advanced == {"nested": {"deep": [1, 2]}}
    assert config.payload() == {
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


def test_all_issues_are_reported_in_file_order(workspace: WorkspaceDirectory) -> None:
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
        "  - secrets.required: 'openai_api_key' is not a valid secret name: the name of a secret must match "
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
        ("n = 2.0", "must be an integer, got 2.0"),
        ("n = true", "must be an integer, got true"),
        ("n = [1]", "must be an integer, got an array"),
        ("n = 99999999999", "must be at most 2147483647, got 99999999999"),
        ("limit = 2024-01-01", "must be an integer, got 2024-01-01"),
        ("batch_size = { x = 1 }", "must be an integer, got a table"),
        ("pass_threshold = nan", "must be a finite number, got nan"),
        ('pass_threshold = "1"', 'must be a number, got "1"'),
        ("agent_workflow_timeout_s = 0", "must be greater than 0, got 0"),
        ("grader_timeout_s = inf", "must be a finite number, got inf"),
        ("n = " + "9" * 100, f"must be at most 2147483647, got {'9' * 59}…"),
    ],
)
def test_evaluation_values(workspace: WorkspaceDirectory, written: str, message: str) -> None:
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
def test_experiment_values(workspace: WorkspaceDirectory, key: str, value: str, fragment: str) -> None:
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
        ('branch = "main"\ncommit_sha = "abcdef0"', "cannot be combined with `branch`"),
        ("limit = 3", "`limit` belongs in [evaluation]"),
    ],
)
def test_pinned_code_and_unknown_experiment_keys(
    workspace: WorkspaceDirectory, written: str, fragment: str
) -> None:
    (issue,) = issues_of(workspace, with_line(written))
    assert fragment in issue.message
    assert issue.line == written.count("\n") + 2


def test_pinned_commit_needs_no_local_code(workspace: WorkspaceDirectory) -> None:
    text = with_line('commit_sha = "ABCDEF0"').replace('"multiply"', '"elsewhere"', 1)
    assert load_eval(workspace, text).experiment.commit_sha == "ABCDEF0"


BARE = MINIMAL_EVAL.partition("[secrets]")[0]


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
        *(
            (f"{MINIMAL_EVAL}[env]\n{line} = ''", f"env.{name}", "the name of a variable must match")
            for line, name in (("1ST", "1ST"), ('"WITH SPACE"', "WITH SPACE"))
        ),
        (
            f"{MINIMAL_EVAL}[env]\n_OSMOSIS_ROLLOUT_PORT = ''",
            "env._OSMOSIS_ROLLOUT_PORT",
            "names that start with _OSMOSIS_ are reserved",
        ),
        (f'{MINIMAL_EVAL}[env]\nX = "a\\u0000b"', "env.X", "must not contain a NUL character"),
        (BARE, "secrets", "Missing [secrets] section"),
        (BARE + "[secrets]", "secrets.required", "Missing 'required' in [secrets] section"),
        (BARE + "[secrets]\nrequired = 'KEY'", "secrets.required", "must be a list of strings"),
        (BARE + "[secrets]\nrequired = ['KEY', 3]", "secrets.required", "must be a list of strings"),
        (
            MINIMAL_EVAL + "OPENAI_API_KEY = 'x'",
            "secrets.OPENAI_API_KEY",
            "Unrecognized key; [secrets] only lists",
        ),
        (BARE + "[secrets]\nrequired = ['_KEY']", "secrets.required", "entry 1 is not a valid secret name"),
        (
            BARE + "[secrets]\nrequired = ['A', 'B', 'C']\n[env]\nB = ''\nA = ''",
            "env",
            "Name(s) appear in both [env] and [secrets]: A, B",
        ),
    ],
)
def test_missing_and_misplaced_sections(
    workspace: WorkspaceDirectory, text: str, key: str, message: str
) -> None:
    (issue,) = issues_of(workspace, text)
    assert issue.key == key
    assert issue.message.startswith(message)


@pytest.mark.parametrize(
    "pasted", ["sk-proj-4bC1dEfGh2iJkLmNoPqRsTuV", "sk_live_51HxYz0123456789abcdefgh", "hunter2"]
)
@pytest.mark.parametrize("template", ["required = ['{}']", "required = '{}'", "required = []\nKEY = '{}'"])
def test_pasted_key_is_not_repeated(workspace: WorkspaceDirectory, pasted: str, template: str) -> None:
    text = MINIMAL_EVAL.replace("required = []", template.format(pasted))
    with pytest.raises(InvalidConfigError) as caught:
        load_eval(workspace, text)
    assert pasted not in caught.value.message + str(caught.value.details)


def test_training_sections(workspace: WorkspaceDirectory) -> None:
    text = MINIMAL_TRAINING + (
        "[training]\nlr = 1e-6\ntotal_epochs = 1\nn_samples_per_prompt = 8\nrollout_batch_size = 32\n"
        "max_prompt_length = 8192\nmax_response_length = 8192\nagent_workflow_timeout_s = 450\ngrader_timeout_s = 150\n"
        "[sampling]\nrollout_temperature = 1\nrollout_top_p = 0.95\n"
        "[checkpoints]\neval_interval = 10\ncheckpoint_save_freq = 20\n"
    )
    config = load_training_config(write_config(workspace, text, kind="training"), workspace)
    settings = config.settings
    assert (settings.lr, settings.rollout_top_p, settings.eval_interval) == (1e-6, 0.95, 10)
    payload = config.payload()
    assert list(payload) == ["experiment_config", "training_config", "sampling_config", "checkpoints_config"]
    assert payload["sampling_config"] == {"rollout_temperature": 1, "rollout_top_p": 0.95}


def test_training_issues(workspace: WorkspaceDirectory) -> None:
    text = MINIMAL_TRAINING + (
        "[training]\nlr = 0\ntotal_epoch = 3\nrollout_batch_size = 1.5\n"
        "[sampling]\nlr = 1e-6\nrollout_temperature = -1\nrollout_top_p = 1.1\n"
        "[checkpoints]\neval_interval = 0\n"
        "[evaluation]\nn = 1\n"
        "[secrets]\n"
    )
    with pytest.raises(InvalidConfigError) as caught:
        load_training_config(write_config(workspace, text, kind="training"), workspace)
    assert caught.value.message == (
        "Invalid training config: configs/training/a.toml\n"
        "  - training.lr: must be greater than 0, got 0 (line 7)\n"
        "  - training.total_epoch: Unrecognized key (line 8; did you mean 'total_epochs'?)\n"
        "  - training.rollout_batch_size: must be an integer, got 1.5 (line 9)\n"
        "  - sampling.lr: Unrecognized key; `lr` belongs in [training] (line 11)\n"
        "  - sampling.rollout_temperature: must be at least 0, got -1 (line 12)\n"
        "  - sampling.rollout_top_p: must be at most 1.0, got 1.1 (line 13)\n"
        "  - checkpoints.eval_interval: must be at least 1, got 0 (line 15)\n"
        "  - evaluation: Unrecognized section; it belongs to configs in configs/eval/ (line 16)\n"
        "  - secrets.required: Missing 'required' in [secrets] section (line 18)"
    )


def read(tmp_path: Path, content: str | bytes) -> dict[str, str]:
    file = tmp_path / "keys.env"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_secrets_file(str(file))


@pytest.mark.parametrize(
    "line, value",
    [
        ("KEY=value", "value"),
        ("  KEY = value  ", "value"),
        ("export KEY=value", "value"),
        ("KEY='a b'", "a b"),
        ('KEY="a b"', "a b"),
        ('KEY="it\'s"', "it's"),
        ("KEY=''", ""),
        ("KEY=", ""),
        ("KEY=a=b==", "a=b=="),
        ("KEY=a # b", "a # b"),
        ("KEY=a\"b'", "a\"b'"),
        ("KEY=é$HOME", "é$HOME"),
        ("KEY=value\r", "value"),
        ("\ufeff# keys\n\nKEY=1\n   # KEY=2\nKEY=3", "3"),
    ],
)
def test_secrets_file_lines(tmp_path: Path, line: str, value: str) -> None:
    assert read(tmp_path, line + "\n") == {"KEY": value}


@pytest.mark.parametrize(
    "line",
    [
        "hunter2",
        "=hunter2",
        "1KEY=hunter2",
        "A KEY=hunter2",
        "KEY='hunter2",
        "KEY=\"hunter2'",
        "KEY='",
        "K\0=hunter2",
    ],
)
def test_invalid_secrets_file_line(tmp_path: Path, line: str) -> None:
    with pytest.raises(OsmosisError) as caught:
        read(tmp_path, f"# first\nGOOD=1\n{line}\n")
    assert caught.value.message.startswith("Line 3 of ")
    assert caught.value.details == {"line": 3}
    assert "hunter2" not in str(caught.value.message)


def test_secrets_from_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"KEY=value\nbad line\n")))
    with pytest.raises(OsmosisError, match="Line 2 of standard input"):
        read_secrets_file("-")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"KEY=value\n")))
    assert read_secrets_file("-") == {"KEY": "value"}


@pytest.mark.parametrize(
    "name, problem",
    [("none.env", "Secrets file not found"), (".", "Cannot read secrets file"), ("keys.env", "not UTF-8")],
)
def test_unreadable_secrets_file(tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / "keys.env").write_bytes(b"KEY=\xff")
    with pytest.raises(OsmosisError, match=problem):
        read_secrets_file(str(tmp_path / name))


def test_config_suffix(workspace: WorkspaceDirectory) -> None:
    path = write_config(workspace, MINIMAL_EVAL, name="a.yaml")
    with pytest.raises(OsmosisError, match=r"\.toml file in configs/eval/"):
        load_eval_config(path, workspace)
