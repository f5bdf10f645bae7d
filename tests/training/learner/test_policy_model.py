"""Where a model is loaded from; nothing here asks the network."""

from __future__ import annotations

from pathlib import Path

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.inference.catalog import built_in_model
from tests.lazily import lazily

with lazily("torch", "huggingface_hub"):
    from huggingface_hub import constants

    from osmosis_ai.training.learner.policy_model import model_source

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The Hugging Face cache of this machine, empty; the network is switched off."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path


def test_the_built_in_model_and_folders_are_taken_as_they_are(tmp_path):
    assert model_source("osmosis/tiny") == str(built_in_model("osmosis/tiny").directory)
    assert model_source(str(tmp_path)) == str(tmp_path)


def test_a_name_is_looked_up_in_the_cache_of_this_machine(cache):
    snapshot = cache / "models--some--model" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (cache / "models--some--model" / "refs").mkdir()
    (cache / "models--some--model" / "refs" / "main").write_text(COMMIT)
    assert model_source("some/model") == str(snapshot)


def test_a_model_that_is_not_on_this_machine_is_fetched_only_when_the_user_says_so(cache):
    with pytest.raises(
        OsmosisError, match=r"`some/model` can not be loaded: it is not on this machine"
    ) as found:
        model_source("some/model")
    assert (
        found.value.hint == "fetch it with `hf download some/model`, or set [advanced].allow_download = true"
    )
    with pytest.raises(OsmosisError, match=r"`some/model` can not be (loaded: it could not be )?fetched"):
        model_source("some/model", allow_download=True)


def test_what_is_no_name_at_all_is_said_so(cache):
    with pytest.raises(
        OsmosisError, match="no built-in model, no folder and no name on the Hugging Face hub"
    ):
        model_source("/nowhere/at all")
