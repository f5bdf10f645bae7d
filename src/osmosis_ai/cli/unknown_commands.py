"""What is said of a command that is not there: what took its place, what it is called here, what is near in spelling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# What other tools call what is here found under another name.
_OTHER_WORDS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("evaluate", "evals", "evaluation"), ("eval",)),
    **dict.fromkeys(("metrics", "graph", "export"), ("info",)),
    **dict.fromkeys(("show", "status", "info", "check", "ping", "health"), ("info", "probe")),
    **dict.fromkeys(("add", "create"), ("register",)),
    **dict.fromkeys(("rm", "delete", "unregister", "deregister"), ("delete", "remove")),
}

_INFO = "`osmosis train info RUN` shows it"
_ORIGIN = "a directory belongs to the workspace that its repository is connected to, by Git's remote `origin`"

FORMER_COMMANDS: Mapping[str, str] = {
    "init": "`osmosis rollout init NAME` makes a rollout, `osmosis doctor --fix` a workspace directory",
    "link": f"{_ORIGIN}; `osmosis workspace current` shows which",
    "unlink": f"{_ORIGIN}; `osmosis workspace current` shows which",
    "deploy": "it is `osmosis model deploy MODEL` now",
    "undeploy": "it is `osmosis model undeploy MODEL` now",
    "deployment": "`osmosis model list` shows what is deployed",
    "train metrics": _INFO,
    "train graph": _INFO,
    "train export": "`osmosis train info RUN --output FILE` writes it",
    "train traces": "`osmosis train logs RUN` shows what the run said",
    "model delete": "a trained model goes with its run, by `osmosis train delete RUN`; `osmosis model undeploy MODEL` "
    "only ends its serving",
    "rollout validate": "`osmosis check` imports every rollout that a config names",
}
"""What is said after "No such command", by the words of the command."""


def is_former(words: Sequence[str]) -> bool:
    """Tell whether these words were a command of earlier lines."""
    return " ".join(words) in FORMER_COMMANDS


def no_such_command(name: str, trail: Sequence[str], visible: Sequence[str]) -> str:
    """Return what to say of ``name``, which is no command."""
    if name == "help":
        return "No such command 'help'. Use 'osmosis --help' or 'osmosis <command> --help'."
    if former := FORMER_COMMANDS.get(" ".join((*trail, name))):
        return f"No such command {name!r}: {former}."
    from osmosis_ai.config.issues import closest

    meant = [word for word in _OTHER_WORDS.get(name, ()) if word in visible]
    near = meant[0] if meant else closest(name, visible)
    return f"No such command {name!r}." + (f" Did you mean {near!r}?" if near else "")
