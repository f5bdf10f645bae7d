"""Every test closes the judges that it asked, and may retry without waiting."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import stamina


@pytest.fixture
def without_waiting() -> Iterator[None]:
    with stamina.set_testing(True, attempts=6, cap=True):
        yield


@pytest.fixture(autouse=True)
def _no_judging_thread_is_left() -> Iterator[None]:
    yield
    if module := sys.modules.get("osmosis_ai.rubric.judge"):
        module.close()
