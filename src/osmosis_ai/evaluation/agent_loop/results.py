"""What the classic evaluation came to: the documented results file, with our fields added and none renamed.

Everything is read from the run's journal, so that the numbers after a crash are those of an undisturbed run. The
documented numbers count every run, and one that failed or has no score counts 0.0 and never passes; ours, beside
them, are of the runs that have a score.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.agent_loop.score_summary import EvalEvalSummary, summarize_scores
from osmosis_ai.evaluation.journal import JournalReader, load_results
from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.evaluation.results import AttemptTable
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.files import replacing_or_streaming, require_writable
from osmosis_ai.rollout.loop.eval_functions import AGENT_SCORE

_INDENT = "  "


@dataclass(frozen=True)
class ClassicSettings:
    """What the results depend on and say of themselves."""

    rows: int
    n: int
    pass_threshold: float
    eval_fns: Sequence[str]
    ks: Sequence[int] = ()


@dataclass(frozen=True)
class ClassicResults:
    """The numbers of a classic evaluation."""

    functions: Mapping[str, EvalEvalSummary]
    reward: EvalEvalSummary | None
    rows: int
    runs: int
    succeeded: int
    pending: int
    tokens: int
    cost_usd: float | None
    uncounted: int = 0

    @property
    def failed(self) -> int:
        """Runs that ended without success."""
        return self.runs - self.succeeded

    def to_json(self, duration_ms: float) -> dict[str, Any]:
        """Return the documented ``summary``, with ours beside its fields."""
        return {
            "total_rows": self.rows,
            "total_runs": self.runs,
            "eval_fns": {name: summary.to_json() for name, summary in self.functions.items()},
            "total_tokens": self.tokens,
            "total_duration_ms": duration_ms,
            "succeeded_runs": self.succeeded,
            "failed_runs": self.failed,
            "pending_runs": self.pending,
            "cost_usd": self.cost_usd,
            **({"reward": self.reward.to_json()} if self.reward is not None else {}),
            **({"runs_without_tokens": self.uncounted} if self.uncounted else {}),
        }


class RecordedRuns:
    """The latest record of every run in a journal, by row and run; read anew each time it is gone through."""

    def __init__(self, directory: RunDirectory, settings: ClassicSettings) -> None:
        self._directory = directory
        self._table = AttemptTable(settings.rows, settings.n)
        load_results(directory.events, self._table)

    def __iter__(self) -> Iterator[TerminalRecord]:
        if not self._directory.events.exists():
            return
        with JournalReader(self._directory.events) as journal:
            for _, _, offset in self._table.recorded():
                record = journal.record(offset)
                if record is not None:
                    yield record


def summarize_runs(records: Iterable[TerminalRecord], settings: ClassicSettings) -> ClassicResults:
    """Return the numbers of recorded runs, which come by row and run."""
    scores: dict[str, list[list[float | None]]] = {name: [] for name in (*settings.eval_fns, AGENT_SCORE)}
    table = AttemptTable(settings.rows, settings.n)
    runs = succeeded = tokens = uncounted = 0
    costs: list[float] = []
    row_indices: list[int] = []
    for row_index, of_row in groupby(records, key=lambda record: record.row_index):
        row_indices.append(row_index)
        for rows in scores.values():
            rows.append([])
        for record in of_row:
            runs += 1
            succeeded += record.status == "success"
            tokens += record.tokens or 0
            uncounted += record.has_unknown_tokens
            if record.cost_usd is not None:
                costs.append(record.cost_usd)
            if record.row_digest:
                table.set_row_digest(row_index, record.row_digest)
            given = run_scores(record)
            for name, rows in scores.items():
                rows[-1].append(given.get(name))
    clusters = table.clusters()
    functions = {
        name: summarize_scores(
            rows,
            n_runs=settings.n,
            pass_threshold=settings.pass_threshold,
            ks=settings.ks,
            clusters=[int(clusters[index]) for index in row_indices],
        )
        for name, rows in scores.items()
    }
    reward = functions.pop(AGENT_SCORE)
    return ClassicResults(
        functions=functions,
        reward=reward if reward.scored else None,
        rows=len(row_indices),
        runs=runs,
        succeeded=succeeded,
        pending=settings.rows * settings.n - runs,
        tokens=tokens,
        cost_usd=sum(costs) if costs else None,
        uncounted=uncounted,
    )


def run_scores(record: TerminalRecord) -> Mapping[str, float]:
    """Return the scores of a run, with the agent's own reward as ``AGENT_SCORE``; a failed run has none."""
    return (record.scores or {}) if record.status == "success" else {}


def run_json(record: TerminalRecord) -> dict[str, Any]:
    """Return a run as in the results file: the documented fields, then those of our own that have a value."""
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


@dataclass(frozen=True)
class ResultsFile:
    """The documented results file; written whole or not at all, row by row, whatever its size."""

    path: Path
    config: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Find out whether it can be written, without writing it; its directory is made."""
        try:
            require_writable(self.path)
        except OSError as error:
            raise self._unwritable(error) from None

    def write(self, summary: Mapping[str, Any], records: Iterable[TerminalRecord]) -> None:
        """Write it."""
        try:
            with replacing_or_streaming(self.path, mode=0o644) as out:
                head = json.dumps({"config": self.config, "summary": summary}, indent=2, ensure_ascii=False)
                out.write(_encoded(head.removesuffix("\n}")) + b',\n  "rows": [')
                separator = "\n"
                for _, of_row in groupby(records, key=lambda record: record.row_index):
                    row = json.dumps(_row_json(list(of_row)), indent=2, ensure_ascii=False)
                    out.write(_encoded(separator + textwrap.indent(row, _INDENT * 2)))
                    separator = ",\n"
                out.write(b"]\n}\n" if separator == "\n" else b"\n  ]\n}\n")
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> OsmosisError:
        return OsmosisError(
            f"the results cannot be written to `{self.path}`: {error.strerror or error}.",
            hint="name a file in a directory that you may write to: -o FILE",
        )


def _row_json(records: Sequence[TerminalRecord]) -> dict[str, Any]:
    first = records[0]
    index = first.source_row_index if first.source_row_index is not None else first.row_index
    return {"row_index": index, "runs": [run_json(record) for record in records]}


def _encoded(text: str) -> bytes:
    # Half a character, which a model may well give, becomes the escape that JSON has for it.
    return text.encode("utf-8", "backslashreplace")
