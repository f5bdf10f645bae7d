from __future__ import annotations

import pytest

from osmosis_ai.api import client


@pytest.fixture(autouse=True)
def _nothing_announced_yet() -> None:
    client._announced.clear()
