"""A model that frameworks call, as a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from osmosis_ai.rollout.model_client import close_shared_connections
from tests.standin_model import StandInModel


@pytest.fixture
async def model() -> AsyncIterator[StandInModel]:
    import litellm

    kept = dict(litellm.in_memory_llm_clients_cache.cache_dict)
    async with StandInModel(api_key="K2") as served:
        yield served
        await close_shared_connections()
    # Every rollout has an address of its own: clients that are kept for each would never be used again.
    assert dict(litellm.in_memory_llm_clients_cache.cache_dict) == kept
