"""The end of tokens, asked for and never insisted on: what the platform does not do is told, not raised."""

from __future__ import annotations

from osmosis_ai.api.credentials import Credentials, CredentialStore
from osmosis_ai.api.resources.auth import REVOKE_TIMEOUT_S
from osmosis_ai.errors import OsmosisError
from osmosis_ai.services.context import Warn, connect


def revoke(credentials: Credentials) -> str | None:
    """Revoke a token and return why that was not possible; one that is no longer valid is as good."""
    try:
        with connect(credentials, timeout_s=REVOKE_TIMEOUT_S) as client:
            token_id = credentials.token_id or client.verify().token_id
            if token_id is None:
                return f"{credentials.platform_url} does not say its id."
            client.auth.revoke(token_id)
    except OsmosisError as error:
        return None if error.code == "AUTH_REQUIRED" else error.message
    return None


def pass_on_warnings(store: CredentialStore, warn: Warn) -> None:
    """Tell what ``store`` has collected, once."""
    for warning in store.warnings:
        warn(warning.message, warning.code)
    store.warnings.clear()
