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
    ("--json", "Print one JSON document. Goes anywhere on the line."),
    ("--plain", "Print plain lines for scripts and logs. Goes anywhere."),
    ("--env-file FILE", "Read variables from FILE (default: the workspace's .env)."),
    ("--platform URL", "Use the platform at URL."),
    ("-V, --version", "Print the version."),
    ("-h, --help", "Print this help; `osmosis COMMAND --help` tells more."),
)
MODES: dict[str, Mode] = {"--json": "json", "--plain": "plain"}


class CommandEntry(NamedTuple):
    """Where a first-level command lives and what the help says of it."""

    kind: Literal["group", "command"]
    target: str
    help: str
    panel: str = WORKFLOW
    hidden: bool = False


COMMANDS: dict[str, CommandEntry] = {
    "demo": CommandEntry(
        "command", "osmosis_ai.cli.demo:demo", "Watch a small agent being evaluated on this machine."
    ),
    "quickstart": CommandEntry(
        "command", "osmosis_ai.cli.quickstart:quickstart", "Log in, get your workspace here, and begin."
    ),
    "dataset": CommandEntry("group", "osmosis_ai.cli.datasets:app", "Check, upload and fetch datasets."),
    "eval": CommandEntry("group", "osmosis_ai.cli.eval_runs:app", "Evaluate agents."),
    "test": CommandEntry(
        "command", "osmosis_ai.cli.agent_loops.test:try_agent", "Try an agent loop on rows of a file."
    ),
    "eval-rubric": CommandEntry(
        "command", "osmosis_ai.cli.rubric.classic:eval_rubric", "Score records with a rubric of a YAML file."
    ),
    "preview": CommandEntry(
        "command", "osmosis_ai.cli.rubric.classic:preview", "Show the rubrics or records that a file holds."
    ),
    "train": CommandEntry("group", "osmosis_ai.cli.training_runs:app", "Train agents."),
    "view": CommandEntry(
        "command", "osmosis_ai.cli.view:view", "Look at the runs of this machine in a browser."
    ),
    "benchmark": CommandEntry("group", "osmosis_ai.cli.benchmarks:app", "Run agents on benchmarks."),
    "model": CommandEntry("group", "osmosis_ai.cli.models:app", "See models, and serve trained ones."),
    "rollout": CommandEntry(
        "group", "osmosis_ai.cli.rollouts:app", "Write the agents that are evaluated and trained."
    ),
    "template": CommandEntry("group", "osmosis_ai.cli.templates:app", "Begin with an agent that works."),
    "serve": CommandEntry(
        "command", "osmosis_ai.cli.agent_loops.serve:serve", "Serve an agent loop to trainers elsewhere."
    ),
    "validate": CommandEntry(
        "command", "osmosis_ai.cli.agent_loops.validate:validate", "Check an agent loop."
    ),
    "check": CommandEntry(
        "command",
        "osmosis_ai.cli.workspaces:check",
        "Check configs, code and datasets without a platform; for CI.",
    ),
    "doctor": CommandEntry(
        "command",
        "osmosis_ai.cli.workspaces:doctor",
        "Check the workspace directory, and fix it with --fix.",
    ),
    "dev": CommandEntry("group", "osmosis_ai.cli.dev_servers:app", "Develop rollouts.", hidden=True),
    "login": CommandEntry("command", "osmosis_ai.cli.auth:login_app", "Log in to a platform.", PLATFORM),
    "logout": CommandEntry("command", "osmosis_ai.cli.auth:logout", "Log out.", PLATFORM),
    "whoami": CommandEntry(
        "command", "osmosis_ai.cli.auth:whoami", "Show who you are, and in which workspace.", PLATFORM
    ),
    "auth": CommandEntry(
        "group", "osmosis_ai.cli.auth:app", "Log in, log out, and show who you are.", PLATFORM
    ),
    "workspace": CommandEntry(
        "group", "osmosis_ai.cli.workspaces:app", "See your workspaces, and find their directories.", PLATFORM
    ),
    "secret": CommandEntry("group", "osmosis_ai.cli.secrets:app", "Keep the keys that runs need.", PLATFORM),
    "upgrade": CommandEntry(
        "command", "osmosis_ai.cli.upgrade:upgrade", "Print the command that upgrades Osmosis.", PLATFORM
    ),
    "platform": CommandEntry(
        "group", "osmosis_ai.cli.platform:app", "Run and administer your own platform.", PLATFORM
    ),
}


def visible_by_panel() -> dict[str, list[tuple[str, str]]]:
    """Return ``panel -> [(name, help), …]`` of the commands that help and suggestions may show."""
    panels: dict[str, list[tuple[str, str]]] = {}
    for name, entry in COMMANDS.items():
        if not entry.hidden:
            panels.setdefault(entry.panel, []).append((name, entry.help))
    return panels


def root_help() -> str:
    """Return the help of the command line itself, ended by a newline."""
    panels = visible_by_panel()
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
