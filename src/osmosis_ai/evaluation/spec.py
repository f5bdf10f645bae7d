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
from osmosis_ai.driving.driver import AttemptTimeouts
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
    from osmosis_ai.datasets import DatasetRow, Selection


@dataclass(frozen=True)
class EvalRunSpec:
    """One evaluation, in the words of its config: which agent, which policy, which data, how many attempts.

    Attributes:
        experiment: what it pins of the code is recorded only.
        evaluation: how much is evaluated, and what passes.
        env: variables of the rollout's server.
        secret_names: variables whose values come from the user's environment.
    """

    experiment: Experiment
    evaluation: EvaluationSettings
    env: Mapping[str, str] = field(default_factory=dict)
    secret_names: tuple[str, ...] = ()

    @property
    def timeouts(self) -> AttemptTimeouts:
        """What each attempt may take."""
        settings = self.evaluation
        return AttemptTimeouts(settings.agent_workflow_timeout_s, settings.grader_timeout_s)


@dataclass(frozen=True)
class EvalRunOptions:
    """How to run it this time.

    Args:
        name: the run's name; generated, or that of the run to continue, when None.
        fresh: put an existing run of that name aside and start anew.
        retry_failed: also redo failed and skipped attempts.
        salvage: make a damaged journal whole again out of its intact lines, and redo the rest.
        max_in_flight: rollouts at once; wins over the specification's ``batch_size``.
        rollout_port: port of the rollout's server; None takes a free one.
        servers: rollout servers that work on it at once; those with nothing to do are not started.
        preflight: ask the model once before the first attempt.
        seed: the run's seed; part of the resume lock.
        budget: when to stop dispatching.
        previews: whether the journal keeps how input and output of each sample begin.
        adopts_journal: whether a journal of that name, without anything beside it, is this run's: come from another
            machine.
        worked_before_s: seconds that earlier sessions worked at least, also on other machines.
    """

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
    """The file that holds the rows, in the form that `rollouts/` agents take.

    Args:
        name: as the config calls it.
        sha256: digest of the file's bytes.
        source: where it was found (``explicit``, ``workspace`` …).
    """

    path: Path
    name: str
    sha256: str
    source: str

    def rows(self, selection: Selection) -> Iterator[tuple[int, DatasetRow]]:
        """Yield (row_index, row) of the selected rows, reading no further than the last of them.

        Raises:
            OsmosisError: when a row before the last selected one cannot be used, or the file has become shorter.
        """
        from osmosis_ai.evaluation.pending import selected_rows

        return selected_rows(self.path, selection)


def keeps_previews(advanced: Mapping[str, Any] | None) -> bool:
    """Tell whether a config lets records say how input and output begin: ``[advanced] previews = false`` does not.

    What is neither true nor false means no, too: it was written to keep something out.
    """
    return (advanced or {}).get(PREVIEWS_KEY, True) is True


def _whole(name: str, value: Any) -> list[str]:
    if value is None:
        return []
    return (
        []
        if type(value) is int and value > 0
        else [f"`{name}` must be a whole number above 0, not {value!r}"]
    )
