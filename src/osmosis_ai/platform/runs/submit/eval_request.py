"""What the submit of an evaluation asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from osmosis_ai.config.checks import EVAL
from osmosis_ai.config.issues import Issue
from osmosis_ai.config.sections import EvaluationSettings
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.spec import EvalRunSpec
from osmosis_ai.platform.runs.lifecycle import RunKind
from osmosis_ai.platform.runs.submit.errors import rejected
from osmosis_ai.platform.runs.submit.model_path import MODEL_PATH, IsAdapter, is_servable, unknown_adapter
from osmosis_ai.platform.runs.submit.row_selection import RowSelection
from osmosis_ai.platform.runs.submit.run_request import (
    RunRequest,
    check_body,
    common_fields,
    read_document,
    reject_any,
    without_nulls,
)

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

    def choose_rows(self, *, total_rows: int, sha256: str, extension: str) -> RowSelection:
        """Choose the first ``limit`` rows, or a share of all."""
        rows = RowSelection.of(
            total_rows=total_rows, limit=self.evaluation.limit, sha256=sha256, extension=extension
        )
        planned = len(rows.rows()) * self.evaluation.n
        if planned > MAX_WORK_ITEMS:
            problem = f"{planned} rollouts are more than the {MAX_WORK_ITEMS} that one run may have"
            raise rejected([Issue("evaluation.n", problem)])
        return rows

    def first_results(self, rows: RowSelection) -> dict[str, Any]:
        """Return how large the run is, and nothing done."""
        return {
            "pass_threshold": self.evaluation.pass_threshold,
            "total_runs": 0,
            "sampled_rows": len(rows.rows()),
            "total_dataset_rows": rows.total_rows,
        }

    def spec(self, *, commit_sha: str | None = None) -> EvalRunSpec:
        """Return what the engine runs."""
        experiment = self.experiment.model_copy(update={"commit_sha": commit_sha})
        return EvalRunSpec(experiment, self.evaluation, env=self.env, secret_names=self.secrets)


def parse_eval_request(body: Mapping[str, Any], is_adapter: IsAdapter) -> EvalRequest:
    """Check the body of a submit."""
    document, issues = check_body(body, EVAL)
    if not any(_bars_the_model(issue.key) for issue in issues):
        issues += _model_issues(document, is_adapter)
    reject_any(issues)
    return _request(document, body)


def read_eval_request(written: Mapping[str, Any]) -> EvalRequest:
    """Return the request that a run's row keeps."""
    return _request(read_document(written, EVAL))


def effective_eval_settings(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the evaluation settings that a run's row keeps, and the defaults of those it does not."""
    settings = EvaluationSettings(**without_nulls(written.get("evaluation_config") or {}))
    return settings.model_dump(exclude_none=True)


def _request(document: Mapping[str, Any], body: Mapping[str, Any] | None = None) -> EvalRequest:
    return EvalRequest(
        **common_fields(document, EVAL, body),
        evaluation=EvaluationSettings(**document.get("evaluation", {})),
    )


def _bars_the_model(key: str) -> bool:
    """Tell whether a mistake at ``key`` leaves open which model is meant, or what it is asked with."""
    return key in ("experiment", MODEL_PATH) or key.partition(".")[0] in ("env", "secrets")


def _model_issues(document: Mapping[str, Any], is_adapter: IsAdapter) -> Iterator[Issue]:
    """Find out whether the model can be named and keyed; a run gets no key but its own secrets."""
    from osmosis_ai.inference import served_models
    from osmosis_ai.llm.providers import resolve_model

    model_path = document["experiment"]["model_path"]
    if is_adapter(model_path):
        base = model_path.rpartition(":")[0]
        if not is_servable(base):
            yield Issue(
                MODEL_PATH, f"is an adapter of `{base}`, which this platform cannot serve without torch"
            )
        return
    if (unknown := unknown_adapter(model_path)) is not None:
        yield unknown
        return
    placeholders = dict.fromkeys(document["secrets"]["required"], "given when the run starts")
    known = {**document.get("env", {}), **placeholders}
    try:
        resolve_model(model_path, known, served=served_models())
    except OsmosisError as error:
        missing = error.details.get("missing_variable")
        if missing is not None:
            problem = f"needs a key: store the secret `{missing}` and list it in [secrets].required"
        else:
            problem = error.message.rstrip(".")
        yield Issue(MODEL_PATH, problem)
