"""Imports a rollout's entrypoint once, in a process of its own, and writes down how that went.

Started by :mod:`osmosis_ai.services.rollouts.preflight` in the rollout's directory. The module is imported, not run as ``__main__``, so nothing is served;
its siblings can be imported by their names and relatively.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import traceback
import types
from pathlib import Path

from osmosis_ai.errors import OsmosisError
from osmosis_ai.rollout.loop.entrypoints import holds_an_agent_loop
from osmosis_ai.supervision import watch_parent

_PACKAGE = "_osmosis_entrypoint"


def main(entrypoint: str, report: str) -> None:
    """Import ``entrypoint`` and write the outcome to ``report`` as JSON."""
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
            _check_agent_loop(module, path)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the user's code may as well call `sys.exit`
        outcome = _failure(error, project)
    Path(report).write_text(json.dumps(outcome), encoding="utf-8")


def _check_agent_loop(module: types.ModuleType, path: Path) -> None:
    """Check that the agent and its eval functions are what a rollout's server can host.

    Raises:
        OsmosisError: they are not.
    """
    from osmosis_ai.rollout.loop.hosting import agent_of, hosted_loop
    from osmosis_ai.rollout.loop.workflow import HostedLoopSettings

    hosted_loop(agent_of(module, path.name), module, HostedLoopSettings())


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
        return {"outcome": kind, "error": f"{type(error).__name__}: {error.msg}", **_place(error, project)}
    return {"outcome": kind, "error": said, **_place(error, project)}


def _place(error: BaseException, project: Path) -> dict[str, object]:
    """Return the innermost place of the rollout's own code."""
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        places.append((error.filename, error.lineno))
    for filename, line in reversed(places):
        path = Path(filename)
        if path.is_relative_to(project):
            return {"file": path.relative_to(project).as_posix(), "line": line}
    return {}
