"""Shell completion: the shell asks through the environment, the answer is one word a line.

Turn it on with one line in the shell's start-up file::

    eval "$(_OSMOSIS_COMPLETE=source_bash osmosis)"           # ~/.bashrc
    eval "$(_OSMOSIS_COMPLETE=source_zsh osmosis)"            # ~/.zshrc, after compinit
    _OSMOSIS_COMPLETE=source_fish osmosis | source            # ~/.config/fish/config.fish
"""

from __future__ import annotations


def complete(instruction: str) -> int:
    """Answer one request of the shell (``source_bash``, ``complete_zsh`` …) on stdout."""
    import typer.completion

    from osmosis_ai.cli.root import PROGRAM, build_root

    typer.completion.completion_init()
    root = build_root(lambda **_: None)
    return int(typer.completion.shell_complete(root, {}, PROGRAM, "_OSMOSIS_COMPLETE", instruction))
