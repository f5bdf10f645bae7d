"""What `osmosis test` shows while it runs, and what Ctrl-C does to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from osmosis_ai.cli.graceful_stop import GracefulStop
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import OutputContext

if TYPE_CHECKING:
    from osmosis_ai.evaluation.agent_loop.runner import LocalRunResult

QUIT_AT_ONCE = "Interrupted."


class LiveRows(GracefulStop):
    """Writes a line for each row, in the order of the rows; a context manager around the test.

    Args:
        quiet: write none.
    """

    def __init__(self, output: OutputContext, *, quiet: bool) -> None:
        super().__init__(output, ["test"], quit_at_once=QUIT_AT_ONCE)
        self._quiet = quiet

    def row_ended(self, number: int, total: int, result: LocalRunResult) -> None:
        """Write one row's line."""
        if self._quiet:
            return
        took = formats.duration(result.duration_ms / 1000)
        line = (
            f"[{number}/{total}] Row {result.row_index}: {'OK' if result.success else 'FAILED'} "
            f"({took}, {formats.count(result.total_tokens)} tokens)"
        )
        why = "" if result.success else f" - {formats.one_line(result.raised or result.error or '')}"
        self._output.note(line + why)
