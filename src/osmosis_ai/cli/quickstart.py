"""`osmosis quickstart`: from nothing to a workspace directory and a task for a coding agent; and `osmosis upgrade`."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import OutputContext, current
from osmosis_ai.cli.output.results import OperationResult, Text
from osmosis_ai.errors import InteractiveRequiredError

# Commands that copy text to the clipboard: the first that is there.
_CLIPBOARDS = (("pbcopy",), ("wl-copy",), ("xclip", "-selection", "clipboard"), ("clip.exe",))
_CLIPBOARD_TIMEOUT_S = 5.0


def quickstart(
    line: typer.Context,
    workspace: Annotated[
        str | None,
        typer.Option(
            "--workspace",
            "-w",
            metavar="NAME",
            help="Name of the workspace (default: the one of this directory, or your choice).",
        ),
    ] = None,
) -> OperationResult:
    """Log in, choose a workspace and clone its repository.

    The last step prints a task for a coding agent. Completed steps are skipped. Esc or Ctrl-C at a question ends the
    command with status 130.

    Examples:
        osmosis quickstart
    """
    output = current()
    if not output.interactive:
        raise InteractiveRequiredError(
            "The quickstart requires a terminal.",
            hint="run `osmosis login --token -`, clone the workspace's repository, and run `osmosis doctor`",
        )
    from osmosis_ai.api.platform_url import active_platform, record_platform
    from osmosis_ai.services.quickstart import Quickstart

    done = Quickstart(_Guide(output), Path.cwd()).run(workspace)
    directory, prompt = Path(done["workspace_directory"]), done["agent_prompt"]
    if line.find_root().params.get("platform") is not None:
        record_platform(directory, active_platform().url)
    copied = _copy(prompt)
    here = directory == Path.cwd()
    return OperationResult(
        operation="quickstart",
        message=f"Ready: {directory}",
        resource=done,
        # Without a frame, which would be copied along.
        blocks=[
            Text(f"For your coding agent{' (copied to the clipboard)' if copied else ''}:", tone="strong"),
            Text(prompt),
        ],
        next_steps=[
            *([] if here else [f"Open the directory: cd {formats.shown_path(directory)}"]),
            "Check the directory: osmosis doctor",
            "Give the text above to your coding agent, or continue with: osmosis rollout init NAME",
        ],
    )


class _Guide:
    """Asks on the terminal; a cancelled question ends the command."""

    def __init__(self, output: OutputContext) -> None:
        self._output = output

    def log_in(self) -> None:
        from osmosis_ai.cli.auth import log_in_with_device

        login = log_in_with_device(self._output, open_page=True)
        self._output.note(f"Logged in as {login.user.email}.")

    def choose(self, question: str, options: Sequence[str]) -> int:
        listed = [f"  {number}. {option}" for number, option in enumerate(options, start=1)]
        self._output.note("\n".join([question, *listed]))
        folded = [option.lower() for option in options]
        while True:
            typed = self.ask(f"1-{len(options)}").lower()
            if typed.isascii() and typed.isdigit() and 1 <= int(typed[:4]) <= len(options):
                return int(typed[:4]) - 1
            if folded.count(typed) == 1:
                return folded.index(typed)

    def ask(self, question: str) -> str:
        typed = self._output.ask_shown(question)
        if typed is None:
            raise KeyboardInterrupt
        return typed

    def tell(self, sentence: str) -> None:
        self._output.note(sentence)

    def warn(self, message: str, code: str | None = None) -> None:
        self._output.warn(message, code)


def _copy(text: str) -> bool:
    """Put ``text`` on the clipboard, where there is one."""
    command = next((words for words in _CLIPBOARDS if shutil.which(words[0])), None)
    if command is None:
        return False
    try:
        done = subprocess.run(
            command,
            input=text.encode(),
            timeout=_CLIPBOARD_TIMEOUT_S,
            check=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def upgrade() -> OperationResult:
    """Print the command that upgrades Osmosis.

    The command takes the newer version from where this installation came: a checkout, a directory or a Git repository.

    Examples:
        osmosis upgrade
    """
    from osmosis_ai._version import __version__
    from osmosis_ai.services.upgrade import upgrade_command

    method, command = upgrade_command()
    return OperationResult(
        operation="upgrade",
        message=command,
        resource={
            "installed_version": __version__,
            "latest_version": None,
            "method": method,
            "command": command,
        },
    )
