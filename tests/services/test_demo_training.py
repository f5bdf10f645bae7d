"""The trained demo's parts that need no platform: its configs, and how both evaluations are compared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.services.demo import CONFIG, prepare_scratch, walk
from osmosis_ai.services.demo.outcome import DemoEvaluation, paired_differences
from osmosis_ai.services.demo.scratch import TRAINING_CONFIG
from osmosis_ai.services.demo.session import CommandFailed, Session
from osmosis_ai.workspace.config_files import load_eval_config, load_training_config
from osmosis_ai.workspace.layout import WorkspaceDirectory


def outcome(directory: Path, rewards: Mapping[int, Sequence[float | None]]) -> DemoEvaluation:
    """An evaluation whose rows got these rewards, an attempt each; None was not scored."""
    directory.mkdir()
    lines = [
        {"row_index": row, "run_index": run, "status": "failed" if reward is None else "success"}
        | ({} if reward is None else {"reward": reward})
        for row, attempts in rewards.items()
        for run, reward in enumerate(attempts)
    ]
    (directory / "summary.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    metrics = {"estimates": {"pass_threshold": 1.0}}
    return DemoEvaluation(0, directory, metrics, None, None)


def test_the_difference_is_paired_by_row_and_what_was_not_scored_is_no_zero(tmp_path: Path) -> None:
    base = outcome(tmp_path / "a", {0: [0.0, 0.5], 1: [0.0, 1.0], 2: [1.0, 1.0], 3: [None]})
    trained = outcome(tmp_path / "b", {0: [1.0, 1.0], 1: [1.0, 1.0], 2: [1.0, None], 4: [1.0]})
    pass_rate, reward = paired_differences(base, trained)
    assert pass_rate is not None and reward is not None
    # By row: 1, 1/2, 0. Three rows rule little out.
    assert (pass_rate.value, pass_rate.rows, pass_rate.method) == (pytest.approx(0.5), 3, "score")
    assert pass_rate.low is not None and pass_rate.high is not None and pass_rate.p is not None
    assert -1.0 < pass_rate.low < 0 < 0.8 < pass_rate.high <= 1.0
    assert pass_rate.p > 0.2
    assert reward.value == pytest.approx((0.75 + 0.5 + 0) / 3)


def test_the_seed_is_written_into_a_config_of_its_own_and_nothing_else_changes(tmp_path: Path) -> None:
    scratch = prepare_scratch(tmp_path / "d")
    workspace = WorkspaceDirectory(scratch.workspace)
    assert walk._config_with_seed(scratch, 0) == TRAINING_CONFIG
    name = walk._config_with_seed(scratch, 7)
    sample = load_training_config(Path(TRAINING_CONFIG), workspace)
    seeded = load_training_config(Path(name), workspace)
    advanced = {**sample.advanced, "seed": 7}
    assert (seeded.advanced, seeded.experiment) == (advanced, sample.experiment)
    assert seeded.payload() == {**sample.payload(), "advanced_config": advanced}


def test_the_trained_model_is_evaluated_by_the_config_of_the_base(tmp_path: Path) -> None:
    scratch = prepare_scratch(tmp_path / "d")
    workspace = WorkspaceDirectory(scratch.workspace)
    name = walk._config_for(scratch, "osmosis/tiny:calm-fern-1-step-40")
    base, trained = (load_eval_config(Path(path), workspace) for path in (CONFIG, name))
    assert trained.experiment.model_path == "osmosis/tiny:calm-fern-1-step-40"
    assert trained.evaluation == base.evaluation
    assert trained.experiment.dataset == base.experiment.dataset != "multiply_train"


def test_a_sample_config_that_was_changed_is_not_guessed_at(tmp_path: Path) -> None:
    scratch = prepare_scratch(tmp_path / "d")
    config = scratch.workspace / TRAINING_CONFIG
    config.write_text(config.read_text().replace("seed = 0", ""))
    with pytest.raises(OsmosisError, match="seed"):
        walk._config_with_seed(scratch, 3)


def test_a_training_run_that_fails_ends_the_demo_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = prepare_scratch(tmp_path / "d")
    session = Session(scratch, "json", lambda _: None, {})
    run = {"status": "failed", "error": "The disk is full."}
    monkeypatch.setattr(Session, "watch", lambda *_: (1, None))
    answers = {
        "list": {"items": [{"name": "calm-fern-1"}]},
        "info": {"data": {"training_run": run, "checkpoints": [], "metrics": None}},
    }
    monkeypatch.setattr(Session, "ask", lambda _, __, verb, *___: answers[verb])
    with pytest.raises(CommandFailed, match=r"calm-fern-1 ended as failed: The disk is full\."):
        walk._train(session, 0)
