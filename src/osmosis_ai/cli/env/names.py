"""What becomes of each name of an environment file, for people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from osmosis_ai.cli.output.results import Styled, Table
from osmosis_ai.services.env_files import EnvFileStatus, Standing

EnvFileArgument = Annotated[
    Path | None,
    typer.Argument(help="The file, or the directory it is in; the one that is read here by default."),
]
_SHOWN: dict[Standing, Styled] = {
    "used": Styled("used", "good"),
    "shell": Styled("the shell has its own, which is used", "dim"),
    "rollouts": Styled("for rollouts whose config lists it as a secret", "dim"),
    "needs_permission": Styled("ignored until you allow the file", "warn"),
    "never": Styled("never taken from a file", "bad"),
}


def names_table(status: EnvFileStatus) -> Table:
    """Return the names of a file, what becomes of each, and where its addresses lead; no values."""
    assert status.judged is not None
    return Table(
        ["Name", "Use", "Host"],
        [
            (name, _SHOWN[standing], status.addresses.get(name))
            for name, standing in status.judged.standings.items()
        ],
        title=str(status.path),
        in_plain=True,
    )
