"""Which samples of a run are to be shown: the options that evaluations and training runs share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from osmosis_ai.cli.connection import platform_when_needed
from osmosis_ai.cli.output.context import current

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.services.eval_runs.show import WantedSamples
    from osmosis_ai.viewer.source import Outcome

_MOST = 1_000
FinishWord = Literal["length", "content_filter", "refusal"]

RowOption = Annotated[int | None, typer.Option(min=0, help="Only this row, counted from 0.")]
AttemptOption = Annotated[int | None, typer.Option(min=0, help="Only this attempt, counted from 0.")]
FailedOption = Annotated[bool, typer.Option("--failed", help="Scored below the threshold.")]
PassedOption = Annotated[bool, typer.Option("--passed", help="Scored at the threshold or above.")]
UnscoredOption = Annotated[bool, typer.Option("--unscored", help="Attempts without a score.")]
FinishOption = Annotated[
    FinishWord | None,
    typer.Option(
        "--finish",
        help="Attempts with a model reply that was truncated (length), filtered (content_filter) or refused (refusal).",
    ),
]
SearchOption = Annotated[
    str,
    typer.Option(metavar="TEXT", help="Text to find in messages, notes of graders or judges, or errors."),
]
ShownOption = Annotated[int, typer.Option("--limit", min=1, max=_MOST, help="Maximum number of attempts.")]


def wanted_samples(
    row: int | None,
    attempt: int | None,
    search: str,
    limit: int,
    *,
    finish: FinishWord | None = None,
    **asked: bool,
) -> WantedSamples:
    """Return which samples were asked for: ``asked`` has each outcome's option."""
    from osmosis_ai.services.eval_runs.show import WantedSamples

    names: tuple[Outcome, ...] = ("failed", "passed", "flaky", "unscored")
    chosen = [name for name in names if asked.get(name)]
    if len(chosen) > 1:
        raise typer.BadParameter(f"{' and '.join(f'--{name}' for name in chosen)} are mutually exclusive.")
    return WantedSamples(row, attempt, chosen[0] if chosen else None, finish, search.strip(), limit)


@contextmanager
def reading_conversations() -> Iterator[Callable[[], PlatformClient]]:
    """Say that conversations are read; the platform is connected with when it is asked."""
    with platform_when_needed() as client, current().status("Reading conversations"):
        yield client
