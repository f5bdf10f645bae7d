from __future__ import annotations

from pathlib import Path

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.services.rollouts import initialize_rollout
from tests.workspace.builders import make_repository, make_workspace


def test_the_resource_names_what_was_written_relative_to_the_workspace(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path)
    assert initialize_rollout("capitals", start=workspace.data_dir).resource() == {
        "name": "capitals",
        "workspace_directory": str(workspace.root),
        "rollout_dir": "rollouts/capitals",
        "configs": {"eval": "configs/eval/capitals.toml", "training": "configs/training/capitals.toml"},
        "files": [
            "configs/eval/capitals.toml",
            "configs/training/capitals.toml",
            "rollouts/capitals/README.md",
            "rollouts/capitals/main.py",
            "rollouts/capitals/pyproject.toml",
        ],
        "gitignore": {"added": [".env", ".osmosis/"]},
    }


def test_an_incomplete_workspace_is_mended_first(tmp_path: Path) -> None:
    with pytest.raises(OsmosisError, match=r"osmosis doctor --fix"):
        initialize_rollout("capitals", start=make_repository(tmp_path))
