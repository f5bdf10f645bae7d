"""A fixture with a directory of runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.viewer.local_place import LocalPlace


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalPlace]:
    place = LocalPlace(tmp_path / "place")
    yield place
    place.source.close()
