"""What a check found, as GitHub Actions shows it beside the lines of a change: workflow commands on their own lines.

https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands
"""

from __future__ import annotations

from collections.abc import Iterable

from osmosis_ai.services.workspaces.check import Problem


def github_annotations(problems: Iterable[Problem]) -> list[str]:
    """Return a workflow command for each problem; nothing in a problem can begin another command."""
    return [_command(problem) for problem in problems]


def _command(problem: Problem) -> str:
    places = {"file": problem.file, "line": problem.line, "title": f"osmosis check: {problem.check}"}
    properties = ",".join(
        f"{name}={_property(str(value))}" for name, value in places.items() if value is not None
    )
    meant = f" (did you mean '{problem.suggestion}'?)" if problem.suggestion else ""
    named = f"{problem.key}: " if problem.key else ""
    return f"::{problem.severity} {properties}::{_data(f'{named}{problem.message}{meant}')}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
