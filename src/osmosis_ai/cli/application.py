"""One command line from its arguments to its exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from osmosis_ai.cli.output.context import Mode, OutputContext

NARRATE_ENV = "_OSMOSIS_NARRATE"


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status."""
    if completion_request := os.environ.get("_OSMOSIS_COMPLETE"):
        from osmosis_ai.cli.completion import complete

        return complete(completion_request, arguments)
    from osmosis_ai.cli.registry import root_help, split_modes

    modes, rest = split_modes(arguments)
    if len(modes) < 2 and (not rest or rest[0] in ("-h", "--help")):
        sys.stdout.write(root_help())
        return 0
    return _run_in_mode(modes, rest)


def _run_in_mode(modes: list[Mode], rest: list[str]) -> int:
    from osmosis_ai.cli.output.context import Declined, OutputContext, use
    from osmosis_ai.cli.registry import COMMANDS
    from osmosis_ai.errors import OsmosisError

    _end_with_the_parent()
    # The demo shows what its commands do while it reads their results as JSON; theirs are not to narrate.
    narrates = os.environ.pop(NARRATE_ENV, None) is not None
    output = OutputContext("json" if "json" in modes else modes[0] if modes else "rich", narrates=narrates)
    use(output)
    _write_any_text(output)
    trail: list[str] = []
    try:
        if len(modes) > 1:
            raise OsmosisError("--json and --plain are mutually exclusive: choose one of them.")
        return _run_command(output, rest, trail)
    except BrokenPipeError:
        raise
    except Declined:
        output.stdout.write("Cancelled.\n")
        return 0
    except (Exception, KeyboardInterrupt) as error:
        from osmosis_ai.cli.failures import report

        return report(output, error, trail or [word for word in rest[:1] if word in COMMANDS])
    finally:
        use(None)


def _run_command(output: OutputContext, arguments: list[str], trail: list[str]) -> int:
    import typer

    from osmosis_ai.cli.output.results import RESULT_TYPES
    from osmosis_ai.cli.root import PROGRAM, TRAIL, build_root

    def start(env_file: Path | None, platform: str | None) -> None:
        from osmosis_ai.cli.startup import prepare_environment

        prepare_environment(output, env_file=env_file, platform=platform)

    _silence_libraries()
    root = build_root(start)
    try:
        with root.make_context(PROGRAM, arguments) as context:
            context.meta[TRAIL] = trail
            result = root.invoke(context)
    except typer.Exit as exit_request:
        return exit_request.exit_code
    if isinstance(result, RESULT_TYPES):
        return output.emit(result)
    if result is None and output.mode == "rich":
        return 0
    raise TypeError(f"the command produced no structured output (it returned {type(result).__name__})")


def _end_with_the_parent() -> None:
    """End when a parent that tied this process to itself (the demo) is gone."""
    if os.environ.get("_OSMOSIS_LIFELINE_FD"):
        from osmosis_ai.processes import watch_parent

        watch_parent()


def _silence_libraries() -> None:
    """Keep the warnings and logs of libraries off stderr, which is the commands', unless debugging."""
    if os.environ.get("OSMOSIS_DEBUG"):
        return
    import logging
    import warnings

    warnings.simplefilter("ignore")
    # With no handler at all Python writes what is logged as a warning to stderr.
    logging.getLogger().addHandler(logging.NullHandler())


def _write_any_text(output: OutputContext) -> None:
    """Make writing text never fail for the stream's encoding; JSON is UTF-8 whatever the locale."""
    for stream in (output.stdout, output.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(encoding="utf-8" if output.mode == "json" else None, errors="backslashreplace")
