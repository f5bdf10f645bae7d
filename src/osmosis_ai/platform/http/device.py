"""Logging in from a terminal: the two calls of the device flow (RFC 8628)."""

from __future__ import annotations

from osmosis_ai.platform.http.routing import api_router

router = api_router("/api/cli/device")
