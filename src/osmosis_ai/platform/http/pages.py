"""The pages people open in a browser; they work without scripts."""

from __future__ import annotations

from osmosis_ai.platform.http.routing import api_router

router = api_router()
