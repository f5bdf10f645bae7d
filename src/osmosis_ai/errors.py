"""The hierarchy of errors that users can see: each has a message, a machine-readable code and details.

Every such error is an :class:`OsmosisError`. The command line converts it to an exit status and an envelope, the
platform to a reply. No other code prints errors or exits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

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


class OsmosisError(Exception):
    """An error that the user can act on.

    Args:
        message: what happened, where, and how to fix it.
        code: the machine-readable class of the error.
        details: JSON-encodable facts for programs; never a secret.
        hint: one additional line with the command or edit that fixes the problem.
    """

    default_code: ErrorCode = "VALIDATION"
    is_infrastructure: bool = False
    """Whether the error is independent of the user's input, so that a retry may succeed."""

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
        self.details: dict[str, Any] = dict(details or {})
        self.hint = hint

    @property
    def sentence(self) -> str:
        """The message as a sentence that starts with a capital letter."""
        return self.message[:1].upper() + self.message[1:]

    @property
    def with_hint(self) -> str:
        """The message, followed by the hint in parentheses if there is one."""
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(OsmosisError):
    """The options of a command are invalid, or do not apply to its arguments."""


class NotFoundError(OsmosisError):
    """A named thing does not exist."""

    default_code = "NOT_FOUND"


class ConflictError(OsmosisError):
    """The request conflicts with existing state."""

    default_code = "CONFLICT"


class ResumeRefusedError(ConflictError):
    """The state to resume belongs to other inputs."""


class WorkspaceRequiredError(OsmosisError):
    """The command needs a Git work tree with the layout of an Osmosis workspace."""

    default_code = "WORKSPACE_REQUIRED"


class InteractiveRequiredError(OsmosisError):
    """The command needs an answer, but is not interactive."""

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
    """Return the pip command that adds ``extra`` to this installation.

    The distribution's name on a public index belongs to another package, so the command uses the source of this
    installation (PEP 610 ``direct_url.json``).
    """
    from osmosis_ai.installation import installation_source

    arguments = installation_source().arguments(extra)
    if arguments is None:
        return f'pip install ".[{extra}]" (in a checkout of the Osmosis repository)'
    return " ".join(["pip install", *(word if word == "-e" else f'"{word}"' for word in arguments)])


def reason_of(error: Exception) -> str:
    """Return an error's text; for an OS error, without its number and path."""
    return str(getattr(error, "strerror", None) or error)


def with_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and the chain of exceptions that led to it, which may be a cycle."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        yield cause
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
