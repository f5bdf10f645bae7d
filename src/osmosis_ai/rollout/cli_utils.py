"""Find agent loops in entrypoints without running them, and load user code named by ``module:attribute``."""

from __future__ import annotations

import ast
import importlib
import os
import site
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .core.exceptions import AgentLoopLoadError

if TYPE_CHECKING:
    from .core.base import RolloutAgentLoop

AGENT_NAME = "agent_loop"
APP_NAME = "app"
EVAL_FNS_NAME = "eval_fns"

_SERVES_BY_ITSELF = "create_rollout_server"


def load_agent_loop(path: str) -> RolloutAgentLoop:
    """Return the agent loop that ``path`` names: an object, or a class that needs no arguments.

    Raises AgentLoopLoadError with the reason and the line of user code.
    """
    from .core.base import RolloutAgentLoop

    found = load_attribute(path, what="agent", example="server:agent_loop")
    if isinstance(found, type):
        if not issubclass(found, RolloutAgentLoop):
            raise AgentLoopLoadError(f"{path} is the class {found.__name__}, which is no RolloutAgentLoop")
        try:
            return found()
        except (Exception, SystemExit) as error:
            raise AgentLoopLoadError(
                f"{path} cannot be built without arguments: {describe_failure(error)}",
                hint="name an object that your module builds instead",
            ) from error
    if isinstance(found, RolloutAgentLoop):
        return found
    hint = None
    if type(found).__name__ == "FastAPI":
        hint = "name the agent loop that the app was made from, not the app"
    raise AgentLoopLoadError(f"{path} is of type {type(found).__name__}, no RolloutAgentLoop", hint=hint)


def load_attribute(path: str, *, what: str, example: str) -> Any:
    """Return the object named by ``module:attribute``, searching the working directory first.

    ``what`` is the expected object, and ``example`` a path to one, for error messages.
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
    """Import a module from the working directory or the module path."""
    directory = str(Path.cwd())
    if sys.path[:1] != [directory]:
        sys.path.insert(0, directory)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise AgentLoopLoadError(
                f"there is no module '{name}' for the {what} in {directory}", hint=_module_hint(name)
            ) from error
        raise AgentLoopLoadError(f"module '{name}' failed on import: {describe_failure(error)}") from error


def describe_failure(error: BaseException) -> str:
    """Format an exception of user code as one line: type, text and the last line of user code."""
    from .backend import text_of

    lines = text_of(error).strip().splitlines()
    message = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    if isinstance(error, SyntaxError) and error.filename:
        return f"{message} ({_shown(error.filename)}:{error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_user_file(frame.filename)]
    if not own:
        return message
    return f"{message} ({_shown(own[-1].filename)}:{own[-1].lineno}, in {own[-1].name})"


def is_user_file(filename: str) -> bool:
    """Return whether a file is the user's: not part of Python, an installed package or this package."""
    if filename.startswith("<"):
        return False
    file = Path(filename).resolve()
    paths = sysconfig.get_paths()
    ours = str(Path(__file__).parents[1])
    foreign = {paths["stdlib"], paths["purelib"], paths["platlib"], *site.getsitepackages(), ours}
    return not any(file.is_relative_to(Path(place).resolve()) for place in foreign)


def _shown(filename: str) -> str:
    return filename.removeprefix(f"{Path.cwd()}{os.sep}")


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


def names_an_attribute(entrypoint: str) -> bool:
    """Return whether an entrypoint is ``module:attribute`` rather than a file."""
    module, colon, attribute = entrypoint.rpartition(":")
    return bool(colon and attribute.isidentifier() and all(map(str.isidentifier, module.split("."))))


def holds_an_agent_loop(entrypoint: Path) -> bool:
    """Return whether a file binds ``agent_loop``, or this package's ``app = create_app(…)``, at its top level.

    False for a file that creates its own rollout server, and for an unreadable one.
    """
    try:
        return is_agent_loop_module(ast.parse(entrypoint.read_bytes()))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return False


def binds_eval_fns(tree: ast.Module) -> bool:
    """Return whether a module binds ``eval_fns`` at its top level."""
    return any(name == EVAL_FNS_NAME for name, _ in _bindings(tree.body))


def is_agent_loop_module(tree: ast.Module) -> bool:
    """Apply :func:`holds_an_agent_loop` to a parsed module."""
    if any(last_name(node) == _SERVES_BY_ITSELF for node in ast.walk(tree)):
        return False
    bound = dict(_bindings(tree.body))
    if AGENT_NAME in bound:
        return True
    made = bound.get(APP_NAME)
    if not isinstance(made, ast.Call):
        return False
    ours = {
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
        if (getattr(node, "module", "") or alias.name).partition(".")[0] == "osmosis_ai"
    }
    # A user's own function of that name does not count.
    root, *rest = ast.unparse(made.func).split(".")
    return root in ours and (not rest or rest[-1] == "create_app")


def _bindings(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield the names bound at the top level and their values, also in ``if`` and ``try`` blocks."""
    for node in body:
        if isinstance(node, ast.Assign):
            yield from ((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            yield node.target.id, node.value
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, None) for alias in node.names)
        elif isinstance(node, ast.If):
            # Such a branch is for the main program or for type checkers.
            elsewhere = any(last_name(part) in ("__name__", "TYPE_CHECKING") for part in ast.walk(node.test))
            yield from _bindings(node.orelse if elsewhere else node.body + node.orelse)
        elif isinstance(node, ast.Try):
            handled = (statement for handler in node.handlers for statement in handler.body)
            yield from _bindings([*node.body, *handled, *node.orelse, *node.finalbody])


def last_name(node: ast.AST) -> str:
    """Return the last name of an expression or import: ``b`` of ``a.b[c](d)``; "" without one."""
    while isinstance(node, (ast.Call, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    if isinstance(node, ast.alias):
        return node.name
    return getattr(node, "attr", getattr(node, "id", ""))
