"""An upload continues after an early kill; `make nightly` kills it at eight moments."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.upload_kills import MOMENTS, upload_bench

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    "moment",
    [each if each == "announced" else pytest.param(each, marks=pytest.mark.nightly) for each in MOMENTS],
)
def test_killed_upload_continues(moment: str, tmp_path: Path) -> None:
    with upload_bench(tmp_path) as bench:
        bench.check_kill(moment)
