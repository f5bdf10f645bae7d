"""One error hierarchy: a sentence for people, a code for machines, details for both.

Every error a user can meet is an :class:`OsmosisError`. The command line turns it into an
exit status and an envelope; the platform turns it into a reply. Nothing below those edges
prints or exits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

ErrorCode = Literal[
    "VALIDATION",
    "AUTH_REQUIRED",
    "NOT_FOUND",
    "CONFLICT",
    "UPGRADE_REQUIRED",
    "RATE_LIMITED",
    "PLATFORM_ERROR",
    "INTERNAL",
    "INTERACTIVE_REQUIRED",
    "WORKSPACE_REQUIRED",
    "NETWORK",
    "SUBSCRIPTION_REQUIRED",
    "BILLING_REQUIRED",
    "KEYRING_UNAVAILABLE",
    "CREDENTIALS_UNAVAILABLE",
    "CREDENTIALS_PARSE_FAILED",
    "CREDENTIALS_VERSION_CHANGED",
    "ENV_TOKEN_PLATFORM_REQUIRED",
    "ENV_TOKEN_PLATFORM_MISMATCH",
    "TOKEN_NOT_FOUND",
    "KEYRING_CLEANUP_FAILED",
    "TOKEN_REVOKE_FAILED",
]
ERROR_CODES: frozenset[str] = frozenset(get_args(ErrorCode))


class OsmosisError(Exception):
    """Something the user can act on.

    Args:
        message: what happened, where, and how to mend it.
        code: the machine-readable class of the error, one of :data:`ERROR_CODES`.
        details: JSON-encodable facts for programs; never a secret.
        hint: one extra line that names the command or the edit that mends it.

    Raises:
        ValueError: if ``code`` is not one of the known codes.
    """

    default_code: ErrorCode = "VALIDATION"
    is_infrastructure: bool = False
    """Whether nothing that the user wrote is at fault: the same again, a little later, may well succeed."""

    def __init__(
        self,
        message: str,
        *,
        code: ErrorCode | None = None,
        details: Mapping[str, Any] | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code: ErrorCode = code if code is not None else self.default_code
        if self.code not in ERROR_CODES:
            raise ValueError(f"unknown error code {self.code!r}")
        self.details: dict[str, Any] = dict(details or {})
        self.hint = hint

    @property
    def sentence(self) -> str:
        """The message as it stands alone: it begins with a capital letter."""
        return self.message[:1].upper() + self.message[1:]

    @property
    def with_hint(self) -> str:
        """The message, with the hint in brackets where there is one."""
        return f"{self.message} ({self.hint})" if self.hint else self.message


class NotFoundError(OsmosisError):
    """A named thing does not exist."""

    default_code = "NOT_FOUND"


class ConflictError(OsmosisError):
    """The request contradicts what is already there."""

    default_code = "CONFLICT"


class ResumeRefusedError(ConflictError):
    """What there is to resume belongs to other inputs."""


class WorkspaceRequiredError(OsmosisError):
    """The command needs a Git work tree laid out as an Osmosis workspace."""

    default_code = "WORKSPACE_REQUIRED"


class InteractiveRequiredError(OsmosisError):
    """The command would have to ask, and nobody is there to answer."""

    default_code = "INTERACTIVE_REQUIRED"


class NetworkError(OsmosisError):
    """A host could not be reached."""

    default_code = "NETWORK"


class MissingExtraError(OsmosisError):
    """An optional dependency is not installed."""

    def __init__(self, extra: str, module: str) -> None:
        super().__init__(
            f"this needs the `{extra}` extra, which is not installed (no module named '{module}').",
            details={"missing_module": module, "extra": extra},
            hint=f"install it with: {install_command(extra)}",
        )


def install_command(extra: str) -> str:
    """Return the pip command that adds ``extra`` to this very installation.

    The distribution's name on a public index belongs to another package, so the command
    points to where this installation came from (PEP 610 ``direct_url.json``).
    """
    from osmosis_ai.installation import installation_source

    arguments = installation_source().arguments(extra)
    if arguments is None:
        return f'pip install ".[{extra}]" (in a checkout of the Osmosis repository)'
    return " ".join(["pip install", *(word if word == "-e" else f'"{word}"' for word in arguments)])


def reason_of(error: Exception) -> str:
    """Return what an error says in words: of the system's without its number, and the path that is named anyhow."""
    return str(getattr(error, "strerror", None) or error)
