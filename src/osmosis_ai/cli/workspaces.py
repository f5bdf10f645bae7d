"""`osmosis workspace`, `check` and `doctor`: the workspaces of a platform, and their directories on this machine."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.formats import one_line, spelled_out
from osmosis_ai.cli.output.results import (
    Column,
    DetailResult,
    ListResult,
    OperationResult,
    Styled,
    Text,
    Timestamp,
)
from osmosis_ai.errors import OsmosisError
from osmosis_ai.ui.numbers import amount

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
    with output.status("Fetching workspace"):
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
def switch(name: Annotated[str, typer.Argument(help="Name or ID of the workspace.")]) -> OperationResult:
    """Find the local directory of another workspace.

    The repository of the current directory selects the workspace of a command. This command prints the checkout of
    NAME in which a command has run before.

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
            message=f"This directory is a checkout of the workspace {known_as}.",
            resource=member.item(),
        )
    go = f"cd {shlex.quote(str(member.directory))}"
    return OperationResult(
        operation="workspace.switch",
        message=f"The workspace {known_as} is checked out in {member.directory}.",
        resource=member.item(),
        next_steps=[f"Switch to it: {go}"],
        next_steps_structured=[{"action": "change_directory", "path": str(member.directory)}],
    )


def check(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PATHS]...",
            help="Configs, dataset files, or directories with configs (default: all configs).",
        ),
    ] = None,
    no_import: Annotated[
        bool,
        typer.Option("--no-import", help="Do not import entrypoints, because an import runs their code."),
    ] = False,
    import_timeout: Annotated[
        float,
        typer.Option(min=1.0, max=600.0, metavar="SECONDS", help="Time limit of one import in seconds."),
    ] = 60.0,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail if a dataset has rows that cannot be evaluated.")
    ] = False,
    annotations: Annotated[
        Literal["github"] | None,
        typer.Option(help="Also write each problem to stderr as an annotation of GitHub Actions."),
    ] = None,
) -> OperationResult:
    """Check configs, rollout code and datasets offline.

    Every config is checked, with the code that it runs and the dataset that it names. No login and no Git remote are
    needed. Exits with 1 and lists all errors.

    Examples:
        osmosis check --strict --annotations github
    """
    from osmosis_ai.services.workspace_check import check_workspace

    output = current()
    with output.status("Checking the workspace"):
        report = check_workspace(
            paths or [], imports=not no_import, strict=strict, import_timeout_s=import_timeout
        )
    if annotations is not None:
        for problem in report.problems:
            sys.stderr.write(f"{spelled_out(' '.join(problem.github_annotation().splitlines()))}\n")
        sys.stderr.flush()
    looked = {"config": report.configs, "entrypoint": report.entrypoints, "dataset": report.datasets}
    checked = ", ".join(amount(len(found), noun) for noun, found in looked.items() if found)
    if report.errors:
        raise OsmosisError(
            f"{amount(len(report.errors), 'error')} in {checked}:\n" + "\n".join(_lines(report)),
            details=report.resource(),
        )
    for warning in report.warnings:
        output.warn(one_line(warning.text()))
    return OperationResult(
        operation="check",
        message=f"Nothing is wrong with {checked}.",
        shown=f"No errors in {checked}.",
        resource=report.resource(),
        blocks=[Text(f"Not checked: {one_line(sentence)}", in_plain=True) for sentence in report.unchecked],
    )


def _lines(report: CheckReport) -> list[str]:
    """Return a line for each finding: names in a repository may have line breaks, and CI reads lines as commands."""
    errors = [problem.text() for problem in report.errors]
    warnings = [f"warning: {problem.text()}" for problem in report.warnings]
    unchecked = [f"not checked: {sentence}" for sentence in report.unchecked]
    return [f"  - {one_line(line)}" for line in (*errors, *warnings, *unchecked)]


def doctor(
    path: Annotated[
        Path | None,
        typer.Argument(exists=True, help="A directory in the workspace (default: the current one)."),
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Create missing files without overwriting any.")] = False,
) -> OperationResult:
    """Check the workspace directory and fix it with --fix.

    Works offline, without an account.

    Examples:
        osmosis doctor
        osmosis doctor --fix
    """
    from osmosis_ai.services.workspace_check import examine

    found = examine(path, fix=fix)
    linked = f" of the workspace {found['workspace']['name']}" if found["workspace"] else ""
    problems = list(_doctor_problems(found))
    done = [f"Created: {', '.join(found['fixed'])}"] if found["fixed"] else []
    if added := found["gitignore"]["added"]:
        done.append(f"Added to .gitignore: {', '.join(added)}")
    state = "is complete" if not problems else f"has {amount(len(problems), 'problem')}"
    return OperationResult(
        operation="doctor",
        message="Workspace doctor completed.",
        shown=f"{found['workspace_directory']}{linked} {state}.",
        resource=found,
        blocks=[Text(line, in_plain=True) for line in (*done, *problems)],
    )


def _doctor_problems(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield each problem of a workspace directory with its fix."""
    if found["missing"]:
        yield f"Guides for coding agents are missing: {', '.join(found['missing'])}. Fix: osmosis doctor --fix"
    if unignored := found["gitignore"]["missing"]:
        yield f".gitignore does not list {', '.join(unignored)}. Fix: osmosis doctor --fix"
    if tracked := found["tracked_env_files"]:
        files = shlex.join(tracked)
        yield f"Git tracks keys: {files}. Fix: git rm --cached -- {files}, then replace every key in it"
    sandbox = found["sandbox"]
    if not sandbox["works"]:
        yield f"`osmosis eval run --isolate` is unavailable: {sandbox['problem']}. Fix: {sandbox['remedy']}"
