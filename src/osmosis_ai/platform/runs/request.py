"""What the submit of an evaluation asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.spec import EvalRunSpec
from osmosis_ai.platform.runs.rejection import rejected
from osmosis_ai.platform.runs.request_body import (
    RunKind,
    RunRequest,
    check_body,
    common_fields,
    read_document,
    reject_any,
    without_nulls,
)
from osmosis_ai.platform.runs.results import first_results
from osmosis_ai.platform.runs.selection import RowChoice
from osmosis_ai.workspace.config_checks import EVAL
from osmosis_ai.workspace.config_issues import Issue
from osmosis_ai.workspace.config_sections import EvaluationSettings

SEED = 0
"""The seed of a run's model calls; the same as that of `osmosis eval run`, so that results compare."""
MAX_WORK_ITEMS = 10_000_000


@dataclass(frozen=True, kw_only=True)
class EvalRequest(RunRequest):
    """A checked submit of an evaluation."""

    kind: ClassVar[RunKind] = "eval"

    evaluation: EvaluationSettings

    @property
    def seed(self) -> int:
        """The same for every evaluation."""
        return SEED

    def choose_rows(self, *, total_rows: int, sha256: str, extension: str) -> RowChoice:
        """Choose the first ``limit`` rows, or a share of all.

        Raises:
            SubmitRejectedError: with all their attempts that is too much.
        """
        rows = RowChoice.of(
            total_rows=total_rows, limit=self.evaluation.limit, sha256=sha256, extension=extension
        )
        planned = len(rows.rows()) * self.evaluation.n
        if planned > MAX_WORK_ITEMS:
            problem = f"{planned} rollouts are more than the {MAX_WORK_ITEMS} that one run may have"
            raise rejected([Issue("evaluation.n", problem)])
        return rows

    def first_results(self, rows: RowChoice) -> dict[str, Any]:
        """Return how large the run is, and nothing done."""
        return first_results(self.evaluation.pass_threshold, rows)

    def spec(self, *, commit_sha: str | None = None) -> EvalRunSpec:
        """Return what the engine runs."""
        experiment, settings = self.experiment, self.evaluation
        return EvalRunSpec(
            rollout_name=experiment.rollout,
            entrypoint=experiment.entrypoint,
            model_path=experiment.model_path,
            dataset_name=experiment.dataset,
            n=settings.n,
            batch_size=settings.batch_size,
            pass_threshold=settings.pass_threshold,
            agent_timeout_sec=settings.agent_workflow_timeout_s,
            grader_timeout_sec=settings.grader_timeout_s,
            env=self.env,
            secret_names=self.secrets,
            branch=experiment.branch,
            commit_sha=commit_sha,
        )


def parse_request(body: Mapping[str, Any]) -> EvalRequest:
    """Check the body of a submit.

    Raises:
        SubmitRejectedError: with everything that is wrong in it; no value of a secret is repeated.
    """
    document, issues = check_body(body, EVAL)
    reject_any(issues or [*_model_issues(document)])
    return _request(document, body)


def read_request(written: Mapping[str, Any]) -> EvalRequest:
    """Return the request that a run's row keeps."""
    return _request(read_document(written, EVAL))


def effective_settings(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the evaluation settings that a run's row keeps, and the defaults of those it does not.

    Lists show them for every run, so no more of the request is read.
    """
    settings = EvaluationSettings(**without_nulls(written.get("evaluation_config") or {}))
    return settings.model_dump(exclude_none=True)


def _request(document: Mapping[str, Any], body: Mapping[str, Any] | None = None) -> EvalRequest:
    return EvalRequest(
        **common_fields(document, EVAL, body),
        evaluation=EvaluationSettings(**document.get("evaluation", {})),
    )


def _model_issues(document: Mapping[str, Any]) -> Iterator[Issue]:
    """Find out whether the model can be named and keyed; a run gets no key but its own secrets."""
    from osmosis_ai.inference import served_models
    from osmosis_ai.llm.providers import resolve_model

    placeholders = dict.fromkeys(document["secrets"]["required"], "given when the run starts")
    known = {**document.get("env", {}), **placeholders}
    try:
        resolve_model(
            document["experiment"]["model_path"], known, served=dict.fromkeys(served_models(), ("", None))
        )
    except OsmosisError as error:
        missing = error.details.get("missing_variable")
        if missing is not None:
            problem = f"needs a key: store the secret `{missing}` and list it in [secrets].required"
        else:
            problem = error.message.rstrip(".")
        yield Issue("experiment.model_path", problem)
