"""Runs with a package whose sections have a key more, and looks for it wherever a config goes.

python tests/config/key_added.py FOLDER    FOLDER is empty and becomes a workspace
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from osmosis_ai.api.wire.runs import EvalRunSubmit, TrainingRunSubmit
from osmosis_ai.config.issues import InvalidConfigError
from osmosis_ai.config.reference import commented_keys, key_table, keys_by_section
from osmosis_ai.config.release_checks import read_settings
from osmosis_ai.evaluation.spec import EvalRunSpec
from osmosis_ai.platform.runs.submit import eval_request, training_request
from osmosis_ai.platform.runs.submit.errors import SubmitRejectedError
from osmosis_ai.training.runs.run_directory import locked_settings
from osmosis_ai.workspace.config_files import load_eval_config, load_training_config
from osmosis_ai.workspace.layout import WorkspaceDirectory

EXPERIMENT = """\
[experiment]
rollout = "multiply"
entrypoint = "main.py"
model_path = "osmosis/tiny"
dataset = "multiply"
"""
SECTIONS = {"eval": ("evaluation",), "training": ("training", "sampling", "checkpoints", "advanced")}


def config(workspace: WorkspaceDirectory, kind: str, key: str, value: str) -> Path:
    """Write a config that has a key in each of its sections."""
    sections = "".join(
        f"[{section}]\n{key.format(section=section)} = {value}\n" for section in SECTIONS[kind]
    )
    path = workspace.root / "configs" / kind / "a.toml"
    path.write_text(EXPERIMENT + sections + "[secrets]\nrequired = []\n")
    return path


def load(workspace: WorkspaceDirectory, kind: str, path: Path):
    if kind == "eval":
        return load_eval_config(path, workspace)
    return load_training_config(path, workspace)


def issues_of(
    workspace: WorkspaceDirectory, kind: str, path: Path
) -> list[tuple[str, str, int | None, str | None]]:
    try:
        loaded = load(workspace, kind, path)
    except InvalidConfigError as error:
        found = error.issues
    else:
        found = loaded.doubts
    return [(issue.key, issue.message, issue.line, issue.suggestion) for issue in found]


def main() -> None:
    workspace = WorkspaceDirectory(Path(sys.argv[1]))
    subprocess.run(["git", "init", "-q", str(workspace.root)], check=True)
    for folder in ("rollouts/multiply", "configs/eval", "configs/training", "data"):
        (workspace.root / folder).mkdir(parents=True)
    (workspace.rollouts_dir / "multiply" / "main.py").write_text("")
    training_request._require_trainer = lambda: None  # which needs torch, and is not what is looked at here
    for kind, sections in SECTIONS.items():
        # In a file: its type is checked with its line, a misspelling is told.
        lines = {section: 7 + 2 * place for place, section in enumerate(sections)}
        assert issues_of(workspace, kind, config(workspace, kind, "added_to_{section}", '"5"')) == [
            (f"{section}.added_to_{section}", 'must be an integer, got "5"', line, None)
            for section, line in lines.items()
        ]
        assert issues_of(workspace, kind, config(workspace, kind, "aded_to_{section}", "5")) == [
            (f"{section}.aded_to_{section}", "Unrecognized key", line, f"added_to_{section}")
            for section, line in lines.items()
        ]
        loaded = load(workspace, kind, config(workspace, kind, "added_to_{section}", "5"))
        # On the wire: it is sent as it is written.
        submit = EvalRunSubmit if kind == "eval" else TrainingRunSubmit
        body = submit.model_validate(loaded.payload()).to_wire()
        for section in sections:
            assert body[f"{section}_config"] == {f"added_to_{section}": 5}
        check_platform(kind, body, sections)
    check_evaluation(load(workspace, "eval", config(workspace, "eval", "added_to_{section}", "5")))
    check_trainer(load(workspace, "training", config(workspace, "training", "added_to_{section}", "5")))
    for section in (*SECTIONS["eval"], *SECTIONS["training"]):
        assert any(f"`added_to_{section}` | integer ≥ 1 | `3`" in line for line in key_table(section))
        assert f"# added_to_{section} = 3 " in commented_keys(section)
        assert section == "advanced" or f"`added_to_{section}`" in keys_by_section()


def check_platform(kind: str, body: dict, sections: tuple[str, ...]) -> None:
    """The platform accepts it, checks it, keeps it, and shows it with its default where it is left out."""
    parse = eval_request.parse_eval_request if kind == "eval" else training_request.parse_training_request
    request = parse(body, lambda _: False)
    for section in sections:
        assert request.written[f"{section}_config"] == {f"added_to_{section}": 5}
        with pytest.raises(SubmitRejectedError) as caught:
            parse({**body, f"{section}_config": {f"added_to_{section}": 0}}, lambda _: False)
        assert [issue.key for issue in caught.value.issues] == [f"{section}.added_to_{section}"]
    if kind == "eval":
        assert eval_request.effective_eval_settings(request.written)["added_to_evaluation"] == 5
        assert eval_request.effective_eval_settings({})["added_to_evaluation"] == 3
    else:
        effective = training_request.effective_training_config(request)
        assert [effective[section][f"added_to_{section}"] for section in sections] == [5] * len(sections)


def check_evaluation(loaded) -> None:
    """The engine has it."""
    assert EvalRunSpec(loaded.experiment, loaded.evaluation).evaluation.added_to_evaluation == 5


def check_trainer(loaded) -> None:
    """The trainer has it, and a resumed run with another value is another run."""
    settings, default = loaded.settings, read_settings({})
    for section in SECTIONS["training"]:
        key = f"added_to_{section}"
        assert (getattr(settings, key), getattr(default, key)) == (5, 3)
        assert locked_settings(settings)[key] == 5


if __name__ == "__main__":
    main()
