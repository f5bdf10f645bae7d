"""Load user code named by ``module:attribute``, relative to the working directory.

Any failure of the user's module becomes a one-line error with the last line of user code.
"""

from __future__ import annotations

import importlib
import site
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .exceptions import AgentLoopLoadError

if TYPE_CHECKING:
    from .agent import RolloutAgentLoop


def load_agent_loop(path: str) -> RolloutAgentLoop:
    """Return the agent loop that ``path`` names: an object, or a class that needs no arguments.

    Args:
        path: ``module:attribute``. The working directory is searched first.

    Raises:
        AgentLoopLoadError: It cannot be loaded. The message has the reason and the line of user code.
    """
    from .agent import RolloutAgentLoop

    found = load_attribute(path, what="agent", example="server:agent_loop")
    if isinstance(found, type):
        if not issubclass(found, RolloutAgentLoop):
            raise AgentLoopLoadError(f"{path} is the class {found.__name__}, which is no RolloutAgentLoop")
        return _build(found, path)
    if isinstance(found, RolloutAgentLoop):
        return found
    hint = None
    if type(found).__name__ == "FastAPI":
        hint = "name the agent loop that the app was made from, not the app"
    raise AgentLoopLoadError(f"{path} is of type {type(found).__name__}, no RolloutAgentLoop", hint=hint)


def load_attribute(path: str, *, what: str, example: str) -> Any:
    """Return the object named by ``module:attribute``. The working directory comes first on the module path.

    Args:
        path: Split at its last colon.
        what: The expected object, for error messages.
        example: An example path.

    Raises:
        AgentLoopLoadError: It cannot be loaded.
    """
    module_name, _, attribute = path.rpartition(":")
    if not module_name or not attribute:
        raise AgentLoopLoadError(f"{path!r} does not name the {what}: write module:attribute, e.g. {example}")
    module = import_user_module(module_name, what=what)
    try:
        return getattr(module, attribute)
    except AttributeError:
        names = [name for name in vars(module) if not name.startswith("_")]
        hint = _hidden_module_hint(module_name, module) or _closest(attribute, names)
        raise AgentLoopLoadError(
            f"module '{module_name}' has no attribute '{attribute}'", hint=hint
        ) from None


def import_user_module(name: str, *, what: str) -> Any:
    """Import a user module.

    Args:
        name: Dotted name.
        what: Why it is imported, for error messages.

    Raises:
        AgentLoopLoadError: The module does not exist, or fails on import in any way.
    """
    directory = str(Path.cwd())
    if sys.path[:1] != [directory]:
        sys.path.insert(0, directory)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and _is_part_of(error.name, name):
            raise AgentLoopLoadError(
                f"there is no module '{name}' for the {what} in {directory}", hint=_module_hint(name)
            ) from error
        raise AgentLoopLoadError(f"module '{name}' failed on import: {describe_failure(error)}") from error


def describe_failure(error: BaseException) -> str:
    """Format an exception of user code as one line: type, text and the last line of user code."""
    from ..backend.local.in_process import text_of

    lines = text_of(error).strip().splitlines()
    told = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    where = _last_own_frame(error)
    return f"{told} ({where})" if where else told


def _last_own_frame(error: BaseException) -> str | None:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_shown(error.filename)}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_user_file(frame.filename)]
    return f"{_shown(own[-1].filename)}:{own[-1].lineno}, in {own[-1].name}" if own else None


def is_user_file(filename: str) -> bool:
    """Return whether a file is the user's: not part of Python, an installed package or this package."""
    if filename.startswith("<"):
        return False
    file = Path(filename).resolve()
    paths = sysconfig.get_paths()
    ours = str(Path(__file__).parents[2])
    foreign = {paths["stdlib"], paths["purelib"], paths["platlib"], *site.getsitepackages(), ours}
    return not any(file.is_relative_to(Path(place).resolve()) for place in foreign)


def _shown(filename: str) -> str:
    file = Path(filename)
    return str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else filename


def _is_part_of(missing: str, name: str) -> bool:
    return name == missing or name.startswith(f"{missing}.")


def _module_hint(name: str) -> str | None:
    stem = name.removesuffix(".py").replace("/", ".").strip(".")
    if stem != name:
        return f"a module's name has neither slashes nor a suffix: {stem}"
    names = [file.stem for file in Path.cwd().glob("*.py")]
    return _closest(name, names) or "run the command in the directory that holds the module"


def _hidden_module_hint(name: str, module: Any) -> str | None:
    """Return a hint if a local file has the name of a module already imported from another path."""
    own = Path.cwd() / f"{name}.py"
    file = getattr(module, "__file__", None)
    if not own.is_file() or (file is not None and Path(file).resolve() == own.resolve()):
        return None
    return f"there is another module '{name}' ({file or 'built in'}); call {own.name} something else"


def _closest(word: str, known: list[str]) -> str | None:
    from difflib import get_close_matches

    near = get_close_matches(word, known, n=1)
    return f"did you mean '{near[0]}'?" if near else None


def _build(kind: type[RolloutAgentLoop], path: str) -> RolloutAgentLoop:
    try:
        return kind()
    except (Exception, SystemExit) as error:
        raise AgentLoopLoadError(
            f"{path} cannot be built without arguments: {describe_failure(error)}",
            hint="name an object that your module builds instead",
        ) from error
