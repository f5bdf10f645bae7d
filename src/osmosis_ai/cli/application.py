"""One command line from its arguments to its exit status: what is settled before the command, and every bad ending."""

from __future__ import annotations

import logging
import os
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from osmosis_ai._version import __version__
from osmosis_ai.api.platform_url import (
    PLATFORM_URL_ENV,
    TOKEN_ENV,
    TOKEN_PLATFORM_ENV,
    ensure_secure,
    is_secure,
    normalize_platform_url,
    select_by_option,
)
from osmosis_ai.cli.output.context import Declined, Mode, OutputContext, use
from osmosis_ai.cli.output.results import SCHEMA_VERSION, Result, dumps
from osmosis_ai.cli.registry import MODES
from osmosis_ai.cli.root import PROGRAM, TRAIL, CommandGroup, build_root
from osmosis_ai.config.issues import nearest
from osmosis_ai.errors import OsmosisError, UsageError
from osmosis_ai.workspace.git import checkout_root

if TYPE_CHECKING:
    from osmosis_ai.services.env_file import EnvFile

USAGE_STATUS, INTERRUPTED_STATUS = 2, 130
_OTHER_OPTIONS = {"--baseline": ("--against",), "--against": ("--baseline",)}
"""Options with different names in different commands."""
_ROOT_OPTIONS = ("--env-file", "--platform", "--version", "-V")


def run(modes: Sequence[Mode], arguments: list[str]) -> int:
    """Run one command line, of which ``modes`` were taken out, and return its exit status."""
    if os.environ.get("_OSMOSIS_LIFELINE_FD"):
        # A parent that tied this process to itself (the demo) ends it with its own end.
        from osmosis_ai.processes.child_process import watch_parent

        watch_parent()
    output = OutputContext("json" if "json" in modes else modes[0] if modes else "rich")
    use(output)
    _write_any_text(output)
    trail: list[str] = []
    try:
        if len(modes) > 1:
            raise OsmosisError("--json and --plain are mutually exclusive.")
        return _run_command(output, arguments, trail)
    except BrokenPipeError:
        raise
    except Declined:
        output.stdout.write("Cancelled.\n")
        return 0
    except (Exception, KeyboardInterrupt) as error:
        # The names of a module that cannot be imported cannot be looked up either.
        names = [] if isinstance(error, ImportError) else _command_names(arguments)
        return report(output, error, max(names, trail, key=len))
    finally:
        use(None)


def _run_command(output: OutputContext, arguments: list[str], trail: list[str]) -> int:
    def start(env_file: Path | None, platform: str | None) -> None:
        prepare_environment(output, env_file=env_file, platform=platform)

    _silence_libraries()
    root = build_root(start)
    try:
        with root.make_context(PROGRAM, arguments) as context:
            context.meta[TRAIL] = trail
            result = root.invoke(context)
    except typer.Exit as exit_request:
        return exit_request.exit_code
    if isinstance(result, Result):
        return output.emit(result)
    if result is None and output.mode == "rich":
        return 0
    raise TypeError(f"the command produced no structured output (it returned {type(result).__name__})")


def _command_names(arguments: Sequence[str]) -> list[str]:
    """Return the names of the line's commands, for an error that came before the parser reached them."""
    names: list[str] = []
    group: Any = build_root(None)
    words = iter(arguments)
    for word in words:
        if word.startswith("-") and not names:
            if word in ("--env-file", "--platform"):
                next(words, None)
        elif isinstance(group, CommandGroup) and (command := group.get_command(None, word)):
            names.append(word)
            group = command
        else:
            break
    return names


def _silence_libraries() -> None:
    """Keep the warnings and logs of libraries off stderr, which is the commands', unless debugging."""
    if os.environ.get("OSMOSIS_DEBUG"):
        return
    warnings.simplefilter("ignore")
    # Without any handler, Python writes logged warnings to stderr.
    logging.getLogger().addHandler(logging.NullHandler())


def _write_any_text(output: OutputContext) -> None:
    """Make writing text never fail for the stream's encoding; JSON is UTF-8 whatever the locale."""
    for stream in (output.stdout, output.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(encoding="utf-8" if output.mode == "json" else None, errors="backslashreplace")


# -- before the command ----------------------------------------------------------------------

_env_file: EnvFile | None = None


def prepare_environment(output: OutputContext, *, env_file: Path | None, platform: str | None) -> None:
    """Read the environment file and apply ``--platform``."""
    for name in (TOKEN_ENV, PLATFORM_URL_ENV, TOKEN_PLATFORM_ENV):
        if os.environ.get(name) == "":
            del os.environ[name]
    global _env_file
    _env_file = None
    if providers := sys.modules.get("osmosis_ai.llm.providers"):
        providers.FILE_ADDRESSES.clear()
    path = env_file or (checkout_root(Path.cwd()) or Path.cwd()) / ".env"
    # Some people keep a virtual environment in `.env`.
    if env_file is not None or (path.exists() and not path.is_dir()):
        from osmosis_ai.services.env_file import load_env_file

        _env_file = load_env_file(path.absolute(), os.environ, output.warn, named=env_file is not None)
    select_by_option(None)
    if platform is not None:
        use_platform(output, platform)
    elif value := os.environ.get(PLATFORM_URL_ENV):
        _refuse_insecure(output, normalize_platform_url(value))


def current_env_file() -> EnvFile | None:
    """Return the environment file of the command that runs, if there is one that counts."""
    return _env_file


def environment_with_file() -> dict[str, str]:
    """Return this process's variables and, behind them, the file's: for names that a config chose."""
    of_the_file = _env_file.secrets(_env_file.values) if _env_file is not None else {}
    return {**of_the_file, **{name: value for name, value in os.environ.items() if value}}


def use_platform(output: OutputContext, platform: str) -> None:
    """Use the platform at a URL that the user typed, whatever the environment says."""
    url = normalize_platform_url(platform)
    if "://" not in platform:
        output.note(f"Platform: {url}")
    os.environ[PLATFORM_URL_ENV] = url
    select_by_option(url)
    _refuse_insecure(output, url)


def _refuse_insecure(output: OutputContext, url: str) -> None:
    if not is_secure(url):
        output.warn(
            f"{url} is not HTTPS: tokens and secrets would be sent unencrypted.", code="INSECURE_PLATFORM_URL"
        )
        ensure_secure(url)


# -- bad endings ------------------------------------------------------------------------------


class Failure(NamedTuple):
    """The document of an error, and its exit status."""

    status: int
    code: str
    message: str
    details: Mapping[str, Any]
    hint: str | None
    shown: str


def report(output: OutputContext, error: BaseException, words: Sequence[str]) -> int:
    """Write ``error`` to stderr in the mode of ``output`` and return the exit status."""
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        if output.mode != "json":
            output.note("Interrupted.")
        return INTERRUPTED_STATUS
    if isinstance(error, UsageError):
        said = f"{error.message.rstrip('.')}; {error.hint}" if error.hint else error.message
        failure = Failure(USAGE_STATUS, error.code, said, {}, None, f"Invalid value: {said}")
    elif isinstance(error, OsmosisError):
        failure = Failure(1, error.code, error.message, error.details, error.hint, error.message)
    else:
        failure = _usage_failure(error) if hasattr(error, "format_message") else _internal_failure(error)
    if output.mode == "json":
        output.say_json(_error_envelope(failure, error, words))
    else:
        output.error(failure.shown, hint=failure.hint)
    if failure.code == "INTERNAL" and os.environ.get("OSMOSIS_DEBUG"):
        output.say("".join(traceback.format_exception(error)).rstrip())
    return failure.status


def _error_envelope(failure: Failure, error: BaseException, words: Sequence[str]) -> dict[str, Any]:
    details = dict(failure.details)
    try:
        dumps(details)
    except (TypeError, ValueError, RecursionError):
        details = {"details_omitted": type(error).__name__}
    shown: dict[str, Any] = {"code": failure.code, "message": failure.message, "details": details}
    # A hint that fixes the error is also for programs; a pointer to the help is not.
    if failure.hint and isinstance(error, OsmosisError):
        shown["hint"] = failure.hint
    return {
        "schema_version": SCHEMA_VERSION,
        "command": " ".join(words) or "<root>",
        "cli_version": __version__,
        "error": shown,
    }


def _usage_failure(error: Any) -> Failure:
    option = getattr(error, "option_name", None)
    context = getattr(error, "ctx", None)
    hint = f"see `{context.command_path} --help`" if context is not None else None
    details: dict[str, Any] = {}
    message = str(error)
    shown = error.format_message()
    if hasattr(error, "possibilities"):
        params = context.command.params if context is not None else []
        known = [name for each in params if not getattr(each, "hidden", False) for name in each.opts]
        near = _near_options(str(option), known)
        message = shown = f"No such option: {option}" + (f". Did you mean {near[0]}?" if near else "")
        if near:
            details["suggestions"] = near
    if option in _ROOT_OPTIONS and context is not None and context.parent is not None:
        command = context.command_path.removeprefix(context.find_root().command_path).strip()
        hint = f"{option} goes before the command: `osmosis {option} … {command}`"
    param = getattr(error, "param", None)
    if param is not None:
        details["parameter"] = max(param.opts, key=len) if param.param_type_name == "option" else param.name
    return Failure(USAGE_STATUS, "VALIDATION", message, details, hint, shown)


def _near_options(option: str, known: Sequence[str]) -> list[str]:
    # The parser never sees the modes, which are taken out of the line before it: `--jsn` is no `--yes`.
    # All options begin with dashes, so they are not compared.
    options = {name.lstrip("-"): name for name in (*known, *MODES) if name.startswith("--")}
    meant = {name.lstrip("-"): others for name, others in _OTHER_OPTIONS.items() if {*others} & {*known}}
    found = nearest(option.lstrip("-"), [*options, *meant], most=3)
    return list(dict.fromkeys(options.get(name) or meant[name][0] for name in found))


def _internal_failure(error: BaseException) -> Failure:
    text = str(error).strip()
    if isinstance(error, OSError) and error.strerror:
        message = shown = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
        hint = None
    else:
        message = "An unexpected internal error occurred."
        shown = f"{type(error).__name__}: {text}" if text else type(error).__name__
        hint = "this is a bug in Osmosis; OSMOSIS_DEBUG=1 prints a traceback"
    return Failure(1, "INTERNAL", message, {"exception_type": type(error).__name__}, hint, shown)
