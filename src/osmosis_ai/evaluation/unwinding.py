"""After a cancellation, wait until the rollout's server has let go of what it was doing.

A backend may hold containers or machines for a rollout; ending its process at once would leave
them behind. A backend that knows nothing of a rollout has nothing to wait for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    import aiohttp

SETTLE_LIMIT_S = 120.0
_POLL_S = 0.5
_STILL_BUSY = frozenset({"queued", "running", "grading"})


async def wait_until_unwound(
    base_url: str, rollout_ids: Collection[str], *, limit_s: float = SETTLE_LIMIT_S
) -> frozenset[str]:
    """Wait until no rollout of ``rollout_ids`` is under way; return those that still are after ``limit_s``."""
    from osmosis_ai.llm.transport import open_session

    busy = set(rollout_ids)
    deadline = time.monotonic() + limit_s
    async with open_session(timeout_s=5.0) as http:
        while True:
            for rollout_id in list(busy):
                if not await _is_busy(http, base_url, rollout_id):
                    busy.discard(rollout_id)
            if not busy or time.monotonic() >= deadline:
                return frozenset(busy)
            await asyncio.sleep(_POLL_S)


async def _is_busy(http: aiohttp.ClientSession, base_url: str, rollout_id: str) -> bool:
    """Tell whether a rollout is under way; one whose status cannot be read may well be."""
    import aiohttp

    try:
        async with http.get(f"{base_url}/rollout/{quote(rollout_id, safe='')}/status") as reply:
            if reply.status != 200:
                return reply.status >= 500
            body = await reply.json(content_type=None)
    except aiohttp.ClientConnectorError:
        return False  # nobody is there any more
    except (aiohttp.ClientError, asyncio.TimeoutError, ValueError):
        return True
    return isinstance(body, dict) and body.get("status") in _STILL_BUSY
