"""`osmosis platform connect`: which repository a workspace's runs take their code from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from osmosis_ai.cli.output.results import OperationResult
from osmosis_ai.errors import NotFoundError


def connect(
    source: Annotated[
        str, typer.Argument(metavar="PATH|URL", help="What to clone: a directory here, or any Git URL.")
    ],
    identity: Annotated[
        str | None,
        typer.Option(
            metavar="OWNER/REPO", help="What clients call it; follows from the origin when not given."
        ),
    ] = None,
    workspace: Annotated[
        str | None,
        typer.Option("--workspace", "-w", help="Whose it is; not needed while there is one workspace."),
    ] = None,
    branch: Annotated[
        str | None, typer.Option(help="The branch runs use; the repository's default when not given.")
    ] = None,
) -> OperationResult:
    """Connect a Git repository to a workspace; `osmosis eval submit` then works in its checkouts."""
    from osmosis_ai.cli.platform.opened import opened_platform

    clone_url, origin, steps = _located(source)
    known_as = identity if identity is not None else _identity_of(origin)
    with opened_platform() as platform:
        home = platform.workspace(workspace)
        repository = platform.workspaces.connect_repository(
            home.id, known_as, clone_url, default_branch=branch
        )
    return OperationResult(
        operation="platform.connect",
        message=f"Connected {repository.identity} to {home.name}; runs clone {repository.clone_url}.",
        resource={
            "id": repository.id,
            "workspace": home.name,
            "identity": repository.identity,
            "clone_url": repository.clone_url,
            "default_branch": repository.default_branch,
        },
        next_steps=steps,
    )


def _located(source: str) -> tuple[str, str, list[str]]:
    """Return what to clone, the origin that clients of it see, and what to tell the user."""
    path = Path(source).expanduser()
    if "://" in source or not path.exists():
        if "://" not in source and ":" not in source:
            raise NotFoundError(f"there is no directory {source}.", hint="name a Git repository, or its URL")
        return source, source, []
    from osmosis_ai.workspace.git import read_origin, without_credentials, worktree_root

    root = worktree_root(path)
    if root is None:
        bare = path.resolve()
        if not ((bare / "HEAD").is_file() and (bare / "objects").is_dir()):
            raise NotFoundError(f"{source} is not a Git repository.", hint="make it one with `git init`")
        return str(bare), str(bare), []
    origin = read_origin(root)
    if origin is None:
        return (
            str(root),
            str(root),
            [f"Commands in it find the platform by its origin: git -C {root} remote add origin {root}"],
        )
    return (
        str(root),
        _absolute(origin, root),
        [
            "Runs use what is committed there. To use what is pushed to its origin instead: "
            f"osmosis platform connect {without_credentials(origin)}"
        ],
    )


def _absolute(origin: str, root: Path) -> str:
    return str((root / origin).resolve()) if "://" not in origin and (root / origin).exists() else origin


def _identity_of(origin: str) -> str:
    from osmosis_ai.api.git_identity import identify_origin

    return identify_origin(origin).identity
