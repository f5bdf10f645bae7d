"""Write docs/reference/cli/*.md, one page for each group of commands, from the commands themselves.

python scripts/make_cli_reference.py           write the page
python scripts/make_cli_reference.py --check   fail when the committed page is not what this writes
"""

from __future__ import annotations

import difflib
import enum
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple, get_args

from osmosis_ai.cli.application import INTERRUPTED_STATUS, USAGE_STATUS
from osmosis_ai.cli.main import BROKEN_PIPE_STATUS
from osmosis_ai.cli.registry import COMMANDS, OPTIONS, SUMMARY
from osmosis_ai.cli.root import PROGRAM, build_root
from osmosis_ai.errors import ErrorCode

FOLDER = Path(__file__).parents[1] / "docs" / "reference" / "cli"
NOTE = "<!-- Written by scripts/make_cli_reference.py: edit the commands, then run it. -->\n"
INTRODUCTION = f"""\
{NOTE}
# Commands

{SUMMARY}

A command prints its result on stdout and everything else (progress, warnings, errors) on stderr. It never asks a
question if stdin is not a terminal. `--yes` answers all confirmations. See also
[environment variables](../environment.md).
"""
STATUSES = (
    (0, "Success. An evaluation with failed attempts counts as success."),
    (1, "Failure, or partial success (`status` is `partial` in JSON)."),
    (USAGE_STATUS, "Wrong command line: an unknown command or option, or an invalid value."),
    (3, "Inconclusive gate: the run is too small or not finished (`status` is `unclear` in JSON)."),
    (INTERRUPTED_STATUS, "Interrupted with Ctrl-C, without a partial result."),
    (BROKEN_PIPE_STATUS, "The reader of stdout has closed it, as in `osmosis … | head -1`."),
)
CODES = {
    "VALIDATION": "An option, file or config is invalid, or the platform found invalid data in it.",
    "AUTH_REQUIRED": "Not logged in, or the token is wrong, expired or revoked.",
    "NOT_FOUND": "The name does not exist, or you have no access to it.",
    "CONFLICT": "The request contradicts the current state: a name is taken, a run has ended, two profiles disagree.",
    "UPGRADE_REQUIRED": "The platform no longer serves this version.",
    "RATE_LIMITED": "Too many requests. Wait and try again.",
    "PLATFORM_ERROR": "The platform failed or returned an invalid response.",
    "INTERNAL": "A bug in Osmosis. `OSMOSIS_DEBUG=1` prints a traceback.",
    "INTERACTIVE_REQUIRED": "The command needs an answer but has no terminal. `details.flags` names the options to use.",
    "WORKSPACE_REQUIRED": "Not a workspace directory, or its repository is not connected to a workspace.",
    "NETWORK": "A host is unreachable or did not answer in time.",
    "SUBSCRIPTION_REQUIRED": "The hosted service requires a subscription.",
    "BILLING_REQUIRED": "The hosted service requires a payment method.",
    "KEYRING_UNAVAILABLE": "The system's keyring is locked or missing.",
    "CREDENTIALS_UNAVAILABLE": "The file of saved logins cannot be read or written.",
    "CREDENTIALS_PARSE_FAILED": "The file of saved logins is damaged. Logging in again keeps it as a backup.",
    "CREDENTIALS_VERSION_CHANGED": "Another version of Osmosis wrote the file of saved logins. Log in again.",
    "ENV_TOKEN_PLATFORM_REQUIRED": "`OSMOSIS_TOKEN` is set without the platform that it is for.",
    "ENV_TOKEN_PLATFORM_MISMATCH": "`OSMOSIS_TOKEN` is for another platform than the active one.",
    "TOKEN_NOT_FOUND": "A saved login has no token. Log in again.",
    "KEYRING_CLEANUP_FAILED": "An old token may still be in the keyring.",
    "TOKEN_REVOKE_FAILED": "The platform could not revoke a token.",
}


class Shown(NamedTuple):
    """A command; under another name only ``path`` and ``usage`` differ."""

    path: str
    usage: str
    summary: str
    body: str


def main() -> int:
    """Write the pages, or print the differences with ``--check``; return the exit status."""
    wanted = {FOLDER / f"{name}.md": text for name, text in pages().items()}
    committed = {path: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    if "--check" not in sys.argv:
        for path in committed.keys() - wanted.keys():
            path.unlink()
        for path, text in wanted.items():
            path.write_text(text, encoding="utf-8")
        return 0
    for path in sorted(wanted.keys() | committed.keys()):
        before, after = (pages.get(path, "").splitlines() for pages in (committed, wanted))
        for line in difflib.unified_diff(before, after, path.name, "commands", n=0, lineterm=""):
            print(line, file=sys.stderr)
    if committed != wanted:
        print(f"docs/reference/cli is out of date: run python scripts/{Path(__file__).name}", file=sys.stderr)
    return int(committed != wanted)


def pages() -> dict[str, str]:
    """Return the text of every page by its name."""
    written = {
        "index": "\n".join(
            [
                INTRODUCTION,
                *_contents(),
                "## Options of every command\n",
                _table(("option", ""), [(f"`{spelling}`", _prose(text)) for spelling, text in OPTIONS]),
                *_statuses(),
            ]
        )
    }
    seen: dict[tuple[str, str], str] = {}
    for name, group in _groups():
        parts = [NOTE, f"# `{PROGRAM} {name}`\n"]
        for command in _leaves(*group):
            if command.path != f"{PROGRAM} {name}":
                parts.append(f"## `{command.path}`\n")
            same = seen.setdefault((command.summary, command.body), command.path)
            parts.append(_whole(command) if same == command.path else f"The same as {_link(same)}.\n")
        written[name] = "\n".join(parts)
    return written


def _groups() -> list[tuple[str, tuple[Any, Any]]]:
    root = build_root(lambda **_options: None)
    context = _context(root, None, PROGRAM)
    return [
        (name, (command, _context(command, context, name)))
        for name in COMMANDS
        if (command := root.get_command(context, name)) is not None
    ]


def _context(command: Any, parent: Any, name: str) -> Any:
    return command.context_class(command, parent=parent, info_name=name)


def _leaves(command: Any, context: Any) -> Iterator[Shown]:
    """Yield every command below, in the order that its help shows."""
    if not hasattr(command, "list_commands"):
        summary, *more = [" ".join(text.split()) for text in (command.help or "").split("\n\n")]
        usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
        yield Shown(context.command_path, usage, _prose(summary), _body(command, context, more))
        return
    for name in command.list_commands(context):
        nested = command.get_command(context, name)
        if not nested.hidden:
            yield from _leaves(nested, _context(nested, context, name))


def _whole(command: Shown) -> str:
    return f"{command.summary}\n\n```text\n{command.usage}\n```\n\n{command.body}"


def _body(command: Any, context: Any, more: Sequence[str]) -> str:
    parts = [f"{_prose(paragraph)}\n" for paragraph in more]
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    if arguments:
        rows = [(f"`{param.make_metavar(ctx=context)}`", _prose(param.help or "")) for param in arguments]
        parts.append(_table(("argument", ""), rows))
    if options := [param for param in command.params if param not in arguments and not param.hidden]:
        cells = [
            (_spelling(param, context), _prose(_meaning(param)), _default(param), _variables(param))
            for param in options
        ]
        headings = ("option", "", "default", "variable")
        used = [index for index in range(4) if index < 2 or any(row[index] for row in cells)]
        parts.append(
            _table([headings[index] for index in used], [[row[index] for index in used] for row in cells])
        )
    _, heading, lines = (command.epilog or "").partition("Examples:\n")
    return "\n".join([*parts, f"Examples:\n\n```text\n{dedent(lines).strip()}\n```\n"] if heading else parts)


def _spelling(param: Any, context: Any) -> str:
    names = ", ".join(sorted([*param.opts, *param.secondary_opts], key=len))
    metavar = str(param.make_metavar(ctx=context)).replace(" RANGE", "")
    return f"`{names}`" if param.is_flag else f"`{names} {metavar}`"


def _meaning(param: Any) -> str:
    low, high = getattr(param.type, "min", None), getattr(param.type, "max", None)
    if low is None and high is None:
        return param.help or ""
    limits = f"up to {high}" if low is None else f"{low} or more" if high is None else f"{low} to {high}"
    return f"{param.help} ({limits})"


def _default(param: Any) -> str:
    value = param.default.value if isinstance(param.default, enum.Enum) else param.default
    return "" if value is None or isinstance(value, bool) or callable(value) else f"`{value}`"


def _variables(param: Any) -> str:
    named = [param.envvar] if isinstance(param.envvar, str) else param.envvar or []
    return ", ".join(f"`{name}`" for name in named)


def _contents() -> list[str]:
    panels: dict[str, list[tuple[str, str]]] = {}
    for name, group in _groups():
        if not COMMANDS[name].hidden:
            rows = [(_link(leaf.path), leaf.summary) for leaf in _leaves(*group)]
            panels.setdefault(COMMANDS[name].panel, []).extend(rows)
    return [text for title, rows in panels.items() for text in (f"**{title}**\n", _table(("", ""), rows))]


def _statuses() -> list[str]:
    if wrong := sorted(set(CODES) ^ set(get_args(ErrorCode))):
        raise SystemExit(f"describe these error codes in CODES: {wrong}")
    return [
        "## Exit codes\n",
        _table(("exit code", "meaning"), [(f"`{status}`", text) for status, text in STATUSES]),
        "## Error codes\n",
        "With `--json`, an error is one document on stderr. `error.code` is one of these.\n",
        _table(("code", ""), [(f"`{code}`", text) for code, text in CODES.items()]),
    ]


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    # A bar ends a cell, even inside code.
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def _link(path: str) -> str:
    return f"[`{path}`]({path.split()[1]}.md#{path.replace(' ', '-')})"


def _prose(text: str) -> str:
    """Keep what stands outside code from being read as markup."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(piece if piece.startswith("`") else re.sub(r"([*<])", r"\\\1", piece) for piece in pieces)


if __name__ == "__main__":
    sys.exit(main())
