from __future__ import annotations

import pytest

from osmosis_ai.workspace.config_files import InvalidConfigError, load_training_config
from osmosis_ai.workspace.layout import WorkspaceDirectory
from tests.workspace.builders import MINIMAL_TRAINING, write_config


def test_secrets_may_be_left_out_and_all_sections_are_read(workspace: WorkspaceDirectory) -> None:
    text = MINIMAL_TRAINING + (
        "[training]\nlr = 1e-6\ntotal_epochs = 1\nn_samples_per_prompt = 8\nrollout_batch_size = 32\n"
        "max_prompt_length = 8192\nmax_response_length = 8192\nagent_workflow_timeout_s = 450\ngrader_timeout_s = 150\n"
        "[sampling]\nrollout_temperature = 1\nrollout_top_p = 0.95\n"
        "[checkpoints]\neval_interval = 10\ncheckpoint_save_freq = 20\n"
    )
    config = load_training_config(write_config(workspace, text, kind="training"), workspace)
    settings = config.settings
    assert (settings.lr, settings.n_samples_per_prompt) == (1e-6, 8)
    assert (settings.rollout_temperature, settings.rollout_top_p) == (1.0, 0.95)
    assert settings.eval_interval == 10
    payload = config.payload()
    assert list(payload) == ["experiment_config", "training_config", "sampling_config", "checkpoints_config"]
    assert payload["sampling_config"] == {"rollout_temperature": 1, "rollout_top_p": 0.95}


def test_the_least_payload_is_the_experiment(workspace: WorkspaceDirectory) -> None:
    config = load_training_config(write_config(workspace, MINIMAL_TRAINING, kind="training"), workspace)
    assert list(config.payload()) == ["experiment_config"]


def test_mistakes_in_every_section_are_reported_together(workspace: WorkspaceDirectory) -> None:
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
