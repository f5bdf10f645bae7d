"""What becomes of each name of an environment file, for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osmosis_ai.cli.output.results import Styled, Table

if TYPE_CHECKING:
    from osmosis_ai.services.env.files import EnvFileStatus, VariableUse

EnvFileArgument = Annotated[
    Path | None,
    typer.Argument(help="The file, or the directory it is in; the one that is read here by default."),
]
_SHOWN: dict[VariableUse, Styled] = {
    "used": Styled("used", "good"),
    "shell": Styled("the shell has its own, which is used", "dim"),
    "rollouts": Styled("for rollouts whose config lists it as a secret", "dim"),
    "needs_permission": Styled("ignored until you allow the file", "warn"),
    "never": Styled("never taken from a file", "bad"),
}

_UNRESOLVED = Styled("ignored: refers to a name that the file does not set", "warn")
_NO_LINE = Styled("ignored: not `NAME=value`", "warn")


def names_table(status: EnvFileStatus) -> Table:
    """Return the names of a file, what becomes of each, and where its addresses lead; no values."""
    assert status.classified is not None
    rows = [(name, _SHOWN[use], status.addresses.get(name)) for name, use in status.classified.uses.items()]
    rows += [(name, _UNRESOLVED, None) for name in status.classified.file.unresolved]
    rows += [(f"line {line}", _NO_LINE, None) for line in status.classified.file.bad_lines]
    return Table(
        ["Name", "Use", "Host"],
        rows,
        title=str(status.path),
        in_plain=True,
    )
