from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from .trainer import Trainer


@pytest.fixture
async def trainer() -> AsyncIterator[Trainer]:
    async with Trainer().serving() as running:
        yield running
