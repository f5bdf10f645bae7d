"""Shell completion by Typer, and the names of runs and other things for it.

One line in the shell's start-up file turns it on::

    eval "$(_OSMOSIS_COMPLETE=source_bash osmosis)"           # ~/.bashrc
    eval "$(_OSMOSIS_COMPLETE=source_zsh osmosis)"            # ~/.zshrc, after compinit
    _OSMOSIS_COMPLETE=source_fish osmosis | source            # ~/.config/fish/config.fish
"""

from __future__ import annotations

import io
import os
import re
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_ai.services.names import Kind

COMPLETION_ENV = "_OSMOSIS_COMPLETE"
_MODE = re.compile(r"(?<!\S)--(json|plain)\s")
# Longer than this a key without effect feels broken.
LIMIT_S = 1.5
# The kind of runs that a group's commands take, if it is not evaluations.
_KINDS: Mapping[str, Kind] = {"train": "train", "benchmark": "benchmark_run"}


def complete(instruction: str) -> int:
    """Answer one request of a shell on stdout and return the exit status."""
    from typer._completion_classes import completion_init
    from typer.completion import shell_complete

    from osmosis_ai.cli.root import PROGRAM, build_root

    completion_init()
    # The modes go anywhere on the line, and no command has them as options.
    for variable in ("COMP_WORDS", "_TYPER_COMPLETE_ARGS"):
        if variable in os.environ:
            os.environ[variable], removed = _MODE.subn("", os.environ[variable])
            os.environ["COMP_CWORD"] = str(int(os.environ.get("COMP_CWORD", 0)) - removed)
    return shell_complete(build_root(lambda **_: None), {}, PROGRAM, COMPLETION_ENV, instruction)


def complete_run(ctx: Any, incomplete: str) -> list[str]:
    """Return the names of runs of the command's kind that begin with what was typed."""
    group = next(iter(ctx.command_path.split()[1:]), "")
    return _names(ctx, _KINDS.get(group, "eval"), incomplete)


def complete_local_run(incomplete: str) -> list[str]:
    """Return the names of evaluations of this machine that begin with what was typed."""

    def look() -> list[str]:
        from osmosis_ai.services.eval_runs.resolver import local_names

        return local_names()

    return [name for name in _within(LIMIT_S, look) if name.startswith(incomplete)]


def complete_run_anywhere(ctx: Any, incomplete: str) -> list[str]:
    """Return the names of evaluations of this machine, then of the platform, that begin with what was typed."""
    return list(dict.fromkeys([*complete_local_run(incomplete), *_names(ctx, "eval", incomplete)]))


def _completing(kind: Kind) -> Callable[[Any, str], list[str]]:
    return lambda ctx, incomplete: _names(ctx, kind, incomplete)


complete_benchmark = _completing("benchmark")
complete_dataset = _completing("dataset")
complete_model = _completing("model")
complete_served_agent = _completing("rollout_server")


def _names(ctx: Any, kind: Kind, incomplete: str) -> list[str]:
    root = ctx.find_root().params
    found = _within(LIMIT_S, lambda: _ask(kind, root.get("env_file"), root.get("platform")))
    return [name for name in found if name.startswith(incomplete)]


def _ask(kind: Kind, env_file: Any, platform: str | None) -> list[str]:
    from osmosis_ai.cli.application import prepare_environment
    from osmosis_ai.cli.output.context import OutputContext
    from osmosis_ai.services.context import find_checkout_if_any, open_client
    from osmosis_ai.services.names import names_of

    unseen = OutputContext("plain", stdin=io.StringIO(), stdout=io.StringIO(), stderr=io.StringIO())
    prepare_environment(unseen, env_file=env_file, platform=platform)
    with open_client(find_checkout_if_any(), warn=lambda *_: None) as client:
        return names_of(client, kind, timeout_s=LIMIT_S)


def _within(limit_s: float, ask: Callable[[], list[str]]) -> list[str]:
    """Return what ``ask`` returns in time, nothing when it fails: looking up a host knows no time limit."""
    found: list[str] = []

    def look() -> None:
        try:
            found.extend(ask())
        except Exception:  # the process's edge: a shell's prompt is no place for an error
            return

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(limit_s)
    return list(found)
