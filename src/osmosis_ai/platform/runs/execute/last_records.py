"""Send the unsent journal records of abandoned workers, since no later worker will.

Otherwise a retry would repeat and pay for these attempts, and the journal would be deleted with the working directory.
"""

from __future__ import annotations

from collections.abc import Iterator

from osmosis_ai.api.wire.workers import SyncRequest
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.journal import committed_lines
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.runs.desk.run_desk import RunDesk
from osmosis_ai.platform.runs.journalled import engine_metrics
from osmosis_ai.platform.runs.leases import Lease

_PART_BYTES = 512 * 1024


def send_left_records(desk: RunDesk, run: DbRun, lease: Lease, directory: RunDirectory) -> str | None:
    """Hand over what an evaluation has journalled, its numbers too, as its worker would have; blocking."""
    if run.kind != "eval" or not directory.events.exists():
        return None
    try:
        for offset, lines in _parts(directory):
            part = {"generation": run.journal_generation, "offset": offset, "lines": lines}
            desk.sync(run.id, SyncRequest.model_validate({"lease": lease.token, "journal": part}))
        numbers = {"lease": lease.token, "metrics": engine_metrics(directory)}
        desk.sync(run.id, SyncRequest.model_validate(numbers))
    except (OSError, OsmosisError) as error:
        return f"what the last worker had recorded could not all be kept: {error}"
    return None


def _parts(directory: RunDirectory) -> Iterator[tuple[int, str]]:
    """Yield the journal from its beginning in parts that fit an exchange, as far as it can be read."""
    start, lines, size = 0, [], 0
    for _, line in committed_lines(directory.events):
        try:
            TerminalRecord.from_line(line)
            lines.append(line.decode())
        except ValueError:
            break
        size += len(line)
        if size >= _PART_BYTES:
            yield start, "".join(lines)
            start, lines, size = start + size, [], 0
    if lines:
        yield start, "".join(lines)
