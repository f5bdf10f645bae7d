"""Shell completion: the shell passes the words typed so far, the answer is one candidate a line.

The shell sets ``_OSMOSIS_COMPLETE`` and gives the words after the program's name, up to and with the
one under the cursor, as arguments. ``source_<shell>`` prints the shell's half of the protocol;
turning it on is one line in the shell's start-up file::

    eval "$(_OSMOSIS_COMPLETE=source_bash osmosis)"           # ~/.bashrc
    eval "$(_OSMOSIS_COMPLETE=source_zsh osmosis)"            # ~/.zshrc, after compinit
    _OSMOSIS_COMPLETE=source_fish osmosis | source            # ~/.config/fish/config.fish

Names of the first level come from the registry, so completing them imports no command. Where a path
is expected nothing is answered, and the shell completes file names itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from osmosis_ai.cli.registry import COMMANDS, MODES, OPTIONS, split_modes

COMPLETION_ENV = "_OSMOSIS_COMPLETE"

_BASH = r"""
_osmosis_completion() {
    local IFS=$'\n'
    COMPREPLY=($(_OSMOSIS_COMPLETE=complete_bash "$1" "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _osmosis_completion osmosis osmosis-ai osmosis_ai
"""

_ZSH = r"""
_osmosis_completion() {
    local -a candidates
    candidates=("${(@f)$(_OSMOSIS_COMPLETE=complete_zsh "${words[1]}" "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${candidates[1]}" ]]; then
        _describe -V 'osmosis' candidates
    else
        _files
    fi
}
compdef _osmosis_completion osmosis osmosis-ai osmosis_ai
"""

_FISH = r"""
function __osmosis_completion
    set -l typed (commandline -opc)
    set -l program $typed[1]
    set -e typed[1]
    set -l current (commandline -ct)
    env _OSMOSIS_COMPLETE=complete_fish $program $typed "$current" 2>/dev/null
end
for program in osmosis osmosis-ai osmosis_ai
    complete --command $program --arguments '(__osmosis_completion)'
end
"""


# Each shell's half of the protocol, and how it wants a word and its meaning written.
SHELLS: Mapping[str, tuple[str, Callable[[str, str], str]]] = {
    "bash": (_BASH, lambda word, _: word),
    "zsh": (_ZSH, lambda word, meaning: f"{word.replace(':', chr(92) + ':')}:{meaning}"),
    "fish": (_FISH, lambda word, meaning: f"{word}\t{meaning}"),
}


def complete(instruction: str, words: Sequence[str]) -> int:
    """Answer one request of a shell on stdout and return the exit status."""
    action, _, name = instruction.partition("_")
    if name not in SHELLS or action not in ("source", "complete"):
        known = ", ".join(f"{verb}_{shell_name}" for verb in ("source", "complete") for shell_name in SHELLS)
        sys.stderr.write(f"Error: {COMPLETION_ENV} must be one of {known}.\n")
        return 2
    script, line = SHELLS[name]
    if action == "source":
        sys.stdout.write(script.lstrip())
        return 0
    *typed, current = words or [""]
    for word, meaning in candidates(typed, current):
        sys.stdout.write(line(word, meaning) + "\n")
    return 0


def candidates(typed: Sequence[str], current: str) -> Iterator[tuple[str, str]]:
    """Yield what may stand in place of ``current`` after the complete words ``typed``, and what it means."""
    _, before = split_modes(typed)
    if "--" in before:
        return
    if not before and not current.startswith("-"):
        for name, entry in COMMANDS.items():
            if name.startswith(current) and not entry.hidden:
                yield name, entry.help
        return
    # Any of Typer's shells will do: only its walk through the commands is used, not its script.
    from typer._completion_classes import BashComplete

    from osmosis_ai.cli.root import PROGRAM, build_root

    found = set()
    root = build_root(lambda **_: None)
    for item in BashComplete(root, {}, PROGRAM, COMPLETION_ENV).get_completions(before, current):
        # Paths ("file", "dir") are the shell's own business.
        if item.type == "plain":
            found.add(str(item.value))
            yield str(item.value), " ".join((item.help or "").split())
    if current.startswith("-"):
        meanings = dict(OPTIONS)
        for flag in MODES:
            if flag.startswith(current) and flag not in typed and flag not in found:
                yield flag, meanings[flag]
