"""Environment secrets: set, list and delete the variables that a run's process gets. Values are write-only."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

from osmosis_ai.api.capabilities import Capability
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.paging import iterate_pages
from osmosis_ai.config.checks import LONGEST_SECRET_NAME, is_secret_name
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.services.capabilities import require_offered
from osmosis_ai.services.listing import Listing, fetch_listing

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.models.secrets import Secret, SecretHandout, SecretHandoutList, SecretList
    from osmosis_ai.api.resources import SecretScope

Scope = Literal["personal", "workspace"]
_ON_THE_WIRE: dict[Scope, SecretScope] = {"personal": "user", "workspace": "workspace"}
_KEYS = ("id", "name", "scope", "created_at", "updated_at", "creator_name", "updater_name")
_HANDOUT_KEYS = ("id", "handed_at", "names", "run_id", "run_name", "attempt", "machine", "pool")


def parse_scope(text: str) -> Scope:
    """Parse a secret scope.

    Raises:
        OsmosisError: unknown scope.
    """
    if text == "personal":
        return "personal"
    if text == "workspace":
        return "workspace"
    raise OsmosisError(f"'{text}' is not a scope of secrets: use `personal` or `workspace`.")


def check_name(name: str) -> str:
    """Return ``name`` if it is a valid secret name.

    Raises:
        OsmosisError: the name is invalid.
    """
    if not is_secret_name(name):
        # The error does not repeat the name: the user may have passed the value in its place.
        raise OsmosisError(
            "A secret's name consists of capital letters, digits and `_`, beginning with a letter, "
            f"{LONGEST_SECRET_NAME} characters at most.",
            hint="it becomes an environment variable of the run, as in OPENAI_API_KEY",
        )
    return name


def check_value(value: str, *, source: str) -> str:
    """Return ``value`` if it can be stored as a secret. No error repeats it.

    Args:
        value: stored unchanged; nothing is trimmed.
        source: where the value came from, for the error.

    Raises:
        OsmosisError: the value is empty or not valid text.
    """
    if not value:
        raise OsmosisError(f"{source} is empty.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise OsmosisError(f"{source} is not valid UTF-8 text.") from None
    return value


def value_from_environment(variable: str) -> str:
    """Return the value of an environment variable, to be stored as a secret.

    Raises:
        OsmosisError: the variable is unset, empty, or not valid text.
    """
    value = os.environ.get(variable)
    if value is None:
        raise OsmosisError(
            f"The environment variable {variable} is not set.",
            hint=f"export {variable}=…",
        )
    return check_value(value, source=f"The environment variable {variable}")


def list_secrets(
    client: PlatformClient, scope: Scope | None = None, *, limit: int, everything: bool
) -> tuple[Listing[Secret], str | None]:
    """Return the secrets of one scope, or of both if it is None, and the address of the platform's page for them.

    Raises:
        OsmosisError: both ``limit`` and ``everything`` are set.
        PlatformError: the request failed.
    """
    pages: list[str] = []

    def fetch(size: int, offset: int) -> SecretList:
        wire_scope = "all" if scope is None else _ON_THE_WIRE[scope]
        page = client.secrets.list(scope=wire_scope, limit=size, offset=offset)
        pages.extend(url for url in [page.platform_url] if url)
        return page

    listing = fetch_listing(fetch, lambda page: page.environment_secrets, limit=limit, everything=everything)
    return listing, next(iter(pages), None)


def list_handouts(
    client: PlatformClient, *, limit: int, everything: bool
) -> tuple[Listing[SecretHandout], str | None]:
    """Return the log of secrets that workers received, newest first, and the address of its page.

    Raises:
        OsmosisError: both ``limit`` and ``everything`` are set.
        PlatformError: the platform keeps no such log, or the request failed.
    """
    pages: list[str] = []

    def fetch(size: int, offset: int) -> SecretHandoutList:
        page = client.secrets.handouts(limit=size, offset=offset)
        pages.extend(url for url in [page.platform_url] if url)
        return page

    require_offered(client, Capability.SECRET_AUDIT)
    listing = fetch_listing(fetch, lambda page: page.handouts, limit=limit, everything=everything)
    return listing, next(iter(pages), None)


def handout_item(handout: SecretHandout) -> dict[str, Any]:
    """Return a log entry as the JSON output shows it."""
    known = handout.model_dump(mode="json", include=set(_HANDOUT_KEYS))
    return {key: known[key] for key in _HANDOUT_KEYS}


def set_secret(client: PlatformClient, name: str, value: str, scope: Scope) -> Secret:
    """Create or replace a secret.

    Raises:
        PlatformError: the request failed; the error never contains the value.
    """
    return client.secrets.set(check_name(name), value, scope=_ON_THE_WIRE[scope])


def require_secret(client: PlatformClient, name: str, scope: Scope) -> None:
    """Check that a secret exists before the user is asked to confirm its deletion.

    If the platform fails to list secrets, the check passes.

    Raises:
        NotFoundError: the secret does not exist; the error says if it exists in the other scope.
        PlatformError: the request was refused.
    """
    try:
        if _exists(client, name, scope):
            return
    except PlatformError as error:
        if error.status is not None and error.status < 500:
            raise
        return
    other: Scope = "workspace" if scope == "personal" else "personal"
    message = f'Secret "{name}" was not found in {scope} scope.'
    if _exists_if_known(client, name, other):
        command = f"osmosis secret delete {name} --scope {other}"
        message += f" It exists in {other} scope. Run: {command}"
    raise NotFoundError(message, details={"name": name, "scope": scope}, hint="osmosis secret list")


def delete_secret(client: PlatformClient, name: str, scope: Scope) -> None:
    """Delete a secret.

    Raises:
        PlatformError: ``NOT_FOUND`` if it does not exist, or the request failed.
    """
    client.secrets.delete(check_name(name), scope=_ON_THE_WIRE[scope])


def secret_item(secret: Secret) -> dict[str, Any]:
    """Return a secret as the JSON output shows it, without its value."""
    known = secret.model_dump(mode="json", include=set(_KEYS))
    return {**{key: known[key] for key in _KEYS}, "scope": shown_scope(secret.scope)}


def shown_scope(wire_scope: str | None) -> str | None:
    """Return the user's word for a scope of the wire."""
    return "personal" if wire_scope == "user" else wire_scope


def _exists(client: PlatformClient, name: str, scope: Scope) -> bool:
    pages = iterate_pages(
        lambda size, offset: client.secrets.list(scope=_ON_THE_WIRE[scope], limit=size, offset=offset),
        lambda page: page.environment_secrets,
    )
    return any(secret.name == name for page in pages for secret in page.environment_secrets)


def _exists_if_known(client: PlatformClient, name: str, scope: Scope) -> bool:
    try:
        return _exists(client, name, scope)
    except PlatformError:
        return False
