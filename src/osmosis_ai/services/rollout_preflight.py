"""Check before a submit that a rollout's entrypoint imports on this machine.

Missing packages that only the platform installs are not a failure. A syntax error or an exception during the import
is reported before anything is sent. A child process imports the entrypoint under a module name other than
``__main__``, so it serves nothing. The entrypoint can import its siblings by name and relatively.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
import traceback
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from osmosis_ai.errors import OsmosisError
from osmosis_ai.process_environment import python_environment
from osmosis_ai.processes.child_process import ChildProcess, describe_exit, watch_parent

TIMEOUT_S = 60.0
HINT = 'importing the entrypoint must not start a server: start it under `if __name__ == "__main__":`'
_PLACEHOLDER = "placeholder-of-the-preflight"
_PACKAGE = "_osmosis_entrypoint"
_TAIL_BYTES = 2000
# The current directory is not on the path: its modules must not shadow those that the probe needs.
_PROBE = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "from osmosis_ai.services.rollout_preflight import probe_entrypoint; probe_entrypoint(*sys.argv[1:])"
)


@dataclass(frozen=True)
class ImportOutcome:
    """The result of importing an entrypoint: a script, relative to the workspace directory.

    ``kind`` is ``unknown`` if packages are missing that the platform installs, and ``late`` if the import exceeded the
    time limit. ``file`` and ``line`` are the position in the rollout's own code that failed, if known.
    """

    kind: Literal["imported", "unknown", "late", "failed"]
    entrypoint: str
    problem: str = ""
    file: str | None = None
    line: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    hint: str = HINT

    def require(self, command: str) -> ImportOutcome:
        """Return the outcome, or raise an error for the user's ``command`` if the code cannot be imported."""
        if self.kind != "failed":
            return self
        where = f"{self.file}, line {self.line}" if self.file is not None else self.entrypoint
        raise OsmosisError(
            f"`osmosis {command}` preflight failed for `{self.entrypoint}`.\n  {where}: {self.problem}",
            details={"entrypoint": self.entrypoint, **self.details},
            hint=self.hint,
        )


def remote_agent(entrypoint: str) -> ImportOutcome:
    """Return the outcome for a remote agent, which cannot be checked before a run calls it."""
    return ImportOutcome(
        "unknown", entrypoint, f"'{entrypoint}' is a remote agent: the run checks it when it starts."
    )


def import_entrypoint(
    rollout_dir: Path,
    entrypoint: str,
    *,
    env: Mapping[str, str],
    secret_names: tuple[str, ...] = (),
    timeout_s: float = TIMEOUT_S,
) -> ImportOutcome:
    """Import a rollout's entrypoint in a child process.

    ``env`` are variables that the run will have. Each of ``secret_names`` gets a placeholder as its value.
    """
    from osmosis_ai.controller.environments import read_project, unmet_requirements

    shown = f"rollouts/{rollout_dir.name}/{entrypoint}"
    project = read_project(rollout_dir)
    unmet = unmet_requirements(project) if project is not None else []
    if unmet:
        problem = f"`{shown}` was not imported here: {'; '.join(unmet)}. The platform builds its environment."
        return ImportOutcome("unknown", shown, problem)
    # An import needs no key, so unreviewed code never gets a real one here.
    variables = {**python_environment(os.environ), **dict.fromkeys(secret_names, _PLACEHOLDER), **env}
    with tempfile.TemporaryDirectory(prefix="osmosis-preflight-") as scratch:
        report = Path(scratch) / "report.json"
        output = Path(scratch) / "output.txt"
        command = [sys.executable, "-c", _PROBE, entrypoint, str(report)]
        status = ChildProcess(command, env=variables, cwd=rollout_dir, stdout=output).finish(timeout_s)
        if status is None:
            return ImportOutcome("late", shown, f"`{shown}` was still importing after {timeout_s:g} s.")
        said = output.read_bytes()[-_TAIL_BYTES:].decode("utf-8", "replace").strip()
        found = _read(report) or {"error": said or f"it ended with {describe_exit(status)}"}
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
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def probe_entrypoint(entrypoint: str, report: str) -> None:
    """In the child process: import ``entrypoint`` and write the outcome to ``report`` as JSON."""
    # Imported before the rollout's directories are on the path: its modules must not shadow ours.
    from osmosis_ai.rollout.cli_utils import holds_an_agent_loop

    watch_parent()
    path, project = Path(entrypoint).resolve(), Path.cwd()
    places = dict.fromkeys(str(place) for place in (path.parent, project / "src", project) if place.is_dir())
    sys.path[:] = [*places, *(place for place in sys.path if place not in places)]
    sys.argv = [str(path)]
    sys.dont_write_bytecode = True
    outcome: dict[str, object] = {"outcome": "imported"}
    try:
        module = _import(path)
        if holds_an_agent_loop(path):
            from osmosis_ai.rollout.hosting import HostedLoopSettings, agent_of, module_backend

            # Fails if a rollout server cannot host the agent and its eval functions.
            module_backend(agent_of(module, path.name), module, HostedLoopSettings())
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # user code may call `sys.exit`
        outcome = _failure(error, project)
    Path(report).write_text(json.dumps(outcome), encoding="utf-8")


def _import(path: Path) -> types.ModuleType:
    package = types.ModuleType(_PACKAGE)
    package.__path__ = [str(path.parent)]
    sys.modules[_PACKAGE] = package
    name = f"{_PACKAGE}.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path.name} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _failure(error: BaseException, project: Path) -> dict[str, object]:
    kind = "module_not_found" if isinstance(error, ModuleNotFoundError) else "failed"
    said = (
        error.message
        if isinstance(error, OsmosisError)
        else "".join(traceback.format_exception_only(type(error), error)).strip()
    )
    if isinstance(error, SyntaxError):
        said = f"{type(error).__name__}: {error.msg}"
    return {"outcome": kind, "error": said, **_place(error, project)}


def _place(error: BaseException, project: Path) -> dict[str, object]:
    """Return the innermost position in the rollout's own code."""
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        places.append((error.filename, error.lineno))
    for filename, line in reversed(places):
        path = Path(filename)
        if path.is_relative_to(project):
            return {"file": path.relative_to(project).as_posix(), "line": line}
    return {}
