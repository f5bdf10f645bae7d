"""The command tree as Typer sees it: its first level is the registry, loaded a command at a time."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from osmosis_ai.cli.registry import COMMANDS, OPTIONS, CommandEntry, root_help

PROGRAM = "osmosis"
# Shared by every context of one invocation: the names of the commands resolved so far.
TRAIL = "osmosis.trail"
_MEANINGS = dict(OPTIONS)
CLASSIC_EVAL = "-m"
"""The name of the classic evaluation among the commands of `eval`."""
CLASSIC_USAGE = f"{PROGRAM} eval -m MODULE:AGENT -d FILE --model MODEL --eval-fn MODULE:FN"
TWO_FORMS = (
    f"Evaluate an agent loop with `{CLASSIC_USAGE}`, "
    "or a config file with `osmosis eval run CONFIG` or `osmosis eval submit CONFIG`."
)
EXAMPLES = "\n\nExamples:\n"
"""Begins the examples in a command's docstring, one indented command per line."""
_HELP = ("-h", "--help")
_CONTEXT_SETTINGS = {"help_option_names": [*_HELP], "max_content_width": 100}


# Synonyms that users of other tools may type.
_OTHER_WORDS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("evaluate", "evals", "evaluation"), ("eval",)),
    **dict.fromkeys(("metrics", "graph"), ("info",)),
    "export": ("download", "info"),
    **dict.fromkeys(("show", "status", "info", "ping", "health"), ("info", "probe", "status")),
    **dict.fromkeys(("check", "verify", "validate"), ("validate", "probe", "check")),
    **dict.fromkeys(("add", "create"), ("register", "set")),
    **dict.fromkeys(("rm", "delete", "unregister", "deregister"), ("delete", "remove")),
}

_INFO = "use `osmosis train info RUN`"
_CURRENT = "Git's remote `origin` selects the workspace, and `osmosis workspace current` shows it"

# Replacements of commands of the hosted CLI, by their words.
_FORMER_COMMANDS: Mapping[str, str] = {
    "init": "use `osmosis rollout init NAME` for a rollout, `osmosis doctor --fix` for a workspace directory",
    "link": _CURRENT,
    "unlink": _CURRENT,
    "deploy": "use `osmosis model deploy MODEL`",
    "undeploy": "use `osmosis model undeploy MODEL`",
    "deployment": "use `osmosis model list`",
    **{f"{kind} check": f"use `osmosis {kind} submit CONFIG --check`" for kind in ("eval", "train")},
    "rollout check": "use `osmosis check`",
    "train metrics": _INFO,
    "train graph": _INFO,
    "train export": "use `osmosis train info RUN --output FILE`",
    "train traces": "use `osmosis train logs RUN`",
    "model delete": "use `osmosis train delete RUN`, which also deletes its models",
    "rollout validate": "use `osmosis check`",
}


class LazyCommand(NamedTuple):
    """A command that is known by its help until it is made."""

    help: str | None
    hidden: bool
    make: Callable[[], Any]


class CommandGroup(TyperGroup):
    """A group that shows its help without arguments and suggests similar commands."""

    _outlining = False
    lazy: Mapping[str, LazyCommand] = {}
    """Commands that are built at their first use."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(dict.fromkeys([*self.lazy, *self.commands]))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        lazy = self.lazy.get(cmd_name)
        if lazy is not None and self._outlining:
            # The classic evaluation looks like an option; the group's epilog shows how to call it.
            return TyperCommand(cmd_name, help=lazy.help, hidden=lazy.hidden or cmd_name == CLASSIC_EVAL)
        if lazy is not None and cmd_name not in self.commands:
            self.commands[cmd_name] = lazy.make()
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with self._outline():
            super().format_commands(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
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
            with self._outline():
                known = [(each, self.get_command(ctx, each)) for each in self.list_commands(ctx)]
            visible = [each for each, command in known if not command.hidden]
            sentence = _no_such_command(name, trail, visible)
            if " ".join((*trail, name)) in _FORMER_COMMANDS:
                trail.append(name)
            ctx.fail(sentence)
        trail.append(name)
        return super().resolve_command(ctx, args)

    def _eval_form(self, ctx: Any, args: list[str]) -> list[str]:
        """Distinguish `eval -m MODULE:AGENT …` from `eval SUBCOMMAND …`; fail if a line is neither or both."""
        # The option -m may be followed by its value.
        has_module = any(
            word.partition("=")[0] == "--module" or (word.startswith("-m") and not word.startswith("--"))
            for word in args
        )
        if args[:1] and args[0] in self.list_commands(ctx) and args[0] != CLASSIC_EVAL:
            if has_module:
                ctx.fail(f"'{PROGRAM} eval {args[0]}' has no -m. {TWO_FORMS}")
            return args
        if not args or not args[0].startswith("-") or (not has_module and args[0] in _HELP):
            return args
        if not has_module:
            ctx.fail(f"'{PROGRAM} eval' without a subcommand needs -m. {TWO_FORMS}")
        for before, word in pairwise(args):
            if word in self.list_commands(ctx) and word != CLASSIC_EVAL and not before.startswith("-"):
                ctx.fail(f"'{PROGRAM} eval -m' has no subcommand '{word}'. {TWO_FORMS}")
        # The arguments are options of a command whose name looks like an option.
        words = ["--help"] if any(word in _HELP for word in args) else args
        return ["--", CLASSIC_EVAL, *words]

    @contextmanager
    def _outline(self) -> Iterator[None]:
        """Have :meth:`get_command` return what is known of a command without making it."""
        self._outlining = True
        try:
            yield
        finally:
            self._outlining = False


class RootGroup(CommandGroup):
    """The root, whose help is the same text with and without a parser."""

    def get_help(self, ctx: Any) -> str:
        return root_help().rstrip("\n")


@cache
def load(name: str, entry: CommandEntry) -> Any:
    """Import what ``entry`` names and return it as a command of this tree, made once a process."""
    module, _, attribute = entry.target.partition(":")
    found = getattr(importlib.import_module(module, __package__), attribute)
    if isinstance(found, typer.Typer):
        app = found
    else:
        app = typer.Typer()
        app.command(name)(found)
    group = make_group(app)
    group.help = entry.help
    return group if entry.kind == "group" else group.get_command(None, *group.list_commands(None))


def make_group(app: typer.Typer) -> CommandGroup:
    """Return ``app`` as a group of this tree, which makes its commands when they are used."""
    registered: list[Any] = app.registered_commands
    bare = copy(app)
    bare.registered_commands, bare.registered_groups = [], []
    bare.info = copy(app.info)
    bare.info.cls = CommandGroup
    group: Any = typer.main.get_group(bare)
    group.rich_markup_mode = None
    group.lazy = {
        str(held.name or held.callback.__name__.replace("_", "-")): LazyCommand(
            held.callback.__doc__, held.hidden, partial(make_command, held)
        )
        for held in registered
    }
    for nested in app.registered_groups:
        if nested.typer_instance is not None:
            group.add_command(make_group(nested.typer_instance), nested.name)
    made: CommandGroup = group
    return made


def make_command(held: Any) -> Any:
    """Return the command that Typer makes of what was registered, with the examples of its docstring below its help."""
    # Typer draws help with rich by default; plain text starts four times as fast.
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
                envvar="OSMOSIS_ENV_FILE",
                exists=True,
                dir_okay=False,
                readable=True,
                help=_MEANINGS["--env-file FILE"],
            ),
        ] = None,
        platform: Annotated[str | None, typer.Option(metavar="URL", help=_MEANINGS["--platform URL"])] = None,
    ) -> None:
        start(env_file=env_file, platform=platform)

    app.callback()(callback)
    root: Any = typer.main.get_group(app)
    root.rich_markup_mode = None
    root.lazy = {
        name: LazyCommand(entry.help, entry.hidden, partial(load, name, entry))
        for name, entry in COMMANDS.items()
    }
    return root


def _print_version(wanted: bool) -> None:
    if wanted:
        from osmosis_ai._version import __version__

        typer.echo(f"osmosis-ai {__version__}")
        raise typer.Exit


def _no_such_command(name: str, trail: Sequence[str], visible: Sequence[str]) -> str:
    """Return the error for an unknown command."""
    if name == "help":
        return "No such command 'help'. Use 'osmosis --help' or 'osmosis <command> --help'."
    if former := _FORMER_COMMANDS.get(" ".join((*trail, name))):
        return f"No such command {name!r}: {former}."
    from osmosis_ai.config.issues import closest

    meant = [word for word in _OTHER_WORDS.get(name, ()) if word in visible]
    near = meant[0] if meant else closest(name, visible)
    return f"No such command {name!r}." + (f" Did you mean {near!r}?" if near else "")
