"""What a run is (its specification) and how this invocation wants it run (its options).

Invariant: an :class:`EvalRunSpec` that exists is valid, as the sections of a config are. It decides the results and
locks a resume, save for what only reads them (``pass_threshold``) or paces them (``batch_size``);
the options never change a result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.config.execution import MOST_SERVERS
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.budget import Budget
from osmosis_ai.evaluation.run_name import check_run_name

PREVIEWS_KEY = "previews"
"""The key of ``[advanced]`` that turns previews off wherever the run is executed."""
_FRESH_HINT = (
    "without `--fresh` the run of that name goes on; `--fresh` alone puts it aside and redoes everything"
)

if TYPE_CHECKING:
    from osmosis_ai.config.sections import EvaluationSettings, Experiment
    from osmosis_ai.controller.callbacks import AttemptTimeouts
    from osmosis_ai.datasets import DatasetRow, Selection


@dataclass(frozen=True)
class EvalRunSpec:
    """One evaluation, in the words of its config: which agent, which policy, which data, how many attempts."""

    experiment: Experiment
    evaluation: EvaluationSettings
    env: Mapping[str, str] = field(default_factory=dict)
    secret_names: tuple[str, ...] = ()

    @property
    def timeouts(self) -> AttemptTimeouts:
        """What each attempt may take."""
        from osmosis_ai.controller.callbacks import AttemptTimeouts

        settings = self.evaluation
        return AttemptTimeouts(settings.agent_workflow_timeout_s, settings.grader_timeout_s)


@dataclass(frozen=True)
class EvalRunOptions:
    """How to run it this time."""

    name: str | None = None
    fresh: bool = False
    retry_failed: bool = False
    salvage: bool = False
    max_in_flight: int | None = None
    rollout_port: int | None = None
    servers: int = 1
    preflight: bool = True
    verbose: bool = False
    seed: int = 0
    budget: Budget = field(default_factory=Budget)
    previews: bool = True
    adopts_journal: bool = False
    worked_before_s: float = 0.0

    def __post_init__(self) -> None:
        if self.name is not None:
            check_run_name(self.name)
        problems = [
            *_whole("--max-in-flight", self.max_in_flight),
            *_whole("--rollout-port", self.rollout_port),
            *_whole("--servers", self.servers),
            *(
                f"`--fresh` starts over and `{option}` goes on: choose one"
                for option, is_given in (("--salvage", self.salvage), ("--retry-failed", self.retry_failed))
                if self.fresh and is_given
            ),
            *([] if type(self.seed) is int else [f"`--seed` must be a whole number, not {self.seed!r}"]),
        ]
        if self.rollout_port is not None and self.rollout_port > 65535:
            problems.append(f"`--rollout-port` must be at most 65535, not {self.rollout_port}")
        if self.servers > MOST_SERVERS:
            problems.append(f"`--servers` must be at most {MOST_SERVERS}, not {self.servers}")
        if self.rollout_port is not None and self.servers > 1:
            problems.append("`--rollout-port` is the port of one server: leave it out, or say `--servers 1`")
        if problems:
            goes_on = self.fresh and (self.salvage or self.retry_failed)
            raise OsmosisError("; ".join(problems) + ".", hint=_FRESH_HINT if goes_on else None)


@dataclass(frozen=True)
class DatasetInput:
    """The file that holds the rows, in the form that `rollouts/` agents take."""

    path: Path
    name: str
    sha256: str
    source: str

    def rows(self, selection: Selection) -> Iterator[tuple[int, DatasetRow]]:
        """Yield (row_index, row) of the selected rows, reading no further than the last of them."""
        from osmosis_ai.datasets import iter_rows

        wanted = iter(enumerate(selection.indices))
        target = next(wanted, None)
        if target is None:
            return
        for row in iter_rows(self.path):
            if row.source_row_index == target[1]:
                yield target[0], row
                target = next(wanted, None)
                if target is None:
                    return
        raise OsmosisError(f"'{self.path}' no longer has row {target[1]}: the file was changed.")


def keeps_previews(advanced: Mapping[str, Any] | None) -> bool:
    """Tell whether a config lets records say how input and output begin: ``[advanced] previews = false`` does
    not."""
    return (advanced or {}).get(PREVIEWS_KEY, True) is True


def _whole(name: str, value: Any) -> list[str]:
    if value is None:
        return []
    return (
        []
        if type(value) is int and value > 0
        else [f"`{name}` must be a whole number above 0, not {value!r}"]
    )
