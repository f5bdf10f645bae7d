"""The command tree's first level as data: names, help lines and panels are known without importing a command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from osmosis_ai.cli.output.context import Mode

WORKFLOW = "Workflow commands"
PLATFORM = "Platform commands"
SUMMARY = "Evaluate and train LLM agents, on your machine or on the Osmosis platform."
OPTIONS = (
    ("--json", "Print one JSON document. Works anywhere on the line."),
    ("--plain", "Print plain lines for scripts. Works anywhere."),
    ("--env-file FILE", "Read variables from FILE (default: the workspace's .env)."),
    ("--platform URL", "Use the platform at URL."),
    ("-V, --version", "Print the version."),
    ("-h, --help", "Print help, also after a command."),
)
MODES: dict[str, Mode] = {"--json": "json", "--plain": "plain"}


class CommandEntry(NamedTuple):
    """A top-level command: its ``module:attribute``, and its line of the help."""

    kind: Literal["group", "command"]
    target: str
    help: str
    panel: str = WORKFLOW
    hidden: bool = False


COMMANDS: dict[str, CommandEntry] = {
    "demo": CommandEntry("command", ".demo:demo", "Run a complete evaluation on this machine."),
    "quickstart": CommandEntry(
        "command", ".quickstart:quickstart", "Log in, choose a workspace and clone its repository."
    ),
    "dataset": CommandEntry("group", ".datasets:app", "Check, upload and download datasets."),
    "eval": CommandEntry("group", ".eval_runs:app", "Evaluate agents."),
    "test": CommandEntry("command", ".agent_loops:try_agent", "Run an agent loop on rows of a file."),
    "eval-rubric": CommandEntry(
        "command", ".rubrics:eval_rubric", "Score the records of a rubric with its judge."
    ),
    "preview": CommandEntry("command", ".rubrics:preview", "Show the rubrics or records in a file."),
    "train": CommandEntry("group", ".training_runs:app", "Train agents."),
    "view": CommandEntry("command", ".view:view", "Browse local runs in a web browser."),
    "benchmark": CommandEntry("group", ".benchmarks:app", "Run agents on benchmarks."),
    "model": CommandEntry("group", ".models:app", "List models and deploy trained ones."),
    "rollout": CommandEntry("group", ".rollouts:app", "Create rollouts and manage remote agents."),
    "template": CommandEntry("group", ".rollouts:templates", "Start from a working example agent."),
    "serve": CommandEntry("command", ".agent_loops:serve", "Serve an agent loop over HTTP until Ctrl-C."),
    "validate": CommandEntry(
        "command", ".agent_loops:validate", "Check the name, tools and `run` method of an agent loop."
    ),
    "check": CommandEntry(
        "command", ".workspaces:check", "Check configs, rollout code and datasets offline."
    ),
    "doctor": CommandEntry(
        "command", ".workspaces:doctor", "Check the workspace directory and fix it with --fix."
    ),
    "dev": CommandEntry("group", ".dev_servers:app", "Develop rollouts.", hidden=True),
    "login": CommandEntry("command", ".auth:login_app", "Log in with a browser or a token.", PLATFORM),
    "logout": CommandEntry(
        "command", ".auth:logout", "Revoke and remove the saved login of the platform.", PLATFORM
    ),
    "whoami": CommandEntry(
        "command", ".auth:whoami", "Show your account and the workspace of the repository.", PLATFORM
    ),
    "auth": CommandEntry("group", ".auth:app", "Log in, log out and show your account.", PLATFORM),
    "workspace": CommandEntry(
        "group", ".workspaces:app", "List workspaces and find their local directories.", PLATFORM
    ),
    "secret": CommandEntry("group", ".secrets:app", "Store and audit the secrets that runs use.", PLATFORM),
    "upgrade": CommandEntry(
        "command", ".quickstart:upgrade", "Print the command that upgrades Osmosis.", PLATFORM
    ),
    "platform": CommandEntry("group", ".platform:app", "Run and administer your own platform.", PLATFORM),
}


def root_help() -> str:
    """Return the help of the command line itself, ended by a newline."""
    panels: dict[str, list[tuple[str, str]]] = {}
    for name, entry in COMMANDS.items():
        if not entry.hidden:
            panels.setdefault(entry.panel, []).append((name, entry.help))
    width = 2 + max(len(name) for rows in (*panels.values(), OPTIONS) for name, _ in rows)
    lines = ["Usage: osmosis [OPTIONS] COMMAND [ARGS]...", "", f"  {SUMMARY}"]
    for title, rows in (*panels.items(), ("Options", OPTIONS)):
        lines += ["", f"{title}:", *(f"  {name:<{width}}{text}" for name, text in rows)]
    return "\n".join(lines) + "\n"


def split_modes(arguments: Sequence[str]) -> tuple[list[Mode], list[str]]:
    """Take ``--json`` and ``--plain`` out of everything before a bare ``--``."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    asked = [MODES[word] for word in arguments[:end] if word in MODES]
    rest = [word for word in arguments[:end] if word not in MODES]
    return list(dict.fromkeys(asked)), [*rest, *arguments[end:]]
