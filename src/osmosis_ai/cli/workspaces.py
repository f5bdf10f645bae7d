"""`osmosis workspace`, `check` and `doctor`: the workspaces of a platform, and their directories on this machine."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.formats import one_line, spelled_out
from osmosis_ai.cli.output.results import (
    Cell,
    Column,
    DetailResult,
    ListResult,
    OperationResult,
    Styled,
    Table,
    Text,
    Timestamp,
)
from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.services.workspace_check import CheckReport

app = typer.Typer()


@app.command("list")
def list_() -> ListResult:
    """List your workspaces.

    The workspace of the current repository is marked. Works in any directory.

    Examples:
        osmosis workspace list
    """
    from osmosis_ai.services.workspaces import list_workspaces

    output = current()
    with output.status("Fetching workspaces"):
        memberships = list_workspaces(warn=output.warn)
    return ListResult(
        title="Workspaces",
        items=[member.item() for member in memberships],
        columns=[
            Column("Name", "name", keep=True),
            Column("Role", "role"),
            Column("Repository", "repository"),
            Column("Directory", "workspace_directory"),
            Column("", value=lambda item: Styled("current", "good") if item["current"] else ""),
        ],
    )


@app.command("current")
def current_() -> DetailResult:
    """Show the workspace of the current repository.

    Examples:
        osmosis workspace current
    """
    from osmosis_ai.services.workspaces import current_workspace

    output = current()
    with output.status("Asking the platform"):
        found = current_workspace(warn=output.warn)
    return DetailResult(
        data=found,
        title="Workspace",
        rows=[
            ("Workspace", found["name"]),
            ("Role", found["role"]),
            ("User", found["email"]),
            ("Expires", Timestamp(found["expires_at"], seconds=True)),
            ("Platform", found["platform_url"]),
            ("Repository", found["git"]["identity"]),
            ("Directory", found["workspace_directory"]),
        ],
    )


@app.command("switch")
def switch(
    name: Annotated[str, typer.Argument(help="A workspace, as `osmosis workspace list` shows it.")],
) -> OperationResult:
    """Find the local directory of another workspace.

    Commands are about the workspace whose repository they run in, so nothing is remembered as "the
    current one": this tells where on this machine NAME is checked out, as far as commands have run
    there. In a script: cd "$(osmosis workspace switch NAME --json | jq -r .resource.workspace_directory)"

    Examples:
        osmosis workspace switch team-agents
    """
    from osmosis_ai.services.workspaces import find_workspace_directory

    output = current()
    with output.status("Fetching workspaces"):
        member = find_workspace_directory(name, warn=output.warn)
    known_as = member.workspace.name
    if member.current:
        return OperationResult(
            operation="workspace.switch",
            status="noop",
            message=f"This directory is a checkout of the workspace {known_as} already.",
            resource=member.item(),
        )
    go = f"cd {shlex.quote(str(member.directory))}"
    return OperationResult(
        operation="workspace.switch",
        message=f"The workspace {known_as} is checked out in {member.directory}.",
        resource=member.item(),
        next_steps=[f"Commands are about it when they run there: {go}"],
        next_steps_structured=[{"action": "change_directory", "path": str(member.directory)}],
    )


def check(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PATHS]...",
            help="Configs, dataset files, or directories with configs; all of the workspace's when left out.",
        ),
    ] = None,
    no_import: Annotated[
        bool,
        typer.Option("--no-import", help="Import no entrypoint: it runs code. For code you do not trust."),
    ] = False,
    import_timeout: Annotated[
        float, typer.Option(min=1.0, max=600.0, metavar="SECONDS", help="How long one import may take.")
    ] = 60.0,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail when a dataset has rows that cannot be evaluated.")
    ] = False,
    annotations: Annotated[
        Literal["github"] | None,
        typer.Option(help="Also write every problem to stderr as GitHub Actions shows it in a change."),
    ] = None,
) -> OperationResult:
    """Check configs, rollout code and datasets offline.

    Every config is checked, with the code that it runs and the dataset that it names.

    Needs no platform, no login and no origin. Exits 1 with everything that is wrong.

    Examples:
        osmosis check --strict --annotations github
    """
    from osmosis_ai.services.workspace_check import check_workspace

    output = current()
    report = check_workspace(
        paths or [],
        imports=not no_import,
        strict=strict,
        import_timeout_s=import_timeout,
        tell=lambda text: output.note(one_line(text)),
    )
    if annotations is not None:
        for problem in report.problems:
            sys.stderr.write(f"{spelled_out(' '.join(problem.github_annotation().splitlines()))}\n")
        sys.stderr.flush()
    if report.errors:
        raise OsmosisError(
            f"{_counted(len(report.errors), 'error')} in {_looked_at(report)}:\n" + "\n".join(_lines(report)),
            details=report.resource(),
        )
    for warning in report.warnings:
        output.warn(one_line(warning.text()))
    return OperationResult(
        operation="check",
        message=f"Nothing is wrong with {_looked_at(report)}.",
        resource=report.resource(),
        blocks=[Text(f"Not checked: {one_line(sentence)}", in_plain=True) for sentence in report.unchecked],
    )


def _lines(report: CheckReport) -> list[str]:
    """Return a line for each finding: names in a repository may have line breaks, and CI reads lines as commands."""
    errors = [problem.text() for problem in report.errors]
    warnings = [f"warning: {problem.text()}" for problem in report.warnings]
    unchecked = [f"not checked: {sentence}" for sentence in report.unchecked]
    return [f"  - {one_line(line)}" for line in (*errors, *warnings, *unchecked)]


def _looked_at(report: CheckReport) -> str:
    looked = {"config": report.configs, "entrypoint": report.entrypoints, "dataset": report.datasets}
    return ", ".join(_counted(len(found), noun) for noun, found in looked.items() if found)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def doctor(
    path: Annotated[
        Path | None, typer.Argument(help="A directory in the workspace; the current one by default.")
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Create what is missing; nothing is overwritten.")
    ] = False,
) -> OperationResult:
    """Check the workspace directory and fix it with --fix.

    Works offline, without an account.

    Examples:
        osmosis doctor
        osmosis doctor --fix
    """
    from osmosis_ai.services.workspace_check import examine

    resource = examine(path, fix=fix)
    states: dict[str, Cell] = {
        **dict.fromkeys(resource["required_paths"], Styled("ok", "good")),
        **dict.fromkeys(resource["missing"], Styled("missing (optional)", "dim")),
        **dict.fromkeys(resource["fixed"], Styled("created", "good")),
    }
    rows = [(name, states[name]) for name in resource["required_paths"]]
    ignoring, tracked = resource["gitignore"], resource["tracked_env_files"]
    rows.append((".gitignore", _ignoring(ignoring["missing"], ignoring["added"])))
    rows += [(name, Styled("in the repository, keys and all", "bad")) for name in tracked]
    sandbox = resource["sandbox"]
    if sandbox["works"]:
        rows.append(("sandbox", Styled("works (bubblewrap): `osmosis eval run --isolate`", "good")))
        rows.append(("limits of a platform's runs", sandbox["limits"].removeprefix("limits: ")))
    else:  # This is no fault of the workspace.
        problem = f"not possible here: {sandbox['problem']}; {sandbox['remedy']}"
        rows.append(("sandbox", Styled(problem, "dim")))
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


def _ignoring(missing: list[str], added: list[str]) -> Cell:
    if added:
        return Styled(f"added: {', '.join(added)}", "good")
    return Styled(f"does not ignore {', '.join(missing)}", "warn") if missing else Styled("ok", "good")
