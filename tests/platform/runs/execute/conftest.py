"""The cluster that a test plays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.platform.runs.execute.played_cluster import Cluster
from tests.platform.runs.pretended_workers import Bench


@pytest.fixture
def cluster(bench: Bench, tmp_path: Path) -> Cluster:
    return Cluster(bench, tmp_path)
