"""`eval -m` on the evaluation engine: an imported agent and its rows as the engine's inputs, and the documented results.

The results are read from the journal and the table of the run, so a resumed run has those of an undisturbed one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import site
import sys
import sysconfig
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.agent_loop.eval_runner import EvalEvalSummary, summarize_scores
from osmosis_ai.evaluation.agent_loop.inputs import DatasetReader, other_columns, row_messages
from osmosis_ai.evaluation.hooks import RunSummary
from osmosis_ai.evaluation.journal import JournalReader
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.evaluation.sources import RolloutSource
from osmosis_ai.evaluation.spec import DatasetInput
from osmosis_ai.files import replacing_or_streaming, require_writable
from osmosis_ai.rollout.loop.eval_functions import AGENT_SCORE

if TYPE_CHECKING:
    from osmosis_ai.datasets import DatasetRow, Selection
    from osmosis_ai.evaluation.results import AttemptTable
    from osmosis_ai.rollout.loop.workflow import HostedLoopSettings

_PACKAGE = Path(__file__).parents[2]


@dataclass(frozen=True)
class ImportedAgent(RolloutSource):
    """An agent that this process has imported and its server imports again, in the same interpreter and directory.

    Attributes:
        files: the user's own files among the modules that the agent and its eval functions import.
    """

    path: Path
    settings: HostedLoopSettings
    base_url: str | None
    files: tuple[Path, ...]

    def source_digest(self, output_root: Path) -> str:
        """Return the digest of the agent's files."""
        digest = hashlib.sha256()
        for path in self.files:
            try:
                content = path.read_bytes()
            except OSError as error:
                raise OsmosisError(f"A file of the agent cannot be read: '{path}' ({error}).") from None
            digest.update(os.fsencode(os.path.relpath(path, self.path)) + b"\0")
            digest.update(hashlib.sha256(content).digest())
        return digest.hexdigest()

    def inputs(self) -> dict[str, Any]:
        """Return how the agent is hosted, and the address of its model."""
        hosted = self.settings.model_dump(mode="json", exclude={"debug_dir"})
        return {"agent_loop": {**hosted, "base_url": self.base_url}}

    def server_environment(self, environ: Mapping[str, str]) -> Mapping[str, str]:
        """Add the agent's settings in one variable, which no list of processes shows."""
        from osmosis_ai.rollout.loop.workflow import SETTINGS_ENV

        return {**environ, SETTINGS_ENV: self.settings.model_dump_json()}


def imported_files(directory: Path, *references: str) -> tuple[Path, ...]:
    """Return the user's own files among the imported modules: those in ``directory`` or in the packages referred to."""
    packages = {reference.partition(":")[0].partition(".")[0] for reference in references}
    paths = sysconfig.get_paths()
    libraries = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    installed = [_PACKAGE, *(Path(place).resolve() for place in {*libraries, *site.getsitepackages()})]
    found = set()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py"):
            continue
        path = Path(file).resolve()
        is_wanted = name.partition(".")[0] in packages or path.is_relative_to(directory)
        # Modules made at run time name files that do not exist: torch's have "_classes.py".
        if is_wanted and path.is_file() and not any(map(path.is_relative_to, installed)):
            found.add(path)
    return tuple(sorted(found))


@dataclass(frozen=True)
class LoopDataset(DatasetInput):
    """The rows of an agent loop: prompts become messages, other columns metadata."""

    def rows(self, selection: Selection) -> Iterator[tuple[int, DatasetRow]]:
        """Yield (row_index, row) of the selected rows, which are contiguous."""
        from osmosis_ai.datasets import DatasetRow

        first, count = selection.indices[0], 0
        for count, row in enumerate(DatasetReader(self.path).iter_rows(len(selection), first), 1):
            yield (
                count - 1,
                DatasetRow(
                    source_row_index=first + count - 1,
                    messages=row_messages(row),
                    label=row["ground_truth"],
                    metadata=other_columns(row) or None,
                ),
            )
        if count < len(selection):
            raise OsmosisError(f"'{self.path}' no longer has row {first + count}: the file was changed.")


def recorded_runs(events: Path, table: AttemptTable) -> Iterator[list[TerminalRecord]]:
    """Yield the latest records of each row that has one, by row and run."""
    if not events.exists():
        return
    with JournalReader(events) as journal:
        for _, attempts in groupby(table.recorded(), key=lambda attempt: attempt[0]):
            records = [journal.record(offset) for _, _, offset in attempts]
            yield [record for record in records if record is not None]


@dataclass(frozen=True)
class ClassicResults:
    """The results of a classic evaluation.

    Attributes:
        summary: how the run ended.
        functions: the numbers of each eval function.
        reward: those of the agent's own reward; None if no run has one.
        rows: rows with at least one finished run.
    """

    summary: RunSummary
    functions: Mapping[str, EvalEvalSummary]
    reward: EvalEvalSummary | None
    rows: int

    @property
    def runs(self) -> int:
        """Finished runs."""
        return self.summary.total_work_items - self.pending

    @property
    def failed(self) -> int:
        return self.runs - self.summary.succeeded

    @property
    def pending(self) -> int:
        """Runs without a result; a failed run that is to be redone has one."""
        return self.summary.metrics.estimates.counts.pending

    def to_json(self) -> dict[str, Any]:
        """Return the documented ``summary``, with our fields added."""
        estimates = self.summary.metrics.estimates
        without_tokens = estimates.tokens.unreported_samples
        return {
            "total_rows": self.rows,
            "total_runs": self.runs,
            "eval_fns": {name: summary.to_json() for name, summary in self.functions.items()},
            "total_tokens": estimates.tokens.total,
            "total_duration_ms": float(self.summary.duration_ms),
            "succeeded_runs": self.summary.succeeded,
            "failed_runs": self.failed,
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
    scores: dict[str, list[list[float | None]]] = {name: [] for name in (*eval_fns, AGENT_SCORE)}
    copies, clusters = table.clusters(), []
    for records in recorded_runs(RunDirectory(summary.run_dir).events, table):
        clusters.append(int(copies[records[0].row_index]))
        for name, rows in scores.items():
            rows.append([run_scores(record).get(name) for record in records])
    functions = {
        name: summarize_scores(rows, n_runs=table.n, pass_threshold=pass_threshold, ks=ks, clusters=clusters)
        for name, rows in scores.items()
    }
    reward = functions.pop(AGENT_SCORE)
    return ClassicResults(summary, functions, reward if reward.scored else None, len(clusters))


def run_scores(record: TerminalRecord) -> Mapping[str, float]:
    """Return the scores of a run, with the agent's own reward as ``AGENT_SCORE``; a failed run has none."""
    return (record.scores or {}) if record.status == "success" else {}


def run_json(record: TerminalRecord) -> dict[str, Any]:
    """Return a run's entry in the results file: the documented fields, then those of ours that have a value."""
    scores, unscored = dict(run_scores(record)), dict(record.unscored or {})
    reward = scores.pop(AGENT_SCORE, None)
    ours = {
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
        **({"error": record.error} if record.error else {}),
        **({"reward": reward} if reward is not None else {}),
        **{name: value for name, value in ours.items() if value},
    }


def require_writable_results(path: Path) -> None:
    """Check that the results file can be written, and create its directory."""
    with _writing(path):
        require_writable(path)


def write_results(
    path: Path, config: Mapping[str, Any], summary: Mapping[str, Any], rows: Iterable[list[TerminalRecord]]
) -> None:
    """Write the documented results file row by row, completely or not at all."""
    with _writing(path), replacing_or_streaming(path, mode=0o644) as out:
        head = json.dumps({"config": config, "summary": summary}, indent=2, ensure_ascii=False)
        out.write(_encoded(head.removesuffix("\n}")) + b',\n  "rows": [')
        separator = "\n"
        for records in rows:
            first = records[0]
            index = first.source_row_index if first.source_row_index is not None else first.row_index
            row = {"row_index": index, "runs": [run_json(record) for record in records]}
            text = json.dumps(row, indent=2, ensure_ascii=False)
            out.write(_encoded(separator + textwrap.indent(text, "    ")))
            separator = ",\n"
        out.write(b"]\n}\n" if separator == "\n" else b"\n  ]\n}\n")


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OsmosisError(
            f"the results cannot be written to `{path}`: {error.strerror or error}.",
            hint="name a file in a directory that you may write to: -o FILE",
        ) from None


def _encoded(text: str) -> bytes:
    # A lone surrogate, which a model may produce, becomes its JSON escape.
    return text.encode("utf-8", "backslashreplace")
