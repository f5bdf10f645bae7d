"""The secrets of a run: their names, and the source of each value.

Only values from the user's secrets file are sent, for one run. Stored values stay on the platform. Exported
variables of the shell are never sent.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.errors import InteractiveRequiredError, NotFoundError, OsmosisError
from osmosis_ai.workspace.secrets_file import value_problem

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient

SecretSource = Literal["run", "user_override", "user", "workspace", "unknown"]
_REFUSAL = "Secret(s) not found:"


def plan_run_secrets(
    client: PlatformClient,
    names: Sequence[str],
    supplied: Mapping[str, str],
    *,
    suppliable: Sequence[str] | None = None,
) -> tuple[dict[str, SecretSource], str | None]:
    """Return the source of each secret's value by name, and why sources are unknown."""
    if not names:
        return {}, None
    doubt = None
    stored: dict[str, set[str]] | None
    try:
        stored = _stored_scopes(client)
    except PlatformError as error:
        if error.status is not None and error.status < 500 and error.status != 429:
            raise
        stored = None
        doubt = f"the stored secrets could not be listed ({error.message}); the platform checks them."
    found: dict[str, SecretSource] = {}
    missing: list[str] = []
    for name in names:
        scopes = None if stored is None else stored.get(name, set())
        if supplied.get(name):
            found[name] = "run"
        elif scopes is None:
            found[name] = "unknown"
        elif scopes:
            own: SecretSource = "user" if "user" in scopes else "workspace"
            found[name] = "user_override" if len(scopes) > 1 else own
        else:
            missing.append(name)
    if missing:
        hint = "or supply values for this run alone with `--secrets-file FILE`"
        if stored_only := [name for name in missing if suppliable is not None and name not in suppliable]:
            hint = f"to supply values for this run alone, list {', '.join(stored_only)} in [secrets].required, too"
        raise InteractiveRequiredError(
            f"{'1 secret is' if len(missing) == 1 else f'{len(missing)} secrets are'} required by the config and not "
            "stored on the platform:\n"
            + "\n".join(f"  - {name}" for name in missing)
            + f"\n{_how_to_store(missing)}",
            details={"missing": missing, "flags": ["--secrets-file"]},
            hint=hint,
        )
    return found, doubt


def supplied_values(names: Sequence[str], values: Mapping[str, str]) -> dict[str, str]:
    """Return the supplied values whose names the config requires."""
    supplied = {name: value for name, value in values.items() if name in names and value}
    for name, value in supplied.items():
        problem = value_problem(value)
        if problem is not None:
            raise OsmosisError(f"The value of {name} in the secrets file {problem}.")
    return supplied


def unused_values(names: Sequence[str], values: Mapping[str, str]) -> str | None:
    """Return a warning about supplied values that the config does not use, or None."""
    unused = sorted(set(values) - set(names))
    if not unused:
        return None
    return f"the secrets file also has {', '.join(unused)}, which the config does not list; not sent."


def stand_ins(names: Iterable[str]) -> dict[str, str]:
    """Return placeholders for a preview, which needs only the names; values are sent only with a submit."""
    return dict.fromkeys(names, "given with the submit")


@contextmanager
def explaining_failures(look: str | None = None) -> Iterator[None]:
    """Add hints to the error of a failed submit: how to store missing secrets, and how to look for the run."""
    try:
        yield
    except PlatformError as error:
        if error.status is None and look is not None:
            unsure = f"the request may have succeeded: check with `{look}` before you repeat it"
            error.hint = f"{error.hint.rstrip('?')}; {unsure}" if error.hint else unsure
        if error.status != 404 or not error.message.startswith(_REFUSAL):
            raise
        listed = error.message.removeprefix(_REFUSAL).split("\n")[0].strip().rstrip(".")
        missing = [name.strip() for name in listed.split(",") if name.strip()]
        page = error.body.get("platform_url")
        raise NotFoundError(
            f"{error.message}\n{_how_to_store(missing)}",
            details={**error.details, "missing": missing},
            hint=f"or on the secrets page: {page}" if isinstance(page, str) else error.hint,
        ) from None


def _stored_scopes(client: PlatformClient) -> dict[str, set[str]]:
    from osmosis_ai.services.secrets import iterate_secrets

    scopes: dict[str, set[str]] = {}
    for secret in iterate_secrets(client, "all"):
        if secret.name and secret.scope in ("workspace", "user"):
            scopes.setdefault(secret.name, set()).add(secret.scope)
    return scopes


def _how_to_store(names: Sequence[str]) -> str:
    commands = [
        f"  osmosis secret set {name}" + (f" --env {name}" if os.environ.get(name) else "") for name in names
    ]
    return "\n".join([f"Store {'it' if len(names) == 1 else 'them'} once:", *commands])
