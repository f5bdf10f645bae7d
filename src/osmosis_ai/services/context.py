"""Check the prerequisites of workspace commands in a fixed order: work tree, directories, origin, identity, login.

No request is sent before all checks pass, so the first problem is the one that the user sees.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from osmosis_ai.api.client import DEFAULT_TIMEOUT_S, PlatformClient
from osmosis_ai.api.credentials import Credentials, require_credentials
from osmosis_ai.api.git_identity import GitIdentity, identify_origin
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.platform_url import DEFAULT_PLATFORM_URL
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.services.names import explain_local_run, suggestion
from osmosis_ai.workspace.git import read_origin, run_git
from osmosis_ai.workspace.layout import WorkspaceDirectory, find_workspace

Warn = Callable[[str, "str | None"], None]
"""Receives a warning that does not stop the command: a sentence and its code."""

NOT_CONNECTED_CODES = ("GIT_REPOSITORY_NOT_CONNECTED", "GIT_SCOPE_HEADER_ACCESS_DENIED")
_logger = logging.getLogger("osmosis_ai")


def log_warning(message: str, code: str | None = None) -> None:
    """Log a warning: the default for services."""
    _logger.warning("%s", message, extra={"code": code})


@dataclass(frozen=True)
class Checkout:
    """A workspace directory and the repository it is a checkout of."""

    workspace: WorkspaceDirectory
    git: GitIdentity

    def resource(self) -> dict[str, Any]:
        """Return the keys that every result about a workspace contains."""
        return {
            "git": {"identity": self.git.identity, "remote_url": self.git.display_url},
            "workspace_directory": str(self.workspace.root),
        }


@dataclass(frozen=True)
class PlatformContext(Checkout):
    """A checkout with its login, and a client for both."""

    credentials: Credentials
    client: PlatformClient


def find_checkout(start: Path | None = None, *, require_scaffold: bool = True) -> Checkout:
    """Return the checkout that contains ``start``, a directory or file (default: the current directory).

    ``require_scaffold`` is whether the directories of a workspace must exist.
    """
    workspace = find_workspace(start, require_scaffold=require_scaffold)
    origin = read_origin(workspace.root)
    if origin is None:
        others = run_git(["remote"], cwd=workspace.root).stdout.split()
        fix = f"rename {others[0]} origin" if len(others) == 1 else "add origin URL"
        raise OsmosisError(
            f"{workspace.root} has no Git remote `origin`, by which a platform knows the repository.",
            details={"workspace_directory": str(workspace.root)},
            hint=f"git -C {quote(str(workspace.root))} remote {fix}",
        )
    return Checkout(workspace, identify_origin(origin, base=workspace.root))


def find_checkout_if_any(start: Path | None = None) -> Checkout | None:
    """Return the checkout that contains ``start``, without checking its directories; None outside one."""
    try:
        return find_checkout(start, require_scaffold=False)
    except OsmosisError:
        return None


@contextmanager
def open_context(
    start: Path | None = None,
    *,
    require_scaffold: bool = True,
    run: str | None = None,
    warn: Warn = log_warning,
) -> Iterator[PlatformContext]:
    """Check a workspace command's prerequisites, as :func:`find_checkout`, and open a connection while it runs.

    ``run`` is the platform's run that the command is about.
    """
    try:
        checkout = find_checkout(start, require_scaffold=require_scaffold)
        credentials = require_credentials()
        if run is not None and run.startswith("local:"):
            raise NotFoundError(f"Run '{run}' is not a platform's run.")
    except OsmosisError as error:
        if error.code in ("AUTH_REQUIRED", "VALIDATION", "NOT_FOUND"):
            explain_local_run(error, run)
        raise
    with open_client(checkout, credentials, run=run, warn=warn) as client:
        yield PlatformContext(checkout.workspace, checkout.git, credentials, client)


@contextmanager
def open_client(
    checkout: Checkout | None,
    credentials: Credentials | None = None,
    *,
    run: str | None = None,
    warn: Warn = log_warning,
) -> Iterator[PlatformClient]:
    """Open a connection to the platform and add hints to its errors.

    Without a ``checkout``, requests name no repository. The login is the saved one or the environment's by default.
    """
    credentials = credentials or require_credentials()
    identity = None if checkout is None else checkout.git.identity
    with connect(credentials, git_identity=identity, warn=warn) as client:
        try:
            yield client
        except PlatformError as error:
            # Errors of our own platform already have a suggestion.
            suggests = error.hint is not None or any(
                words in error.message for words in ("did you mean", "see `osmosis ")
            )
            if checkout is not None and error.platform_code in NOT_CONNECTED_CODES:
                error.hint = connect_hint(checkout.git, credentials.platform_url)
            elif error.platform_code == "ROUTE_NOT_FOUND":
                error.hint = "this platform is older than the command; its operator can upgrade it"
            elif (
                error.status == 404
                and error.path is not None
                and not explain_local_run(error, run)
                and not suggests
            ):
                error.hint = suggestion(client, error.path)
            raise


def connect(
    credentials: Credentials,
    *,
    git_identity: str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    warn: Warn = log_warning,
) -> PlatformClient:
    """Return a client for the platform and user of ``credentials``; the caller closes it."""
    keep_retries_off_stdout()
    return PlatformClient(
        credentials.platform_url,
        credentials.token,
        git_identity,
        timeout_s,
        token_origin=credentials.token_origin,
        on_warning=warn,
    )


def keep_retries_off_stdout() -> None:
    """Report retries through `logging` only: with structlog installed, stamina prints them to stdout."""
    from stamina.instrumentation import LoggingOnRetryHook, set_on_retry_hooks

    set_on_retry_hooks([LoggingOnRetryHook])


def connect_hint(git: GitIdentity, platform_url: str) -> str:
    """Return how to connect a repository to a workspace of this platform."""
    renamed = "if it was renamed: git remote set-url origin NEW-URL"
    if platform_url == DEFAULT_PLATFORM_URL:
        return f"connect it at {platform_url}, on the workspace's page Integrations > Git; {renamed}"
    return f"on the platform's machine: osmosis platform connect {git.display_url}; {renamed}"
