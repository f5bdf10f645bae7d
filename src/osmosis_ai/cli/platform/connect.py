"""`osmosis platform connect`: which repository a workspace's runs take their code from."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from osmosis_ai.cli.output.results import OperationResult
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.files import expanded


def connect(
    source: Annotated[
        str, typer.Argument(metavar="PATH|URL", help="What to clone: a directory here, or any Git URL.")
    ],
    identity: Annotated[
        str | None,
        typer.Option(
            metavar="OWNER/REPO",
            help="What it is called; follows from the origin when not given. Checkouts find it by their origin "
            "either way.",
        ),
    ] = None,
    workspace: Annotated[
        str | None,
        typer.Option("--workspace", "-w", help="Whose it is; not needed while there is one workspace."),
    ] = None,
    branch: Annotated[
        str | None, typer.Option(help="The branch runs use; the repository's default when not given.")
    ] = None,
    no_check: Annotated[
        bool,
        typer.Option(
            "--no-check", help="Connect it although it may not clone: its host is away, or no key is set up."
        ),
    ] = False,
) -> OperationResult:
    """Connect a Git repository to a workspace; `osmosis eval submit` then works in its checkouts.

    What does not clone is refused.

    Examples:
        osmosis platform connect .
        osmosis platform connect https://git.example.org/team/agents.git
    """
    from osmosis_ai.cli.output.context import current
    from osmosis_ai.cli.platform.local_platform import local_platform
    from osmosis_ai.workspace.git import without_credentials

    located = _located(source)
    sent = _identity_of(located.origin, required=identity is None)
    with local_platform() as platform:
        home = platform.workspace(workspace)
        if not no_check:
            _require_clone(platform.config.git_dir, identity or sent, located.clone_url, branch)
        repository = platform.workspaces.connect_repository(
            home.id,
            identity or sent,
            located.clone_url,
            also_known_as=[sent] if sent else [],
            default_branch=branch,
        )
        identities = platform.workspaces.identities(repository.id)
    if sent and sent not in identities:
        current().warn(
            f"{sent}, which clients send whose origin is {without_credentials(located.origin)}, means another "
            "repository that is connected already."
        )
    return OperationResult(
        operation="platform.connect",
        message=f"Connected {repository.identity} to {home.name}; runs clone {repository.clone_url}.",
        resource={
            "id": repository.id,
            "workspace": home.name,
            "identity": repository.identity,
            "identities": identities,
            "clone_url": repository.clone_url,
            "default_branch": repository.default_branch,
        },
        next_steps=located.next_steps,
    )


def _require_clone(git_dir: Path, identity: str, clone_url: str, branch: str | None) -> None:
    """Ask the repository what it has."""
    from osmosis_ai.cli.output.context import current
    from osmosis_ai.config.issues import closest
    from osmosis_ai.platform.gitsync.mirror import MirrorStore, Source
    from osmosis_ai.platform.workspaces import checked_clone_url

    # A password in the URL is refused before it could reach Git.
    source = Source(identity, checked_clone_url(clone_url))
    mirrors = MirrorStore(git_dir)
    try:
        with current().status(f"Asking {source.clone_url}"):
            refs = mirrors.probe(source)
    except OsmosisError as error:
        error.hint = f"{error.hint}; " if error.hint else ""
        error.hint += "or connect it all the same with --no-check"
        raise
    finally:
        mirrors.close()
    branches = [name.removeprefix("refs/heads/") for name in refs.commits if name.startswith("refs/heads/")]
    if branch is not None and branch not in branches:
        near = closest(branch, branches)
        raise NotFoundError(
            f"{source.clone_url} has no branch '{branch}'.",
            hint=f"did you mean {near}?"
            if near
            else f"it has {', '.join(sorted(branches)[:5]) or 'none yet'}",
        )
    if not branches:
        current().warn(f"{source.clone_url} has no commit yet; a run needs one.")


@dataclass(frozen=True)
class _Located:
    """What to clone, the origin that clients of it have, and what to tell the user."""

    clone_url: str
    origin: str
    next_steps: list[str] = field(default_factory=list)


def _located(source: str) -> _Located:
    from osmosis_ai.workspace.git import worktree_root

    path = expanded(source)
    if "://" in source or not path.exists():
        if "://" not in source and ":" not in source:
            raise NotFoundError(f"there is no directory {source}.", hint="name a Git repository, or its URL")
        return _Located(source, source)
    root = worktree_root(path)
    if root is not None:
        return _located_checkout(root)
    bare = path.resolve()
    if not ((bare / "HEAD").is_file() and (bare / "objects").is_dir()):
        raise NotFoundError(f"{source} is not a Git repository.", hint="make it one with `git init`")
    return _Located(str(bare), str(bare))


def _located_checkout(root: Path) -> _Located:
    from osmosis_ai.workspace.git import read_origin, without_credentials

    here, committed = str(root), "Runs use what is committed there; nothing needs to be pushed."
    origin = read_origin(root)
    if origin is None:
        own = f"git -C {quote(here)} remote add origin {quote(here)}"
        return _Located(here, here, [committed, f"Commands in it need an origin; it can be its own: {own}"])
    absolute = _absolute(origin, root)
    if _identity_of(absolute, required=False) == _identity_of(here, required=True):
        return _Located(here, here, [committed])
    pushed = f"osmosis platform connect {quote(without_credentials(absolute))}"
    return _Located(here, absolute, [committed, f"To use what is pushed to its origin instead: {pushed}"])


def _identity_of(origin: str, *, required: bool) -> str:
    """Return what clients send whose origin this is; "" when that is nothing, and nothing is required."""
    from osmosis_ai.api.git_identity import identify_origin

    try:
        return identify_origin(origin).identity
    except OsmosisError:
        if required:
            raise
        return ""


def _absolute(origin: str, root: Path) -> str:
    return str((root / origin).resolve()) if "://" not in origin and (root / origin).exists() else origin
