"""`osmosis platform worker-token`: what lets other machines execute runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_ai.cli.options import YesOption
from osmosis_ai.cli.output.results import Column, ListResult, OperationResult, Timestamp
from osmosis_ai.cli.platform.issued_tokens import TokenNameOption, revoke_token, token_list
from osmosis_ai.errors import ConflictError, OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.cli.platform.local_platform import LocalPlatform
    from osmosis_ai.platform.db.tables import DbWorkerToken


def create(
    pool: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Whose runs it is good for: those that name this pool under [advanced.execution].",
            show_default=False,
        ),
    ],
    workspace: Annotated[
        list[str] | None,
        typer.Option(
            "--workspace",
            "-w",
            help="Make it good for the runs of this workspace alone; repeatable.",
            show_default=False,
        ),
    ] = None,
    name: TokenNameOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write it into a file that you alone can read, instead of printing it.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="With --output: replace the file.")] = False,
) -> OperationResult:
    """Make a worker token: what a machine executes the runs of a pool with. Without --output it is printed, this once.

    It is good for `osmosis platform worker` alone, until it is revoked. Whoever has it gets the secrets of the
    runs that they take.

    Examples:
        osmosis platform worker-token create --pool gpu --output gpu-worker.token
        osmosis platform worker-token create --pool gpu --workspace team-agents --name basement
    """
    from osmosis_ai.cli.output.context import current
    from osmosis_ai.cli.platform.local_platform import local_platform

    if output == Path("-"):
        raise typer.BadParameter("without --output it is printed.", param_hint="'--output'")
    with local_platform() as platform:
        homes = [platform.workspaces.find(named) for named in dict.fromkeys(workspace or [])]
        if output is not None:
            _require_place(output, force)
        token, plain = platform.worker_access.create_token(
            pool, name=name, workspace_ids=[home.id for home in homes]
        )
        if output is not None:
            _write(platform, token, plain, output, force)
        url = platform.url
    scope = f" of {', '.join(home.name for home in homes)}" if homes else ""
    made = f"Made worker token {token.id} for the pool {token.pool}{scope}"
    if output is None:
        current().note(f"{made}. It is not shown again.")
    return OperationResult(
        operation="platform.worker-token.create",
        message=f"{made}." if output is None else f"{made}, in {output}.",
        shown=plain if output is None else None,
        resource={
            **({"token": plain} if output is None else {"path": str(output)}),
            "id": token.id,
            "pool": token.pool,
            "name": token.name,
            "workspaces": [home.name for home in homes] or None,
            "platform_url": url,
        },
        # A token that is printed stands alone on stdout.
        next_steps=[
            f"On the worker's machine: osmosis platform worker --url {url} --pool {token.pool} "
            f"--token-file {output.name}"
        ]
        if output is not None
        else [],
    )


def list_(
    everything: Annotated[bool, typer.Option("--all", help="Show revoked tokens too.")] = False,
) -> ListResult:
    """List worker tokens, newest first. The tokens themselves are not kept and cannot be shown.

    Examples:
        osmosis platform worker-token list
    """
    from osmosis_ai.cli.platform.local_platform import local_platform

    with local_platform() as platform:
        names = {workspace.id: workspace.name for workspace in platform.workspaces.all()}
        items = [_item(token, names) for token in platform.worker_access.tokens()]
    return token_list(
        "Worker tokens",
        items,
        [Column("Pool", "pool"), Column("Workspaces", value=_workspaces_shown)],
        [Column("Created", value=lambda item: Timestamp(item["created_at"]))],
        everything=everything,
        gone="revoked",
    )


def revoke(
    token_id: Annotated[
        str, typer.Argument(help="The token's id, as `osmosis platform worker-token list` shows it.")
    ],
    yes: YesOption = False,
) -> OperationResult:
    """Make a worker token useless at once and for good: its workers put their runs aside, and others go on with them.

    Examples:
        osmosis platform worker-token revoke wkt_3f2a9c10
    """
    return revoke_token(
        "platform.worker-token.revoke",
        token_id,
        lambda platform: platform.worker_access,
        loss="Its workers end.",
        yes=yes,
    )


def _require_place(output: Path, force: bool) -> None:
    """Find out, before there is a token, whether a file can be written."""
    from osmosis_ai.files import require_writable

    if output.is_dir():
        raise OsmosisError(
            f"{output} is a directory.", hint=f"name a file in it: --output {output / 'worker.token'}"
        )
    if output.exists() and not force:
        raise _exists(output)
    try:
        require_writable(output)
    except OSError as error:
        raise _unwritable(output, error) from error


def _write(platform: LocalPlatform, token: DbWorkerToken, plain: str, output: Path, force: bool) -> None:
    """Write the token into its file; one that could not be written is worth nothing."""
    from osmosis_ai.files import write_atomic, write_new

    try:
        (write_atomic if force else write_new)(output, plain + "\n")
    except OSError as error:
        platform.worker_access.revoke_token(token.id)
        raise (
            _exists(output) if isinstance(error, FileExistsError) else _unwritable(output, error)
        ) from error


def _exists(output: Path) -> ConflictError:
    return ConflictError(f"{output} exists.", hint="choose another file, or replace it with --force")


def _unwritable(output: Path, error: OSError) -> OsmosisError:
    return OsmosisError(f"{output} cannot be written: {error.strerror or error}.")


def _workspaces_shown(item: Mapping[str, Any]) -> str:
    return ", ".join(item["workspaces"]) if item["workspaces"] is not None else "all"


def _item(token: DbWorkerToken, names: dict[str, str]) -> dict[str, Any]:
    from osmosis_ai.cli.platform.local_platform import iso

    spaces = token.workspace_ids
    return {
        "id": token.id,
        "pool": token.pool,
        "name": token.name,
        "workspaces": [names.get(space, space) for space in spaces] if spaces is not None else None,
        "status": "revoked" if token.revoked_at is not None else "active",
        "created_at": iso(token.created_at),
        "last_used_at": iso(token.last_used_at),
    }
