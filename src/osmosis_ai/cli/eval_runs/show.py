"""`osmosis eval show`: what was said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from osmosis_ai.cli.connection import platform_when_needed
from osmosis_ai.cli.name_completion import complete_run_anywhere
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import DetailResult
from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.viewer.source import Outcome

_MOST = 1_000


def show(
    run: Annotated[
        str,
        typer.Argument(
            help="A run of this machine or of the platform: a name, the beginning of one, a directory, @last.",
            show_default=False,
            autocompletion=complete_run_anywhere,
        ),
    ],
    row: Annotated[
        int | None, typer.Option(min=0, help="Of this row alone, counted from 0.", show_default=False)
    ] = None,
    attempt: Annotated[
        int | None, typer.Option(min=0, help="This attempt alone, counted from 0.", show_default=False)
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Scored below the threshold.")] = False,
    passed: Annotated[bool, typer.Option("--passed", help="Scored at the threshold or above.")] = False,
    flaky: Annotated[bool, typer.Option("--flaky", help="Of rows that pass now and then.")] = False,
    unscored: Annotated[bool, typer.Option("--unscored", help="Without a score: an error, say.")] = False,
    search: Annotated[
        str,
        typer.Option(metavar="TEXT", help="With TEXT in the conversation or the error.", show_default=False),
    ] = "",
    limit: Annotated[int, typer.Option(min=1, max=_MOST, help="How many at most.")] = 5,
    side_by_side: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Beside each the same row in another run.",
            show_default=False,
            autocompletion=complete_run_anywhere,
        ),
    ] = None,
) -> DetailResult:
    """Print conversations of a run, by row and attempt. `osmosis view` shows them in a browser.

    Examples:
        osmosis eval show amber-otter-42 --failed
        osmosis eval show @last --row 12 --side-by-side amber-otter-42
    """
    from osmosis_ai.cli.output.conversations import shown_run
    from osmosis_ai.services.eval_runs.show import WantedSamples
    from osmosis_ai.services.eval_runs.show import show as show_named

    outcome = _outcome(failed=failed, passed=passed, flaky=flaky, unscored=unscored)
    wanted = WantedSamples(row, attempt, outcome, search.strip(), limit)
    with platform_when_needed() as client, current().status("Reading conversations"):
        return shown_run(show_named(run, wanted, client=client, beside=side_by_side), wanted)


def _outcome(*, failed: bool, passed: bool, flaky: bool, unscored: bool) -> Outcome | None:
    """Return the one outcome that was asked for.

    Raises:
        OsmosisError: there are several.
    """
    asked: dict[Outcome, bool] = {"failed": failed, "passed": passed, "flaky": flaky, "unscored": unscored}
    chosen = [name for name, wanted in asked.items() if wanted]
    if len(chosen) > 1:
        raise OsmosisError(f"{' and '.join(f'--{name}' for name in chosen)} are mutually exclusive.")
    return chosen[0] if chosen else None
