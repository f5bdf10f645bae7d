"""An upload continues after an early kill; `make nightly` kills it at eight moments."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.upload_kills import upload_bench

pytestmark = pytest.mark.e2e


def test_killed_upload_continues(tmp_path: Path) -> None:
    with upload_bench(tmp_path) as bench:
        bench.check_kill("announced")
