"""The command tree as Typer sees it: its first level is the registry, loaded a command at a time."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from osmosis_ai.cli.registry import COMMANDS, OPTIONS, CommandEntry, root_help
from osmosis_ai.cli.unknown_commands import is_former, no_such_command

PROGRAM = "osmosis"
# Shared by every context of one invocation: the names of the commands resolved so far.
TRAIL = "osmosis.trail"
_MEANINGS = dict(OPTIONS)
CLASSIC_EVAL = "-m"
"""What the classic evaluation is called among the commands of `eval`: what its lines begin with."""
TWO_FORMS = (
    "An agent loop is evaluated by `osmosis eval -m MODULE:AGENT -d FILE --model MODEL --eval-fn MODULE:FN`, "
    "without a subcommand; a config file by `osmosis eval run CONFIG` or `osmosis eval submit CONFIG`, without -m."
)
EXAMPLES = "\n\nExamples:\n"
"""What a command's docstring has before its examples: one command line each, indented, after the description."""
_HELP = ("-h", "--help")
_CONTEXT_SETTINGS = {"help_option_names": [*_HELP], "max_content_width": 100}


class CommandGroup(TyperGroup):
    """A group that shows its help when called bare and suggests the command that was meant."""

    _outlining = False
    _unmade: Mapping[str, Any] = {}

    def hold(self, commands: Mapping[str, Any]) -> None:
        """Take commands, as Typer registers them, that become commands of this group when they are asked for."""
        self._unmade = commands

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, in the order of their registration, then those of groups."""
        return list(dict.fromkeys([*self._unmade, *self.commands]))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; None when there is none of that name."""
        held = self._unmade.get(cmd_name)
        if held is None or cmd_name in self.commands:
            return self.commands.get(cmd_name)
        if self._outlining:
            return TyperCommand(cmd_name, help=held.callback.__doc__, hidden=held.hidden)
        self.commands[cmd_name] = made = make_command(held)
        return made

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the names and first sentences of the commands."""
        with self._outline():
            super().format_commands(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete the names of commands."""
        with self._outline():
            return super().shell_complete(ctx, incomplete)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the group's own options; without any argument show the help and succeed."""
        if not args and not self.invoke_without_command and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            ctx.exit(0)
        if ctx.command_path == f"{PROGRAM} eval":
            args = self._eval_form(ctx, args)
        self.no_args_is_help = False
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the named command; fail with a suggestion when there is none."""
        name = args[0]
        trail = ctx.meta.setdefault(TRAIL, [])
        if not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            sentence = no_such_command(name, trail, self._visible_names(ctx))
            if is_former((*trail, name)):
                trail.append(name)
            ctx.fail(sentence)
        trail.append(name)
        return super().resolve_command(ctx, args)

    def _eval_form(self, ctx: Any, args: list[str]) -> list[str]:
        """Tell `eval -m MODULE:AGENT …` from `eval SUBCOMMAND …`; fail where a line is neither or both."""
        has_module = any(_names_module(word) for word in args)
        if args[:1] and args[0] in self.list_commands(ctx) and args[0] != CLASSIC_EVAL:
            if has_module:
                ctx.fail(f"'{PROGRAM} eval {args[0]}' has no -m. {TWO_FORMS}")
            return args
        if not args or not args[0].startswith("-") or (not has_module and args[0] in _HELP):
            return args
        if not has_module:
            ctx.fail(f"'{PROGRAM} eval' without a subcommand needs -m. {TWO_FORMS}")
        if meant := _positional(args, [name for name in self.list_commands(ctx) if name != CLASSIC_EVAL]):
            ctx.fail(f"'{PROGRAM} eval -m' has no subcommand '{meant}'. {TWO_FORMS}")
        # What follows are options of a command whose own name looks like one.
        words = ["--help"] if any(word in _HELP for word in args) else args
        return ["--", CLASSIC_EVAL, *words]

    def _visible_names(self, ctx: Any) -> list[str]:
        with self._outline():
            found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        return [name for name, command in found if command is not None and not command.hidden]

    @contextmanager
    def _outline(self) -> Iterator[None]:
        """Have :meth:`get_command` return what is known of a command without making it."""
        self._outlining = True
        try:
            yield
        finally:
            self._outlining = False


class RootGroup(CommandGroup):
    """The registry as a group."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return every registered name, hidden ones too."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import and return a command; None when there is none of that name."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        if self._outlining:
            return TyperCommand(cmd_name, help=entry.help, hidden=entry.hidden)
        if cmd_name not in self.commands:
            self.commands[cmd_name] = load(cmd_name, entry)
        return self.commands[cmd_name]

    def get_help(self, ctx: Any) -> str:
        """Return the same text that ``osmosis --help`` prints without a parser."""
        return root_help().rstrip("\n")

    def _visible_names(self, ctx: Any) -> list[str]:
        return [name for name, entry in COMMANDS.items() if not entry.hidden]


@cache
def load(name: str, entry: CommandEntry) -> Any:
    """Import what ``entry`` names and return it as a command of this tree, made once a process."""
    module, _, attribute = entry.target.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    if isinstance(found, typer.Typer):
        app = found
    else:
        app = typer.Typer()
        app.command(name)(found)
    group = make_group(app)
    return group if entry.kind == "group" else group.get_command(None, *group.list_commands(None))


def make_group(app: typer.Typer) -> CommandGroup:
    """Return ``app`` as a group of this tree, which makes its commands when they are used."""
    bare = copy(app)
    bare.registered_commands, bare.registered_groups = [], []
    bare.info = copy(app.info)
    bare.info.cls = CommandGroup
    group: Any = typer.main.get_group(bare)
    group.rich_markup_mode = None
    group.hold({_name_of(held): held for held in app.registered_commands})
    for nested in app.registered_groups:
        if nested.typer_instance is not None:
            group.add_command(make_group(nested.typer_instance), nested.name)
    made: CommandGroup = group
    return made


def make_command(held: Any) -> Any:
    """Return the command that Typer makes of what was registered, with the examples of its docstring below its help."""
    # Typer draws help with rich unless told otherwise; plain text starts four times as fast.
    command: Any = typer.main.get_command_from_info(held, pretty_exceptions_short=True, rich_markup_mode=None)
    help_text, heading, examples = (command.help or "").partition(EXAMPLES)
    if heading:
        # Click keeps the lines of a paragraph that begins with this character as they are.
        command.help, command.epilog = help_text.rstrip(), f"\b\n{EXAMPLES.lstrip()}{examples}"
    return command


def build_root(start: Any) -> Any:
    """Return the root group; ``start(env_file, platform)`` runs before any command does."""
    app = typer.Typer(cls=RootGroup, context_settings=_CONTEXT_SETTINGS)

    def callback(
        version: Annotated[  # noqa: ARG001 - its callback has printed it
            bool,
            typer.Option(
                "--version", "-V", is_eager=True, callback=_print_version, help=_MEANINGS["-V, --version"]
            ),
        ] = False,
        env_file: Annotated[
            Path | None,
            typer.Option(
                "--env-file",
                envvar="OSMOSIS_ENV_FILE",
                exists=True,
                dir_okay=False,
                readable=True,
                help=_MEANINGS["--env-file FILE"],
            ),
        ] = None,
        platform: Annotated[
            str | None, typer.Option("--platform", metavar="URL", help=_MEANINGS["--platform URL"])
        ] = None,
    ) -> None:
        start(env_file=env_file, platform=platform)

    app.callback()(callback)
    root: Any = typer.main.get_group(app)
    root.rich_markup_mode = None
    return root


def _name_of(held: Any) -> str:
    return str(held.name or held.callback.__name__.replace("_", "-"))


def _print_version(wanted: bool) -> None:
    if wanted:
        from osmosis_ai._version import __version__

        typer.echo(f"osmosis-ai {__version__}")
        raise typer.Exit


def _positional(words: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the word that is one of ``names`` and no value of the option before it; None without any."""
    return next(
        (word for before, word in pairwise(words) if word in names and not before.startswith("-")), None
    )


def _names_module(word: str) -> bool:
    """Tell whether a word of a command line is the option -m, also with its value behind it."""
    attached = word.startswith(CLASSIC_EVAL) and not word.startswith("--")
    return attached or word.partition("=")[0] == "--module"
