"""Environment secrets: set, list and delete the variables that a run's process gets. Values are write-only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal

from osmosis_ai.api.capabilities import Capability
from osmosis_ai.api.client import PlatformClient
from osmosis_ai.api.connections import REPEATING
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.models.secrets import (
    Secret,
    SecretDeleteRequest,
    SecretHandoutList,
    SecretList,
    SecretSetRequest,
)
from osmosis_ai.api.paging import iterate_pages
from osmosis_ai.config.checks import LOGIN_TOKEN, LONGEST_SECRET_NAME, is_secret_name
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.services.capabilities import require_offered
from osmosis_ai.services.listing import fetch_listing

Scope = Literal["personal", "workspace"]
_SECRETS = "/api/cli/environment-secrets"
_ON_THE_WIRE: dict[Scope, str] = {"personal": "user", "workspace": "workspace"}


def parse_scope(text: str) -> Scope:
    if text == "personal":
        return "personal"
    if text == "workspace":
        return "workspace"
    raise OsmosisError(f"Scope is invalid: '{text}'. Use 'personal' or 'workspace'.")


def check_name(name: str) -> str:
    """Return ``name`` if it is a valid secret name."""
    if not is_secret_name(name):
        # The error does not repeat the name: the user may have passed the value in its place.
        raise OsmosisError(
            "Secret name is invalid. Use capital letters, digits and '_', starting with a letter, at most "
            f"{LONGEST_SECRET_NAME} characters.",
            hint="for example OPENAI_API_KEY",
        )
    return name


def check_new_name(name: str) -> str:
    """Return ``name`` if a secret may be stored under it."""
    if check_name(name) == LOGIN_TOKEN:
        raise OsmosisError(
            f"Secret name is reserved: {name}.", hint="store the token under another name, as in CI_TOKEN"
        )
    return name


def check_value(value: str, *, source: str) -> str:
    """Return ``value``, unchanged, if it can be stored. An error names its ``source`` and never repeats it."""
    if not value:
        raise OsmosisError(f"{source} is empty.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise OsmosisError(f"{source} is not valid UTF-8 text.") from None
    return value


def value_from_environment(variable: str) -> str:
    """Return the value of an environment variable, to be stored as a secret."""
    value = os.environ.get(variable)
    if value is None:
        raise OsmosisError(f"The environment variable {variable} is not set.", hint=f"export {variable}=…")
    return check_value(value, source=f"The environment variable {variable}")


def list_secrets(client: PlatformClient, scope: Scope | None, *, limit: int, everything: bool) -> SecretList:
    """Return the secrets of one scope, or of both if it is None."""
    pages = client.pages(_SECRETS, SecretList, scope="all" if scope is None else _ON_THE_WIRE[scope])
    return fetch_listing(pages, limit=limit, everything=everything)


def iterate_secrets(client: PlatformClient, wire_scope: str) -> Iterator[Secret]:
    """Yield the secrets of a scope of the wire; with ``all``, a name may occur twice."""
    for page in iterate_pages(client.pages(_SECRETS, SecretList, scope=wire_scope)):
        yield from page.items


def list_handouts(client: PlatformClient, *, limit: int, everything: bool) -> SecretHandoutList:
    """Return the log of secrets that workers received, newest first."""
    require_offered(client, Capability.SECRET_AUDIT)
    pages = client.pages(f"{_SECRETS}/audit", SecretHandoutList)
    return fetch_listing(pages, limit=limit, everything=everything)


def set_secret(client: PlatformClient, name: str, value: str, scope: Scope) -> Secret:
    """Create or replace a secret; no error contains the value."""
    client.hide([value])
    request = SecretSetRequest(name=check_new_name(name), value=value, scope=_ON_THE_WIRE[scope])
    return client.post(_SECRETS, request, model=Secret, retry=REPEATING)


def require_secret(client: PlatformClient, name: str, scope: Scope) -> None:
    """Check that a secret exists before the user is asked to confirm its deletion.

    If the platform fails to list secrets, the check passes. The error says if the secret exists in the other scope.
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
    try:
        if _exists(client, name, other):
            command = f"osmosis secret delete {name} --scope {other}"
            message += f" It exists in {other} scope. Run: {command}"
    except PlatformError:
        pass
    raise NotFoundError(message, details={"name": name, "scope": scope}, hint="osmosis secret list")


def delete_secret(client: PlatformClient, name: str, scope: Scope) -> None:
    client.delete(_SECRETS, SecretDeleteRequest(name=check_name(name), scope=_ON_THE_WIRE[scope]))


def _exists(client: PlatformClient, name: str, scope: Scope) -> bool:
    return any(secret.name == name for secret in iterate_secrets(client, _ON_THE_WIRE[scope]))
