"""`osmosis eval -m module:agent`: run an agent loop on a dataset and score it with eval functions.

Everything is checked before anything starts, in this order: options, agent, dataset, eval functions, model, results
file. The run itself is the same as that of `eval run`.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from osmosis_ai._version import __version__
from osmosis_ai.config.sections import EvaluationSettings, Experiment
from osmosis_ai.config.toml_text import config_text
from osmosis_ai.datasets import Selection, file_digest
from osmosis_ai.errors import MissingExtraError, OsmosisError
from osmosis_ai.evaluation.agent_loop.eval_run import (
    ClassicResults,
    ImportedAgent,
    LoopDataset,
    imported_files,
    require_tools,
    require_writable_results,
    rows_json,
    summarize_runs,
    write_results,
)
from osmosis_ai.evaluation.agent_loop.inputs import MAX_TOKENS_TOTAL, DatasetReader
from osmosis_ai.evaluation.agent_loop.llm_client import choose_model
from osmosis_ai.evaluation.hooks import RunHooks, RunSummary
from osmosis_ai.evaluation.runner import EvalRunner
from osmosis_ai.evaluation.spec import EvalRunOptions, EvalRunSpec
from osmosis_ai.llm.prices import price_of
from osmosis_ai.redaction import Redactor
from osmosis_ai.rollout.cli_utils import load_agent_loop
from osmosis_ai.rollout.core.base import RolloutAgentLoop
from osmosis_ai.rollout.eval_functions import EvalFnWrapper, load_eval_fns
from osmosis_ai.rollout.hosting import HostedLoopSettings
from osmosis_ai.services.agent_loops import LoopRequest, require_at_least
from osmosis_ai.workspace.layout import WorkspaceDirectory

EVAL_FN_TIMEOUT_S = 600.0
"""Default time limit of an attempt's eval functions, in seconds; the user's limit replaces it."""


@dataclass(frozen=True, kw_only=True)
class ClassicEvalRequest(LoopRequest):
    """The valid options of an evaluation.

    Attributes:
        eval_fns: ``module:function`` each.
        n: attempts per row.
        ks: further k to estimate pass@k for.
        timeout_s: time limit of an attempt, and again of its eval functions, in seconds.
        options: how to run it, such as its name, servers, seed and budget.
    """

    eval_fns: tuple[str, ...]
    n: int = 1
    pass_threshold: float = 1.0
    ks: tuple[int, ...] = ()
    timeout_s: float | None = None
    options: EvalRunOptions = field(default_factory=EvalRunOptions)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least("--n", self.n, 1)
        for k in self.ks:
            require_at_least("--k", k, 1)
            if k > self.n:
                raise OsmosisError(f"--k must be <= --n ({self.n}): pass@{k} needs {k} runs of a row.")
        if not math.isfinite(self.pass_threshold):
            raise OsmosisError("--pass-threshold must be a finite number.")


@dataclass(frozen=True)
class PreparedClassicEval:
    """An evaluation whose parts have been found and checked."""

    request: ClassicEvalRequest
    agent: RolloutAgentLoop
    eval_fns: tuple[EvalFnWrapper, ...]
    source: ImportedAgent
    spec: EvalRunSpec
    dataset: LoopDataset
    selection: Selection

    @property
    def workspace(self) -> WorkspaceDirectory:
        """The current directory: a classic evaluation keeps its run there, whether or not it is a workspace."""
        return WorkspaceDirectory(self.source.path)

    @property
    def config(self) -> dict[str, Any]:
        """The ``config`` of the results file: the documented fields and every other setting that affects scores."""
        request = self.request
        return {
            "model": request.model,
            "n_runs": request.n,
            "pass_threshold": request.pass_threshold,
            "eval_fns": list(request.eval_fns),
            "agent": self.agent.name,
            "module": request.module,
            "dataset": str(request.dataset),
            "base_url": request.base_url,
            "batch_size": request.batch_size,
            "max_turns": request.max_turns,
            "completion_params": request.completion_params,
            "limit": request.limit,
            "offset": request.offset,
            "seed": request.options.seed,
            "timeout_s": request.timeout_s,
        }


def prepare_classic_eval(request: ClassicEvalRequest) -> PreparedClassicEval:
    """Find and check everything that a run needs, without starting anything."""
    missing = next((name for name in ("fastapi", "uvicorn") if find_spec(name) is None), None)
    if missing is not None:
        raise MissingExtraError("server", missing)
    directory = Path.cwd()
    with _user_code():
        agent = load_agent_loop(request.module)
    dataset, selection = _select_rows(request)
    with _user_code():
        require_tools(
            agent,
            DatasetReader(request.dataset).iter_rows(len(selection), request.offset),
            first_index=request.offset,
            max_turns=request.max_turns,
            completion_params=request.completion_params,
            rollout_id_prefix="eval",
        )
        eval_fns = tuple(load_eval_fns(request.eval_fns))
    endpoint = choose_model(request.model, base_url=request.base_url, api_key=request.api_key)
    is_limited = request.options.budget.max_cost_usd is not None
    if is_limited and endpoint is not None and price_of(endpoint) is None:
        raise OsmosisError(
            f"--max-cost requires a price, and the price of '{request.model}' is unknown.",
            hint="use '--max-total-tokens' or '--max-time' instead",
        )
    if request.output is not None:
        require_writable_results(request.output)
    # Not validated: a config's path may not look like `C:...`, but a module may.
    experiment = Experiment.model_construct(
        rollout=agent.name, entrypoint=request.module, model_path=request.model.strip(), dataset=dataset.name
    )
    evaluation = EvaluationSettings(
        n=request.n,
        batch_size=request.batch_size,
        pass_threshold=request.pass_threshold,
        agent_workflow_timeout_s=request.timeout_s,
        grader_timeout_s=request.timeout_s or EVAL_FN_TIMEOUT_S,
    )
    hosting = HostedLoopSettings(
        eval_fns=list(request.eval_fns),
        max_turns=request.max_turns,
        max_tokens_total=MAX_TOKENS_TOTAL,
        completion_params=request.completion_params,
        metadata={"execution_mode": "eval"},
        rollout_ids="eval",
        debug_dir=str(directory / "local_debug") if request.debug else None,
        needs_reward=False,
    )
    return PreparedClassicEval(
        request=request,
        agent=agent,
        eval_fns=eval_fns,
        source=ImportedAgent(
            path=directory,
            settings=hosting,
            base_url=request.base_url,
            files=imported_files(directory.resolve(), request.module, *request.eval_fns),
        ),
        spec=EvalRunSpec(experiment, evaluation),
        dataset=dataset,
        selection=selection,
    )


async def run_classic_eval(prepared: PreparedClassicEval, hooks: RunHooks) -> ClassicResults:
    """Run or resume a prepared evaluation and write the results file."""
    request, workspace = prepared.request, prepared.workspace
    try:
        workspace.create_state_dir()
    except OSError as error:
        raise OsmosisError(
            f"Directory cannot be written: '{workspace.state_dir}' ({error.strerror or error}).",
            hint="start the run in a writable directory",
        ) from None
    runner = EvalRunner(
        spec=prepared.spec,
        options=request.options,
        dataset=prepared.dataset,
        selection=prepared.selection,
        rollout=prepared.source,
        output_root=workspace.evals_dir,
        hooks=hooks,
        open_model=request.open_model,
        provenance={
            "sdk_version": __version__,
            "dataset_name": prepared.dataset.name,
            "dataset_path": str(prepared.dataset.path.absolute()),
        },
        config_text=Redactor(filter(None, [request.api_key])).text(config_text(prepared.config)),
        config_stem=prepared.agent.name,
    )
    found: list[ClassicResults] = []

    async def summarize(summary: RunSummary) -> None:
        results = summarize_runs(
            summary,
            runner.table,
            eval_fns=request.eval_fns,
            pass_threshold=request.pass_threshold,
            ks=request.ks,
        )
        if request.output is not None:
            run = {"run_name": summary.run_dir.name, "run_dir": str(summary.run_dir)}
            document = {
                "config": prepared.config,
                "summary": results.to_json() | run,
                "rows": rows_json(results.rows),
            }
            write_results(request.output, document)
        found.append(results)

    if await runner.run(summarize) is None:
        raise OsmosisError("The run was not started.")
    return found[0]


@contextlib.contextmanager
def _user_code() -> Iterator[None]:
    """Import user code: its prints stay off stdout, and its directory cannot shadow later imports."""
    path = list(sys.path)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.path[:] = path


def _select_rows(request: ClassicEvalRequest) -> tuple[LoopDataset, Selection]:
    reader = DatasetReader(request.dataset)
    total, start = len(reader), request.offset
    stop = total if request.limit is None else min(total, start + request.limit)
    if start >= stop:
        offset = f", and --offset is {start}" if start else ""
        rows = "row" if total == 1 else "rows"
        raise OsmosisError(f"No rows to evaluate: {request.dataset} has {total} {rows}{offset}.")
    path = reader.file_path.absolute()
    dataset = LoopDataset(path, path.stem, file_digest(path), "explicit")
    return dataset, Selection(range(start, stop), total, "first" if start == 0 else "chosen")
