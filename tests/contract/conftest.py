from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import respx

from osmosis_ai.api.client import PlatformClient

BASE = "https://platform.osmosis.ai"


@pytest.fixture
def client() -> Iterator[PlatformClient]:
    with PlatformClient(BASE, "osm_u_7Qd", "fern/maze") as client:
        yield client


class Wire:
    """Answers one route with a text of JSON, and keeps what was sent."""

    def __init__(self, router: respx.MockRouter) -> None:
        self._router = router
        self._route: respx.Route | None = None

    def answers(self, method: str, target: str, reply: str = "{}", status: int = 200) -> None:
        """Expect exactly ``METHOD /path?query``, and answer it with ``reply`` as it stands."""
        url = httpx.URL(BASE + target)
        self._route = self._router.route(
            method=method, url__regex=f"^{BASE}{re.escape(url.raw_path.decode())}$"
        ).respond(status, content=reply, headers={"Content-Type": "application/json"})

    @property
    def sent(self) -> Any:
        """The JSON that the request carried; None for no body."""
        assert self._route is not None
        content = self._route.calls.last.request.content
        return json.loads(content) if content else None

    @property
    def headers(self) -> httpx.Headers:
        """The headers that the request carried."""
        assert self._route is not None
        return self._route.calls.last.request.headers


@pytest.fixture
def wire() -> Iterator[Wire]:
    with respx.mock() as router:
        yield Wire(router)


def nulled(full: str, *, keep: tuple[str, ...] = ("id",)) -> str:
    """Return ``full`` with every value null, but the ``keep`` ones and what they are in."""

    def empty(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: item if key in keep else empty(item) if _holds(item, keep) else None
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [empty(item) for item in value]
        return None

    return json.dumps(empty(json.loads(full)))


def _holds(value: Any, keep: tuple[str, ...]) -> bool:
    if isinstance(value, dict):
        return any(key in keep or _holds(item, keep) for key, item in value.items())
    return isinstance(value, list) and any(_holds(item, keep) for item in value)
