"""The program's entry: the version needs no command, and no failure leaves a traceback behind."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

BROKEN_PIPE_STATUS = 141  # what a shell reports for a process that SIGPIPE ended
INTERRUPTED_STATUS = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status; ``osmosis_ai.cli.main(...)`` is the same."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        # Imports allocate many objects that stay: collecting garbage more rarely makes the start faster.
        gc.set_threshold(100_000)
    if sys.stdout is None or sys.stderr is None:
        _open_closed_streams()
    status = _run(arguments)
    if argv is None:
        if "threading" in sys.modules:
            _quit_when_interrupted(status)
        # Otherwise the interpreter collects garbage before it ends: 0.2 s with NumPy and SciPy.
        gc.freeze()
    return status


def _run(arguments: Sequence[str]) -> int:
    try:
        if arguments in (["-V"], ["--version"]):
            from osmosis_ai._version import __version__

            sys.stdout.write(f"osmosis-ai {__version__}\n")
            status = 0
        elif request := os.environ.get("_OSMOSIS_COMPLETE"):
            from osmosis_ai.cli.completion import complete

            status = complete(request)
        else:
            status = _run_or_help(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        _detach_stdout()
        return BROKEN_PIPE_STATUS
    except KeyboardInterrupt:
        return INTERRUPTED_STATUS
    except OSError as error:
        sys.stderr.write(f"Error: cannot write the result: {error.strerror}\n")
        _detach_stdout()
        return 1
    return status


def _run_or_help(arguments: Sequence[str]) -> int:
    from osmosis_ai.cli.registry import root_help, split_modes

    modes, rest = split_modes(arguments)
    if len(modes) < 2 and (not rest or rest[0] in ("-h", "--help")):
        sys.stdout.write(root_help())
        return 0
    from osmosis_ai.cli.application import run

    return run(modes, rest)


def _quit_when_interrupted(status: int) -> None:
    """Let Ctrl-C end the process at once from here on, with the status of its command."""
    import signal

    def leave(*_: object) -> None:
        os._exit(status)

    # A process in the background ignores SIGINT and must keep ignoring it.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)


def _open_closed_streams() -> None:
    """Give a process that was started without stdout or stderr (`>&-`) something to write to."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - for good


def _detach_stdout() -> None:
    """Keep the interpreter's own flush at exit from complaining about what could not be written."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, sys.stdout.fileno())
    os.close(descriptor)


class _Callable(type(sys)):  # type: ignore[misc]  # `types.ModuleType`, without an import
    """This module: its package has it under the name that code and scripts of 0.2 call."""

    def __call__(self, argv: Sequence[str] | None = None) -> int:
        return main(argv)


sys.modules[__name__].__class__ = _Callable

if __name__ == "__main__":
    sys.exit(main())
