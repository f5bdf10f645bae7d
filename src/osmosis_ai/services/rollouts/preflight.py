"""Before code is run far away: would it import here?

What the platform has to build first (packages that are not installed here) is not held against the code;
what cannot run anywhere (a syntax error, an exception while importing) is said before anything is sent.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from osmosis_ai.errors import OsmosisError
from osmosis_ai.process_environment import python_environment
from osmosis_ai.supervision import ChildProcess, exit_words

TIMEOUT_S = 60.0
HINT = (
    'importing the entrypoint must not fail, nor serve: start the server under `if __name__ == "__main__":`'
)
_PLACEHOLDER = "placeholder-of-the-preflight"
_TAIL_BYTES = 2000
# Without the current directory in front: its modules must not shadow those that the probe itself needs.
_PROBE = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "from osmosis_ai.services.rollouts.entrypoint_probe import main; main(*sys.argv[1:])"
)


@dataclass(frozen=True)
class ImportOutcome:
    """How the import of an entrypoint went.

    Attributes:
        kind: ``unknown`` where packages are missing that the platform installs, ``late`` when it was still going on
            at the time limit.
        entrypoint: the script, relative to the workspace directory.
        problem: what went wrong, in a sentence; empty for an import that succeeded.
        file: the rollout's own file that failed, relative to the workspace directory, where that is known.
        line: the line in it.
        details: what a program may want to know.
        hint: what mends the problem.
    """

    kind: Literal["imported", "unknown", "late", "failed"]
    entrypoint: str
    problem: str = ""
    file: str | None = None
    line: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    hint: str = HINT

    def require(self, command: str) -> ImportOutcome:
        """Return the outcome unless it is that the code cannot be imported.

        Args:
            command: what the user ran (``eval submit``).

        Raises:
            OsmosisError: it cannot; the details say where.
        """
        if self.kind != "failed":
            return self
        where = f"{self.file}, line {self.line}" if self.file is not None else self.entrypoint
        raise OsmosisError(
            f"`osmosis {command}` preflight failed for `{self.entrypoint}`.\n  {where}: {self.problem}",
            details={"entrypoint": self.entrypoint, **self.details},
            hint=self.hint,
        )


def served_elsewhere(entrypoint: str) -> ImportOutcome:
    """Return what is known of an agent of which nothing is here: nothing, before a run asks it."""
    return ImportOutcome(
        "unknown", entrypoint, f"`{entrypoint}` is served elsewhere: the run asks it when it starts."
    )


def import_entrypoint(
    rollout_dir: Path,
    entrypoint: str,
    *,
    env: Mapping[str, str],
    secret_names: tuple[str, ...] = (),
    timeout_s: float = TIMEOUT_S,
) -> ImportOutcome:
    """Import a rollout's entrypoint in a process of its own.

    Args:
        rollout_dir: the rollout's directory.
        entrypoint: its script, relative to that.
        env: variables that the run will have.
        secret_names: variables that it will have too; a placeholder stands in for each value.
        timeout_s: seconds after which it is given up.
    """
    from osmosis_ai.driving.framework_extras import undeclared_framework
    from osmosis_ai.driving.requirements import read_project, unmet_requirements

    shown = f"rollouts/{rollout_dir.name}/{entrypoint}"
    undeclared = undeclared_framework(rollout_dir, entrypoint)
    if undeclared is not None:
        # It may well be installed here; whoever builds the environment goes by what is written.
        where = undeclared.where
        file = f"rollouts/{rollout_dir.name}/{where.file}"
        details = {"extra": where.extra, "file": file, "line": where.line}
        return ImportOutcome(
            "failed", shown, undeclared.problem, file, where.line, details, hint=undeclared.hint
        )
    project = read_project(rollout_dir)
    unmet = unmet_requirements(project) if project is not None else []
    if unmet:
        problem = f"`{shown}` was not imported here: {'; '.join(unmet)}. The platform builds its environment."
        return ImportOutcome("unknown", shown, problem)
    # To import needs no key: code that nobody has read yet never sees a real one here.
    variables = {**python_environment(os.environ), **dict.fromkeys(secret_names, _PLACEHOLDER), **env}
    with tempfile.TemporaryDirectory(prefix="osmosis-preflight-") as scratch:
        report = Path(scratch) / "report.json"
        output = Path(scratch) / "output.txt"
        command = [sys.executable, "-c", _PROBE, entrypoint, str(report)]
        status = ChildProcess(command, env=variables, cwd=rollout_dir, stdout=output).finish(timeout_s)
        if status is None:
            return ImportOutcome("late", shown, f"`{shown}` was still importing after {timeout_s:g} s.")
        said = output.read_bytes()[-_TAIL_BYTES:].decode("utf-8", "replace").strip()
        found = _read(report) or {"error": said or f"it ended with {exit_words(status)}"}
    if found.get("outcome") == "imported":
        return ImportOutcome("imported", shown)
    if found.get("outcome") == "module_not_found":
        return ImportOutcome("unknown", shown, f"`{shown}` was not imported here: {found.get('error')}.")
    place = (
        {"file": f"rollouts/{rollout_dir.name}/{found['file']}", "line": found["line"]}
        if "file" in found
        else {}
    )
    return ImportOutcome("failed", shown, str(found.get("error")), **place, details=found)


def _read(report: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(report.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
