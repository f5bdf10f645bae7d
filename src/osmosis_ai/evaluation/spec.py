"""The specification, options, budget and name of an evaluation run.

An :class:`EvalRunSpec` decides the results and must not change on resume, except for ``pass_threshold`` and
``batch_size``. :class:`EvalRunOptions` never change a result.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.config.sections import EvaluationSettings, Experiment
    from osmosis_ai.controller.record import TerminalRecord
    from osmosis_ai.datasets import DatasetRow, Selection

_MAX_NAME_LENGTH = 96
_ARCHIVE = ".archive-"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class EvalRunSpec:
    """One evaluation: agent, model, dataset and number of attempts, from the config."""

    experiment: Experiment
    evaluation: EvaluationSettings
    env: Mapping[str, str] = field(default_factory=dict)
    secret_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a run; None is no limit."""

    max_cost_usd: float | None = None
    max_tokens: int | None = None
    max_time_s: float | None = None
    tokens_option: str = "--max-tokens"

    def __post_init__(self) -> None:
        limits = {"--max-cost": self.max_cost_usd, self.tokens_option: self.max_tokens}
        for option, limit in {**limits, "--max-time": self.max_time_s}.items():
            if limit is not None and not (0 < limit < float("inf")):
                raise OsmosisError(f"'{option}' must be a positive number, not {limit}.")


@dataclass(frozen=True)
class EvalRunOptions:
    """How this invocation runs an evaluation."""

    name: str | None = None
    fresh: bool = False
    retry_failed: bool = False
    salvage: bool = False
    max_in_flight: int | None = None
    rollout_port: int | None = None
    servers: int | None = None
    preflight: bool = True
    verbose: bool = False
    seed: int = 0
    budget: Budget = field(default_factory=Budget)
    previews: bool = True
    # Of a platform's worker: the attempts (row, number) of the run that it executes. Its directory may begin with a
    # journal alone, and keeps no files that can be written again.
    only: Callable[[int, int], bool] | None = None
    worked_before_s: float = 0.0

    def __post_init__(self) -> None:
        if self.name is not None:
            check_run_name(self.name)
        if self.rollout_port is not None and (self.servers or 1) > 1:
            raise OsmosisError("'--rollout-port' requires '--servers 1'.")
        if self.fresh and (self.salvage or self.retry_failed):
            raise OsmosisError(
                f"'--fresh' and '{'--salvage' if self.salvage else '--retry-failed'}' cannot be combined.",
                hint="without '--fresh' the run of that name continues; '--fresh' alone archives it and starts over",
            )


@dataclass(frozen=True)
class DatasetInput:
    """A dataset file for agents under `rollouts/`."""

    path: Path
    name: str
    sha256: str
    source: str

    def rows(self, selection: Selection) -> Iterator[tuple[int, DatasetRow]]:
        """Yield (row_index, row) of the selected rows; reading stops after the last of them."""
        from osmosis_ai.datasets import iter_rows

        if not selection.indices:
            return
        rows = iter_rows(self.path)
        for row_index, source_row in enumerate(selection.indices):
            row = next((row for row in rows if row.source_row_index == source_row), None)
            if row is None:
                raise OsmosisError(f"'{self.path}' no longer has row {source_row}: the file was changed.")
            yield row_index, row


class Spent(NamedTuple):
    """Tokens and cost of some attempts."""

    tokens: int = 0
    cost_usd: float = 0.0


class Spending:
    """Costs of a run so far, earlier sessions included, measured against its budget.

    A budget on cost or tokens also ends when a model call has unknown cost or tokens.
    """

    def __init__(
        self, budget: Budget, *, earlier_s: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.tokens = 0
        self.cost_usd = 0.0
        self.cost_known = False
        self._has_unknown_tokens = self._has_unknown_cost = False
        self._budget = budget
        self.earlier_s = earlier_s
        self._clock = clock
        self.start_clock()

    def start_clock(self) -> None:
        """Start this session's wall clock now instead of at construction."""
        self._started = self._clock()

    def add_record(self, record: TerminalRecord) -> None:
        """Count an attempt, its judges included."""
        self.add(calls=record.model_calls or 0, tokens=record.tokens or 0, cost_usd=record.cost_usd)
        # Without calls, so that an unknown price of a judge does not end the budget.
        self.add(calls=0, tokens=record.judge_tokens or 0, cost_usd=record.judge_cost_usd)

    def add(self, *, calls: int, tokens: int, cost_usd: float | None) -> None:
        """Count the model calls of an attempt."""
        self.tokens += tokens
        self.cost_usd += cost_usd or 0.0
        self.cost_known |= cost_usd is not None
        self._has_unknown_tokens |= bool(calls and not tokens)
        self._has_unknown_cost |= bool(calls and cost_usd is None)

    @property
    def elapsed_s(self) -> float:
        """Wall-clock seconds of the run, earlier sessions included."""
        return self.earlier_s + self._clock() - self._started

    def exhausted(self, in_flight: Callable[[], Spent] = Spent) -> str | None:
        """Return why no further attempt may start, with the option to raise; None if one may start."""
        limits = self._budget
        if limits.max_time_s is not None and self.elapsed_s >= limits.max_time_s:
            return f"{self.elapsed_s:.0f} s passed of '--max-time {limits.max_time_s:g}'"
        if limits.max_cost_usd is None and limits.max_tokens is None:
            return None
        running = in_flight()
        cost_usd, tokens = self.cost_usd + running.cost_usd, self.tokens + running.tokens
        if limits.max_cost_usd is not None and cost_usd >= limits.max_cost_usd:
            return f"${cost_usd:.4f} spent of '--max-cost {limits.max_cost_usd:g}'"
        if limits.max_tokens is not None and tokens >= limits.max_tokens:
            return f"{tokens:,} tokens used of '{limits.tokens_option} {limits.max_tokens}'"
        if self._has_unknown_tokens:
            return "the model endpoint does not report token counts, so the budget cannot be enforced"
        if self._has_unknown_cost and limits.max_cost_usd is not None:
            return "the cost of a model call is unknown, so the budget cannot be enforced"
        return None


def check_run_name(name: str) -> None:
    """Refuse a name that is not one safe path segment, since it also names the run's directory."""
    if len(name) > _MAX_NAME_LENGTH or not _NAME.fullmatch(name):
        raise OsmosisError(
            f"Run name {name!r} is invalid: use at most {_MAX_NAME_LENGTH} letters, digits, '.', '_' and '-', "
            "starting with a letter or digit."
        )


def archive_name(name: str) -> str:
    """Return the name under which ``--fresh`` archives a run."""
    return f"{name}{_ARCHIVE}{stamp()}"


def is_archive(name: str) -> bool:
    """Return whether a run of this name was archived by ``--fresh``."""
    return _ARCHIVE in name


def name_before_archiving(name: str) -> str:
    """Return the name that a run had before it was archived."""
    return name.partition(_ARCHIVE)[0]


def stamp() -> str:
    """Return the current time as ``20260131T235959Z``."""
    return datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")


def new_run_names(config_stem: str, digest: str) -> Iterator[str]:
    """Yield ``<stem>-<UTC stamp>-<first 8 of the inputs' digest>``, then the same with ``-2``, ``-3`` and so on."""
    tail = f"-{stamp()}-{digest[:8]}"
    stem = _UNSAFE.sub("-", config_stem).strip("._-") or "eval"
    base = stem[: _MAX_NAME_LENGTH - len(tail) - 4] + tail
    yield base
    yield from (f"{base}-{number}" for number in itertools.count(2))
