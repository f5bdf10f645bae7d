from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from osmosis_ai.platform.gitsync.mirror import MirrorStore
from tests.platform.gitsync.repositories import Repository


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "work")


@pytest.fixture
def mirrors(tmp_path: Path) -> Iterator[MirrorStore]:
    store = MirrorStore(tmp_path / "home" / "git")
    yield store
    store.close()
