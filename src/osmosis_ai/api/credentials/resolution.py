"""Choose a request's token: the environment's, otherwise the saved one, and never one of another platform."""

from __future__ import annotations

import os
from collections.abc import Mapping

from osmosis_ai.api.active_platform import ActivePlatform, active_platform
from osmosis_ai.api.credentials.login import Credentials
from osmosis_ai.api.credentials.store import CredentialStore
from osmosis_ai.api.platform_url import (
    DEFAULT_PLATFORM_URL,
    PLATFORM_URL_ENV,
    TOKEN_ENV,
    TOKEN_PLATFORM_ENV,
    normalize_platform_url,
)
from osmosis_ai.errors import OsmosisError


def environment_credentials(env: Mapping[str, str] | None = None) -> Credentials | None:
    """Return the environment's token for the active platform, or None."""
    variables = os.environ if env is None else env
    token = variables.get(TOKEN_ENV, "").strip()
    if not token:
        return None
    platform = active_platform(variables)
    url = platform.url
    bound = variables.get(TOKEN_PLATFORM_ENV, "").strip()
    if not bound:
        if url != DEFAULT_PLATFORM_URL:
            raise OsmosisError(
                f"{TOKEN_PLATFORM_ENV} is not set (required by {TOKEN_ENV} for {url}).",
                code="ENV_TOKEN_PLATFORM_REQUIRED",
                details={"platform_url": url},
                hint=f"export {TOKEN_PLATFORM_ENV}={url}",
            )
    elif normalize_platform_url(bound) != url:
        raise OsmosisError(
            f"{TOKEN_ENV} is for {normalize_platform_url(bound)}, and the active platform is {platform}.",
            code="ENV_TOKEN_PLATFORM_MISMATCH",
            details={"platform_url": url, "token_platform_url": normalize_platform_url(bound)},
            hint=f"set {PLATFORM_URL_ENV} and {TOKEN_PLATFORM_ENV} to the same platform, or unset {TOKEN_ENV}",
        )
    return Credentials(token=token, platform_url=url, source="environment")


def require_credentials(
    store: CredentialStore | None = None, *, env: Mapping[str, str] | None = None
) -> Credentials:
    """Return the token to use with the active platform."""
    from_environment = environment_credentials(env)
    if from_environment is not None:
        return from_environment
    store = store or CredentialStore(env=env)
    platform = active_platform(env)
    url = platform.url
    saved = store.load(url)
    if saved is None:
        raise _not_logged_in(store, platform)
    if saved.is_expired():
        raise OsmosisError(
            f"Your session on {url} has expired.",
            code="AUTH_REQUIRED",
            hint="log in again with `osmosis login`",
        )
    return saved


def _not_logged_in(store: CredentialStore, platform: ActivePlatform) -> OsmosisError:
    notes = [] if platform.url == DEFAULT_PLATFORM_URL else [f"the active platform is {platform}"]
    elsewhere = [login.platform_url for login in store.all()]
    if elsewhere:
        notes.append(
            f"logins are saved for {', '.join(elsewhere)} (choose one with `osmosis --platform URL login`)"
        )
    return OsmosisError(
        "Not logged in. Run 'osmosis auth login' first.",
        code="AUTH_REQUIRED",
        details={"platform_url": platform.url},
        hint="; ".join(notes) or None,
    )
