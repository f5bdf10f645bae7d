from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.errors import NotFoundError, OsmosisError, WorkspaceRequiredError
from osmosis_ai.evaluation.budget import Budget
from osmosis_ai.evaluation.policy import open_policy
from osmosis_ai.services.eval_runs.run import EvalRunRequest, PreparedEvalRun, prepare_eval_run
from osmosis_ai.workspace.layout import WorkspaceDirectory
from tests.evaluation.rollouts import write_rows
from tests.workspace.builders import MINIMAL_EVAL, git, make_workspace

CONFIG = Path("configs/eval/multiply.toml")


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkspaceDirectory:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE"):
        monkeypatch.delenv(name, raising=False)
    workspace = make_workspace(tmp_path / "workspace")
    (workspace.root / CONFIG).write_text(MINIMAL_EVAL)
    write_rows(workspace.data_dir / "multiply.jsonl", ["1 * 1", "2 * 2", "3 * 3"])
    return workspace


def prepare(workspace: WorkspaceDirectory, **changed: Any) -> PreparedEvalRun:
    request = EvalRunRequest(**{"config": CONFIG, **changed})
    return prepare_eval_run(request, start=workspace.root)


def configure(workspace: WorkspaceDirectory, text: str) -> None:
    (workspace.root / CONFIG).write_text(text)


def test_neither_login_nor_origin_nor_commit_is_needed(workspace: WorkspaceDirectory) -> None:
    prepared = prepare(workspace)
    assert prepared.origin is None
    assert prepared.dataset.source == "workspace"
    assert prepared.dataset.path == workspace.data_dir / "multiply.jsonl"
    assert len(prepared.selection) == 3
    assert prepared.output_root == workspace.evals_dir
    assert not workspace.state_dir.exists()


def test_outside_a_git_work_tree_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceRequiredError):
        prepare_eval_run(EvalRunRequest(config=CONFIG), start=tmp_path)


def test_previews_are_kept_unless_the_command_the_decide_file_or_the_config_says_no(
    workspace: WorkspaceDirectory,
) -> None:
    assert prepare(workspace).previews
    assert not prepare(workspace, previews=False).previews
    decided = workspace.root / CONFIG.with_name("multiply.decide.toml")
    decided.write_text("[decide]\npreviews = false\n")
    assert not prepare(workspace).previews
    decided.unlink()
    configure(workspace, MINIMAL_EVAL + "\n[advanced]\npreviews = false\n")
    prepared = prepare(workspace)
    assert (prepared.previews, prepared.notes) == (False, ())


def test_a_dataset_that_is_nowhere_is_named_with_what_would_mend_it(workspace: WorkspaceDirectory) -> None:
    (workspace.data_dir / "multiply.jsonl").unlink()
    with pytest.raises(NotFoundError, match=r"`data/multiply\.jsonl`") as missing:
        prepare(workspace)
    assert "--dataset-file" in (missing.value.hint or "")


def test_an_explicit_file_wins_over_the_one_in_data(workspace: WorkspaceDirectory, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "mine.jsonl", ["5 * 5"])
    prepared = prepare(workspace, dataset_file=rows)
    assert (prepared.dataset.source, len(prepared.selection)) == ("explicit", 1)
    with pytest.raises(NotFoundError, match="no dataset file"):
        prepare(workspace, dataset_file=tmp_path / "none.jsonl")


def test_rows_override_the_limit_of_the_config(workspace: WorkspaceDirectory) -> None:
    configure(workspace, MINIMAL_EVAL.replace("[secrets]", "[evaluation]\nlimit = 1\n\n[secrets]"))
    assert prepare(workspace).selection.describe() == "0"
    assert prepare(workspace, rows="1-2").selection.describe() == "1-2"
    with pytest.raises(OsmosisError, match="out of range"):
        prepare(workspace, rows="3")


def test_a_run_remembers_the_options_that_continue_it(
    workspace: WorkspaceDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prepare(workspace).provenance["options"] == []
    monkeypatch.chdir(workspace.root / "data")
    given = prepare(
        workspace, rows="0-1", dataset_file=Path("multiply.jsonl"), seed=3, servers=2, previews=False
    )
    said = ["--rows", "0-1", "--dataset-file", "data/multiply.jsonl", "--seed", "3", "--servers", "2"]
    assert given.provenance["options"] == [*said, "--no-previews"]
    sandboxed = EvalRunRequest(CONFIG, isolate=True, network="none", output=Path("runs"), max_in_flight=4)
    assert sandboxed.options() == [
        *("--output", "runs", "--max-in-flight", "4", "--network", "none"),
        "--isolate",
    ]


def test_a_threshold_of_zero_is_honoured(workspace: WorkspaceDirectory) -> None:
    configure(workspace, MINIMAL_EVAL.replace("[secrets]", "[evaluation]\npass_threshold = 0.0\n\n[secrets]"))
    assert prepare(workspace).spec.evaluation.pass_threshold == 0.0


@pytest.mark.parametrize(
    ("model_path", "message"),
    [
        ("opnai/gpt-5-mini", "did you mean `openai/gpt-5-mini`"),
        ("osmosis/huge", "there is no built-in model `osmosis/huge`; built in: `osmosis/tiny`"),
    ],
)
def test_a_model_name_that_cannot_be_right_is_refused_with_a_suggestion(
    workspace: WorkspaceDirectory, model_path: str, message: str
) -> None:
    configure(workspace, MINIMAL_EVAL.replace("openai/gpt-5-mini", model_path))
    with pytest.raises(OsmosisError, match=message):
        prepare(workspace)


def test_a_missing_key_is_noticed_unless_it_is_a_secret_still_to_be_given(
    workspace: WorkspaceDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(OsmosisError, match="`OPENAI_API_KEY` is not set"):
        prepare(workspace)
    prepare(workspace, secret_values={"OPENAI_API_KEY": "sk-file"})
    configure(workspace, MINIMAL_EVAL.replace("required = []", 'required = ["OPENAI_API_KEY"]'))
    prepare(workspace)


def test_a_cost_limit_needs_a_known_price(workspace: WorkspaceDirectory) -> None:
    budget = Budget(max_cost_usd=1.0)
    prepare(workspace, budget=budget)
    configure(workspace, MINIMAL_EVAL.replace("gpt-5-mini", "no-such-model-9"))
    prepare(workspace)
    with pytest.raises(OsmosisError, match="needs the price of `openai/no-such-model-9`"):
        prepare(workspace, budget=budget)


def test_a_model_of_ours_costs_nothing_and_needs_no_key(
    workspace: WorkspaceDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    configure(workspace, MINIMAL_EVAL.replace("openai/gpt-5-mini", "osmosis/tiny"))
    prepared = prepare(workspace, budget=Budget(max_cost_usd=1.0))
    assert prepared.served


def test_pins_that_differ_from_the_checkout_and_advanced_settings_are_said(
    workspace: WorkspaceDirectory,
) -> None:
    git(workspace.root, "add", ".")
    git(workspace.root, "commit", "--quiet", "-m", "first")
    pinned = MINIMAL_EVAL.replace("[secrets]", 'commit_sha = "0123456789"\n\n[advanced]\nx = 1\n\n[secrets]')
    configure(workspace, pinned)
    prepared = prepare(workspace)
    assert any("pins commit 0123456789" in note for note in prepared.notes)
    assert any("[advanced]" in note for note in prepared.notes)
    assert prepared.provenance["advanced"] == {"x": 1}
    assert prepared.provenance["git_head"] == git(workspace.root, "rev-parse", "HEAD")


def test_an_origin_is_shown_without_its_password(workspace: WorkspaceDirectory) -> None:
    git(workspace.root, "remote", "add", "origin", "https://me:secret@example.org/a/b.git")
    assert prepare(workspace).origin == "https://example.org/a/b.git"


async def test_litellm_finds_the_configs_variables_only_while_the_model_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AWS_REGION_NAME", raising=False)
    env = {**os.environ, "AWS_REGION_NAME": "eu-west-1"}
    async with open_policy("bedrock/some-model", env, lambda _: None) as endpoint:
        assert endpoint.transport == "litellm"
        assert os.environ["AWS_REGION_NAME"] == "eu-west-1"
    assert "AWS_REGION_NAME" not in os.environ


def test_slices_are_those_asked_for_and_those_of_decide_toml_and_a_typo_is_found_before_the_run(
    workspace: WorkspaceDirectory,
) -> None:
    (workspace.root / "configs/eval/multiply.decide.toml").write_text('[decide]\nslices = ["ground_truth"]\n')
    assert prepare(workspace, slices=("user_prompt", "ground_truth")).slices == (
        "user_prompt",
        "ground_truth",
    )
    with pytest.raises(OsmosisError, match="has no column 'ground_thruth'") as refused:
        prepare(workspace, slices=("ground_thruth",))
    assert refused.value.hint == "did you mean 'ground_truth'?"
