"""`osmosis doctor`: check the workspace directory, and mend it with --fix."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from osmosis_ai.cli.output.results import Cell, OperationResult, Styled, Table

app = typer.Typer()


@app.command()
def doctor(
    path: Annotated[
        Path | None, typer.Argument(help="A directory in the workspace; the current one by default.")
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Create what is missing; nothing is overwritten.")
    ] = False,
) -> OperationResult:
    """Check the workspace directory, and mend it with --fix. Works offline, without an account.

    Examples:
        osmosis doctor
        osmosis doctor --fix
    """
    from osmosis_ai.services.workspace_check import examine

    resource = examine(path, fix=fix).resource()
    rows: list[tuple[str, Cell]] = [
        (name, _state(name, resource["missing"], resource["fixed"])) for name in resource["required_paths"]
    ]
    ignoring, tracked = resource["gitignore"], resource["tracked_env_files"]
    rows.append((".gitignore", _ignoring(ignoring["missing"], ignoring["added"])))
    rows += [(name, Styled("in the repository, keys and all", "bad")) for name in tracked]
    rows.append(("sandbox", _sandbox(resource["sandbox"])))
    if resource["sandbox"]["works"]:
        rows.append(("limits of a platform's runs", resource["sandbox"]["limits"].removeprefix("limits: ")))
    linked = resource["workspace"]
    steps = []
    if resource["missing"]:
        steps.append("Write the missing guides for coding agents: osmosis doctor --fix")
    if ignoring["missing"]:
        steps.append("Keep keys and results out of the repository: osmosis doctor --fix")
    if tracked:
        names = shlex.join(tracked)
        steps.append(f"Take {names} out of the repository: git rm --cached -- {names}")
        steps.append("Then replace every key that was in it: the history keeps what was committed")
    return OperationResult(
        operation="doctor",
        message="Workspace doctor completed.",
        resource=resource,
        blocks=[
            Table(
                ["Path", "State"],
                rows,
                title=resource["workspace_directory"],
                note=f"Workspace on the platform: {linked['name']}" if linked else None,
                in_plain=True,
            )
        ],
        next_steps=steps,
    )


def _sandbox(found: dict[str, Any]) -> Cell:
    """Return whether `--isolate` works here; that it does not is no fault of the workspace."""
    if found["works"]:
        return Styled("works (bubblewrap): `osmosis eval run --isolate`", "good")
    return Styled(f"not possible here: {found['problem']}; {found['remedy']}", "dim")


def _ignoring(missing: list[str], added: list[str]) -> Cell:
    if added:
        return Styled(f"added: {', '.join(added)}", "good")
    return Styled(f"does not ignore {', '.join(missing)}", "warn") if missing else Styled("ok", "good")


def _state(name: str, missing: list[str], fixed: list[str]) -> Cell:
    if name in fixed:
        return Styled("created", "good")
    return Styled("missing (optional)", "dim") if name in missing else Styled("ok", "good")
