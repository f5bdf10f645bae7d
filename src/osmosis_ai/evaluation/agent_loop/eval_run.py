"""`osmosis eval -m` on the evaluation engine: an imported agent and its rows as inputs, and the documented results.

The results are read from the run's journal and table, so resuming a run does not change them.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.datasets import DatasetRow, Selection
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.agent_loop.inputs import (
    DatasetReader,
    ToolValidationError,
    dataset_row_to_request,
    other_columns,
    row_messages,
)
from osmosis_ai.evaluation.agent_loop.runner import EvalEvalSummary, summarize_scores
from osmosis_ai.evaluation.hooks import RunSummary
from osmosis_ai.evaluation.journal import JournalReader
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.evaluation.sources import ProjectSource
from osmosis_ai.evaluation.spec import DatasetInput, EvalRunSpec
from osmosis_ai.files import require_writable, write_json
from osmosis_ai.rollout.cli_utils import describe_failure, is_user_file
from osmosis_ai.rollout.eval_functions import AGENT_SCORE
from osmosis_ai.rollout.hosting import SETTINGS_ENV, HostedLoopSettings
from osmosis_ai.rollout.source_digest import digest_files
from osmosis_ai.rollout.tools import check_tools

if TYPE_CHECKING:
    from osmosis_ai.evaluation.results import AttemptTable
    from osmosis_ai.rollout.core.base import RolloutAgentLoop

_MAX_ROWS_TRIED = 100


def require_tools(
    agent: RolloutAgentLoop, rows: Iterable[Mapping[str, Any]], *, first_index: int, **request: Any
) -> None:
    """Check that an agent has valid tools for one of the first rows, since its tools may depend on the row."""
    problems = []
    for index, row in enumerate(islice(rows, _MAX_ROWS_TRIED), first_index):
        try:
            check_tools(agent.get_tools(dataset_row_to_request(row, index, **request)), agent.name)
            return
        except OsmosisError as error:
            problems.append(error.message)
        except (Exception, SystemExit) as error:  # raised by the user's code
            problems.append(f"get_tools of '{agent.name}' failed: {describe_failure(error)}")
    raise ToolValidationError(problems[0], hint="run 'osmosis validate -m MODULE:AGENT' to list all problems")


def imported_files(directory: Path, *references: str) -> tuple[Path, ...]:
    """Return the user's imported files in ``directory`` or in the packages of the ``module:attribute`` references."""
    packages = {reference.partition(":")[0].partition(".")[0] for reference in references}
    found = set()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py"):
            continue
        path = Path(file).resolve()
        is_wanted = name.partition(".")[0] in packages or path.is_relative_to(directory)
        # Modules made at run time name files that do not exist: torch's have "_classes.py".
        if is_wanted and path.is_file() and is_user_file(file):
            found.add(path)
    return tuple(sorted(found))


@dataclass(kw_only=True)
class ImportedAgent(ProjectSource):
    """An agent of the current directory, which its server imports with the same interpreter."""

    settings: HostedLoopSettings
    base_url: str | None
    files: tuple[Path, ...]

    def source_digest(self, output_root: Path | None = None) -> str:
        """Return the digest of the user's files that the agent and its eval functions import."""
        return digest_files((os.path.relpath(file, self.path), file) for file in self.files)

    def grader_digest(self, spec: EvalRunSpec, output_root: Path | None = None) -> None:
        """Return None: the eval functions are part of the source digest."""

    def inputs(self) -> dict[str, Any]:
        """Return how the agent is hosted, and the address of its model."""
        hosted = self.settings.model_dump(mode="json", exclude={"debug_dir"})
        return {"agent_loop": {**hosted, "base_url": self.base_url}}

    def server_environment(self, environ: Mapping[str, str]) -> Mapping[str, str]:
        """Add the agent's settings in one variable, which process lists do not show."""
        return {**environ, SETTINGS_ENV: self.settings.model_dump_json()}


@dataclass(frozen=True)
class LoopDataset(DatasetInput):
    """The rows of an agent loop: prompts become messages, other columns become metadata."""

    def rows(self, selection: Selection) -> Iterator[tuple[int, DatasetRow]]:
        """Yield (row_index, row) of the selected rows, which are contiguous."""
        rows = DatasetReader(self.path).iter_rows(len(selection), selection.indices[0])
        for row_index, source_row in enumerate(selection.indices):
            row = next(rows, None)
            if row is None:
                raise OsmosisError(f"'{self.path}' no longer has row {source_row}: the file was changed.")
            metadata = other_columns(row) or None
            yield row_index, DatasetRow(source_row, row_messages(row), row["ground_truth"], metadata)


@dataclass(frozen=True)
class ClassicResults:
    """Results of an evaluation: the session's summary, and statistics of each eval function.

    Attributes:
        reward: statistics of the agent's own reward; None if no run has one.
        rows: the latest records of each row that has one, ordered by row and run.
    """

    summary: RunSummary
    functions: Mapping[str, EvalEvalSummary]
    reward: EvalEvalSummary | None
    rows: list[list[TerminalRecord]]

    @property
    def runs(self) -> int:
        """Number of runs with a result."""
        return sum(map(len, self.rows))

    @property
    def pending(self) -> int:
        """Number of runs without a result; a failed run that will be retried has one."""
        return self.summary.total_work_items - self.runs

    def to_json(self) -> dict[str, Any]:
        """Return the documented ``summary``, with further fields."""
        estimates = self.summary.metrics.estimates
        without_tokens = estimates.tokens.unreported_samples
        return {
            "total_rows": len(self.rows),
            "total_runs": self.runs,
            "eval_fns": {name: summary.to_json() for name, summary in self.functions.items()},
            "total_tokens": estimates.tokens.total,
            "total_duration_ms": float(self.summary.duration_ms),
            "succeeded_runs": self.summary.succeeded,
            "failed_runs": self.summary.failed,
            "pending_runs": self.pending,
            "cost_usd": estimates.cost_usd.total,
            **({"reward": self.reward.to_json()} if self.reward is not None else {}),
            **({"runs_without_tokens": without_tokens} if without_tokens else {}),
        }


def summarize_runs(
    summary: RunSummary,
    table: AttemptTable,
    *,
    eval_fns: Iterable[str],
    pass_threshold: float,
    ks: Collection[int] = (),
) -> ClassicResults:
    """Return the results of a run, with the scores of its journal."""
    rows, events = [], RunDirectory(summary.run_dir).events
    if events.exists():
        with JournalReader(events) as journal:
            for _, attempts in groupby(table.recorded(), key=lambda attempt: attempt[0]):
                records = [journal.record(offset) for _, _, offset in attempts]
                rows.append([record for record in records if record is not None])
    first_copies = table.clusters()
    clusters = [int(first_copies[records[0].row_index]) for records in rows]

    def summarize_function(name: str) -> EvalEvalSummary:
        scores = [[run_scores(record).get(name) for record in records] for records in rows]
        return summarize_scores(
            scores, n_runs=table.n, pass_threshold=pass_threshold, ks=ks, clusters=clusters
        )

    reward = summarize_function(AGENT_SCORE)
    functions = {name: summarize_function(name) for name in eval_fns}
    return ClassicResults(summary, functions, reward if reward.scored else None, rows)


def run_scores(record: TerminalRecord) -> Mapping[str, float]:
    """Return the scores of a run, with the agent's own reward as ``AGENT_SCORE``; a failed run has none."""
    return (record.scores or {}) if record.status == "success" else {}


def rows_json(rows: Iterable[list[TerminalRecord]]) -> list[dict[str, Any]]:
    """Return the documented ``rows`` of a results file."""
    found = []
    for records in rows:
        index = records[0].source_row_index
        index = records[0].row_index if index is None else index
        found.append({"row_index": index, "runs": [_run_json(record) for record in records]})
    return found


def _run_json(record: TerminalRecord) -> dict[str, Any]:
    """Return a run's entry in the results file: the documented fields, then further ones that have a value."""
    scores, unscored = dict(run_scores(record)), dict(record.unscored or {})
    reward = scores.pop(AGENT_SCORE, None)
    further = {
        "error": record.error,
        "reward_error": unscored.pop(AGENT_SCORE, None),
        "unscored": unscored,
        "finish_reason": record.finish_reason,
        "finish_reasons": record.finish_reasons,
        "error_type": record.error_type,
        "boundary": record.boundary,
        "cost_usd": record.cost_usd,
    }
    return {
        "run_index": record.run_index,
        "success": record.status == "success",
        "scores": scores,
        "duration_ms": record.duration_ms,
        "tokens": None if record.has_unknown_tokens else record.tokens or 0,
        **({"reward": reward} if reward is not None else {}),
        **{name: value for name, value in further.items() if value},
    }


def require_writable_results(path: Path) -> None:
    """Check that the results file can be written, and create its directory."""
    with _writing(path):
        require_writable(path)


def write_results(path: Path, results: Mapping[str, Any]) -> None:
    """Write the results file completely or not at all."""
    with _writing(path):
        write_json(path, results, mode=0o644)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OsmosisError(
            f"Results file cannot be written: '{path}' ({error.strerror or error}).",
            hint="pass a writable path with '-o FILE'",
        ) from None
