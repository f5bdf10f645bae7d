from __future__ import annotations

from pathlib import Path

import pytest

from osmosis_ai.workspace.layout import WorkspaceDirectory
from tests.workspace.builders import make_workspace


@pytest.fixture
def workspace(tmp_path: Path) -> WorkspaceDirectory:
    return make_workspace(tmp_path / "ws")
