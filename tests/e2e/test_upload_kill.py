"""An upload that is killed early goes on; `make nightly` kills it at eight moments."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.upload_kills import upload_bench

pytestmark = pytest.mark.e2e


def test_an_upload_killed_before_it_could_note_what_the_platform_said_goes_on(tmp_path: Path) -> None:
    with upload_bench(tmp_path) as bench:
        bench.check_kill("announced")
