"""Retries happen without waiting, and no test sees the keys of the person who runs it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import stamina

from tests.standin_model import StandInModel


@pytest.fixture(autouse=True)
def _no_waiting_between_retries() -> Iterator[None]:
    with stamina.set_testing(True, attempts=6, cap=True):
        yield


@pytest.fixture
async def model() -> AsyncIterator[StandInModel]:
    async with StandInModel() as server:
        yield server
