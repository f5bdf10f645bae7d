"""Every way a command can end badly, told once: a sentence for people or an envelope for scripts."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from osmosis_ai.cli.output.context import OutputContext
from osmosis_ai.errors import OsmosisError

USAGE_STATUS, INTERRUPTED_STATUS = 2, 130
_OTHER_OPTIONS = {"--baseline": ("--against",), "--against": ("--baseline",)}
"""Options that are easily taken for one another: what one command calls the baseline, another does not."""
_ROOT_OPTIONS = ("--env-file", "--platform", "--version", "-V")


class Failure(NamedTuple):
    """What is said about an error, and the exit status it gives."""

    status: int
    code: str
    message: str
    details: Mapping[str, Any]
    hint: str | None
    shown: str


def report(output: OutputContext, error: BaseException, words: Sequence[str]) -> int:
    """Write ``error`` to stderr in the mode of ``output`` and return the exit status."""
    if _is_interruption(error):
        if output.mode != "json":
            output.note("Interrupted.")
        return INTERRUPTED_STATUS
    failure = classify(error)
    if output.mode == "json":
        from osmosis_ai.cli.output.envelopes import error_envelope

        envelope = error_envelope(
            command=command_path(words),
            code=failure.code,
            message=failure.message,
            details=failure.details,
            cause=type(error).__name__,
            # A hint that fixes the error is also for programs; a pointer to the help is not.
            hint=failure.hint if isinstance(error, OsmosisError) else None,
        )
        output.say_json(envelope)
    else:
        output.error(failure.shown, hint=failure.hint)
    if failure.code == "INTERNAL" and os.environ.get("OSMOSIS_DEBUG"):
        output.say("".join(traceback.format_exception(error)).rstrip())
    return failure.status


def classify(error: BaseException) -> Failure:
    """Return what to say about ``error``."""
    if isinstance(error, OsmosisError):
        return Failure(1, error.code, error.message, error.details, error.hint, error.message)
    if hasattr(error, "format_message"):
        return _usage_failure(error)
    return _internal_failure(error)


def command_path(words: Sequence[str]) -> str:
    """Return ``eval run`` for the commands resolved so far, ``<root>`` for none."""
    return " ".join(words) or "<root>"


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
    from osmosis_ai.cli.registry import MODES
    from osmosis_ai.config.issues import nearest

    # The dashes that all options share say nothing.
    options = {name.lstrip("-"): name for name in (*known, *MODES) if name.startswith("--")}
    meant = {name.lstrip("-"): others for name, others in _OTHER_OPTIONS.items() if {*others} & {*known}}
    found = nearest(option.lstrip("-"), [*options, *meant], most=3)
    return list(dict.fromkeys(options.get(name) or meant[name][0] for name in found))


def _internal_failure(error: BaseException) -> Failure:
    text = str(error).strip()
    if isinstance(error, OSError) and error.strerror:
        shown = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
        hint = None
    else:
        shown = f"{type(error).__name__}: {text}" if text else type(error).__name__
        hint = "this is a bug in Osmosis; set OSMOSIS_DEBUG=1 and run it again to see where"
    return Failure(
        1,
        "INTERNAL",
        "An unexpected internal error occurred.",
        {"exception_type": type(error).__name__},
        hint,
        shown,
    )


def _is_interruption(error: BaseException) -> bool:
    # Typer's Abort, by name so that a failure without Typer stays without it.
    return isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Abort"
