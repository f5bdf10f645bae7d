"""What a run is (its specification) and how this invocation wants it run (its options).

Invariant: an :class:`EvalRunSpec` that exists is valid. The specification decides the results and
locks a resume, save for what only reads them (``pass_threshold``) or paces them (``batch_size``);
the options never change a result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.driving.driver import AttemptTimeouts
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.budget import Budget
from osmosis_ai.evaluation.run_name import check_run_name

if TYPE_CHECKING:
    from osmosis_ai.config.sections import EvaluationSettings, Experiment

RESERVED_ENV_PREFIX = "_OSMOSIS_"


@dataclass(frozen=True)
class EvalRunSpec:
    """One evaluation: which agent, which policy, which data, how many attempts.

    Args:
        n: attempts on each row.
        batch_size: wished number of rollouts in flight.
        pass_threshold: a sample passes at this reward or above.
        agent_timeout_sec, grader_timeout_sec: seconds; None is unbounded.
        env: variables of the rollout's server.
        secret_names: variables whose values come from the user's environment.
        branch, commit_sha: what the config pins; recorded only.

    Raises:
        OsmosisError: when a value could not be run; the message names every such field.
    """

    rollout_name: str
    entrypoint: str
    model_path: str
    dataset_name: str
    n: int = 1
    batch_size: int | None = None
    pass_threshold: float = 1.0
    agent_timeout_sec: float | None = None
    grader_timeout_sec: float | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    secret_names: tuple[str, ...] = ()
    branch: str | None = None
    commit_sha: str | None = None

    def __post_init__(self) -> None:
        problems = [
            *(
                f"`{name}` must be a non-empty string"
                for name in ("rollout_name", "entrypoint", "model_path", "dataset_name")
                if not isinstance(value := getattr(self, name), str) or not value.strip()
            ),
            *_whole("n", self.n, required=True),
            *_whole("batch_size", self.batch_size),
            *_finite("pass_threshold", self.pass_threshold),
            *_timeout("agent_timeout_sec", self.agent_timeout_sec),
            *_timeout("grader_timeout_sec", self.grader_timeout_sec),
            *(
                f"`{name}` starts with `{RESERVED_ENV_PREFIX}`, which is reserved"
                for name in (*self.env, *self.secret_names)
                if name.startswith(RESERVED_ENV_PREFIX)
            ),
            *(f"`{name}` is both in `env` and a secret" for name in self.secret_names if name in self.env),
        ]
        if problems:
            raise OsmosisError(
                "this evaluation cannot be run:\n" + "\n".join(f"  - {problem}" for problem in problems)
            )

    @classmethod
    def of_config(
        cls,
        experiment: Experiment,
        settings: EvaluationSettings,
        *,
        env: Mapping[str, str],
        secret_names: tuple[str, ...],
        commit_sha: str | None,
    ) -> EvalRunSpec:
        """Return what the sections of a config ask for, wherever it is to run.

        Raises:
            OsmosisError: a value could not be run; the message names every such field.
        """
        return cls(
            rollout_name=experiment.rollout,
            entrypoint=experiment.entrypoint,
            model_path=experiment.model_path,
            dataset_name=experiment.dataset,
            n=settings.n,
            batch_size=settings.batch_size,
            pass_threshold=settings.pass_threshold,
            agent_timeout_sec=settings.agent_workflow_timeout_s,
            grader_timeout_sec=settings.grader_timeout_s,
            env=env,
            secret_names=secret_names,
            branch=experiment.branch,
            commit_sha=commit_sha,
        )

    @property
    def timeouts(self) -> AttemptTimeouts:
        """What each attempt may take."""
        return AttemptTimeouts(self.agent_timeout_sec, self.grader_timeout_sec)


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
        seed: the run's seed; part of the resume lock.
        budget: when to stop dispatching.
    """

    name: str | None = None
    fresh: bool = False
    retry_failed: bool = False
    salvage: bool = False
    max_in_flight: int | None = None
    rollout_port: int | None = None
    verbose: bool = False
    seed: int = 0
    budget: Budget = field(default_factory=Budget)

    def __post_init__(self) -> None:
        if self.name is not None:
            check_run_name(self.name)
        problems = [
            *_whole("--max-in-flight", self.max_in_flight),
            *_whole("--rollout-port", self.rollout_port),
            *(
                ["`--fresh` starts over and `--salvage` goes on: choose one"]
                if self.fresh and self.salvage
                else []
            ),
            *([] if type(self.seed) is int else [f"`--seed` must be a whole number, not {self.seed!r}"]),
        ]
        if self.rollout_port is not None and self.rollout_port > 65535:
            problems.append(f"`--rollout-port` must be at most 65535, not {self.rollout_port}")
        if problems:
            raise OsmosisError("; ".join(problems) + ".")


@dataclass(frozen=True)
class DatasetInput:
    """The file that holds the rows.

    Args:
        name: as the config calls it.
        sha256: digest of the file's bytes.
        source: where it was found (``explicit``, ``workspace`` …).
    """

    path: Path
    name: str
    sha256: str
    source: str


def _whole(name: str, value: Any, *, required: bool = False) -> list[str]:
    if value is None and not required:
        return []
    return (
        []
        if type(value) is int and value > 0
        else [f"`{name}` must be a whole number above 0, not {value!r}"]
    )


def _finite(name: str, value: Any) -> list[str]:
    fits = type(value) in (int, float) and math.isfinite(value)
    return [] if fits else [f"`{name}` must be a finite number, not {value!r}"]


def _timeout(name: str, value: Any) -> list[str]:
    return [] if value is None else _finite(name, value)
