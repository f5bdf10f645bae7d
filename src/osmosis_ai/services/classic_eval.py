"""`osmosis eval -m module:agent`: run an agent loop on a dataset and score it with eval functions.

Everything is checked before anything starts, in this order: options, agent, dataset, eval functions, model, results
file. The run itself is the same as that of `eval run`.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import MissingExtraError, OsmosisError
from osmosis_ai.evaluation.budget import Budget
from osmosis_ai.files import expanded
from osmosis_ai.workspace.layout import WorkspaceDirectory

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from osmosis_ai.datasets import Selection
    from osmosis_ai.evaluation.agent_loop.imported_agent import ImportedAgent, LoopDataset
    from osmosis_ai.evaluation.agent_loop.results import ClassicResults, ClassicSettings, ResultsFile
    from osmosis_ai.evaluation.hooks import RunHooks
    from osmosis_ai.evaluation.spec import EvalRunSpec
    from osmosis_ai.evaluation.summary import RunSummary
    from osmosis_ai.llm.providers import ModelEndpoint
    from osmosis_ai.rollout.loop.agent import RolloutAgentLoop
    from osmosis_ai.rollout.loop.eval_functions import EvalFnWrapper
    from osmosis_ai.rollout.loop.workflow import HostedLoopSettings

EVAL_FN_TIMEOUT_S = 600.0
"""Default time limit of an attempt's eval functions, in seconds; the user's limit replaces it."""

DEBUG_DIRECTORY = "local_debug"


@dataclass(frozen=True)
class ClassicEvalRequest:
    """The options of an evaluation.

    Attributes:
        module: ``module:attribute`` of the agent.
        dataset: a ``.json``, ``.jsonl`` or ``.parquet`` file.
        eval_fns: ``module:function`` each.
        n: attempts per row.
        batch_size: attempts at once.
        servers: the agent's servers, which share the attempts; at most ``batch_size``.
        temperature, max_tokens: passed to the agent in ``request.completion_params``.
        base_url: an OpenAI-compatible endpoint; the model's name is passed to it unchanged.
        limit, offset: which rows.
        output: the results file.
        debug: write the agent's events to files.
        ks: further k to estimate pass@k for.
        timeout_s: time limit of an attempt, and again of its eval functions, in seconds.
        probe: send the model one request before the first attempt.
        previews: keep the beginning of each attempt's input and output.
    """

    module: str
    dataset: Path
    model: str
    eval_fns: tuple[str, ...]
    n: int = 1
    pass_threshold: float = 1.0
    batch_size: int = 1
    servers: int | None = None
    max_turns: int = 10
    temperature: float | None = None
    max_tokens: int | None = None
    api_key: str | None = field(default=None, repr=False)
    base_url: str | None = None
    limit: int | None = None
    offset: int = 0
    output: Path | None = None
    debug: bool = False
    ks: tuple[int, ...] = ()
    timeout_s: float | None = None
    probe: bool = True
    name: str | None = None
    fresh: bool = False
    retry_failed: bool = False
    salvage: bool = False
    previews: bool = True
    seed: int = 0
    max_cost_usd: float | None = None
    max_total_tokens: int | None = None
    max_time_s: float | None = None

    @property
    def budget(self) -> Budget:
        """The limits after which no further attempt starts; raises as :class:`Budget`."""
        return Budget(
            self.max_cost_usd, self.max_total_tokens, self.max_time_s, tokens_option="--max-total-tokens"
        )

    @property
    def completion_params(self) -> dict[str, Any]:
        """The sampling parameters of the agent's calls."""
        from osmosis_ai.evaluation.agent_loop.inputs import build_completion_params

        return build_completion_params(self.temperature, self.max_tokens)


@dataclass(frozen=True)
class PreparedClassicEval:
    """An evaluation whose parts have been found and checked.

    Attributes:
        open_model: opens the model's endpoint for a run.
        results: the results file; None if only the run keeps the results.
    """

    request: ClassicEvalRequest
    agent: RolloutAgentLoop
    eval_fns: tuple[EvalFnWrapper, ...]
    source: ImportedAgent
    spec: EvalRunSpec
    dataset: LoopDataset
    selection: Selection
    open_model: Callable[
        [Mapping[str, str], Callable[[Exception], None]], AbstractAsyncContextManager[ModelEndpoint]
    ]
    results: ResultsFile | None

    @property
    def output_root(self) -> Path:
        return self.workspace.evals_dir

    @property
    def workspace(self) -> WorkspaceDirectory:
        """The current directory: a classic evaluation keeps its run there, whether or not it is a workspace."""
        return WorkspaceDirectory(self.source.directory)

    @property
    def settings(self) -> ClassicSettings:
        """The settings that the scores depend on."""
        from osmosis_ai.evaluation.agent_loop.results import ClassicSettings

        request = self.request
        return ClassicSettings(
            len(self.selection), request.n, request.pass_threshold, request.eval_fns, request.ks
        )


@dataclass(frozen=True)
class ClassicEvalResult:
    """How the run ended, and its metrics."""

    prepared: PreparedClassicEval
    summary: RunSummary
    results: ClassicResults


def prepare_classic_eval(request: ClassicEvalRequest) -> PreparedClassicEval:
    """Find and check everything that a run needs, without starting anything.

    Raises:
        OsmosisError: a part is missing or invalid; the error says which and how to fix it.
    """
    from osmosis_ai.config.sections import EvaluationSettings, Experiment
    from osmosis_ai.evaluation.agent_loop.imported_agent import ImportedAgent, imported_files
    from osmosis_ai.evaluation.agent_loop.results import ResultsFile
    from osmosis_ai.evaluation.spec import EvalRunSpec
    from osmosis_ai.rollout.loop.eval_functions import load_eval_fns
    from osmosis_ai.rollout.loop.loading import load_agent_loop

    check_options(request)
    _require_server()
    directory = Path.cwd()
    with _user_code():
        agent = load_agent_loop(request.module)
    dataset, selection = _rows(request)
    with _user_code():
        _require_tools(request, agent, selection)
        eval_fns = tuple(load_eval_fns(request.eval_fns))
    open_model = _model(request)
    results = ResultsFile(expanded(request.output), _config(request, agent)) if request.output else None
    if results is not None:
        results.check()
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
    return PreparedClassicEval(
        request=request,
        agent=agent,
        eval_fns=eval_fns,
        source=ImportedAgent(
            reference=request.module,
            directory=directory,
            settings=_hosting(request, directory),
            base_url=request.base_url,
            files=imported_files(directory.resolve(), request.module, *request.eval_fns),
        ),
        spec=EvalRunSpec(experiment, evaluation),
        dataset=dataset,
        selection=selection,
        open_model=open_model,
        results=results,
    )


async def run_classic_eval(prepared: PreparedClassicEval, hooks: RunHooks) -> ClassicEvalResult:
    """Run or resume a prepared evaluation and write the results file.

    Raises:
        OsmosisError: the run could not start or resume, or the results could not be written.
    """
    from osmosis_ai._version import __version__
    from osmosis_ai.controller.server_process import default_servers
    from osmosis_ai.evaluation.agent_loop.results import RecordedRuns, summarize_runs
    from osmosis_ai.evaluation.run_directory import RunDirectory
    from osmosis_ai.evaluation.runner import EvalRunner
    from osmosis_ai.evaluation.spec import EvalRunOptions

    request, found = prepared.request, []
    _keep_runs_here(prepared.workspace)
    runner = EvalRunner(
        spec=prepared.spec,
        options=EvalRunOptions(
            name=request.name,
            fresh=request.fresh,
            retry_failed=request.retry_failed,
            salvage=request.salvage,
            max_in_flight=request.batch_size,
            servers=request.servers or default_servers(),
            preflight=False,
            seed=request.seed,
            budget=request.budget,
            previews=request.previews,
        ),
        dataset=prepared.dataset,
        selection=prepared.selection,
        rollout=prepared.source,
        output_root=prepared.output_root,
        hooks=hooks,
        open_model=prepared.open_model,
        provenance={
            "sdk_version": __version__,
            "dataset_name": prepared.dataset.name,
            "dataset_path": str(prepared.dataset.path.absolute()),
        },
        config_text=_config_text(prepared),
        config_stem=prepared.agent.name,
    )

    async def summarize(summary: RunSummary) -> None:
        records = RecordedRuns(RunDirectory(summary.run_dir), prepared.settings)
        results = summarize_runs(records, prepared.settings)
        if prepared.results is not None:
            ours = {"run_name": summary.run_name, "run_dir": str(summary.run_dir)}
            prepared.results.write({**results.to_json(float(summary.duration_ms)), **ours}, records)
        found.append(ClassicEvalResult(prepared, summary, results))

    if await runner.run(summarize) is None:
        raise OsmosisError("nothing was started.")
    return found[0]


def check_options(request: ClassicEvalRequest) -> None:
    """Reject invalid values.

    Raises:
        OsmosisError: the message names the first invalid option.
    """
    least = [
        ("--n", request.n, 1),
        ("--batch-size", request.batch_size, 1),
        ("--max-turns", request.max_turns, 1),
        ("--offset", request.offset, 0),
        ("--limit", request.limit, 1),
        ("--max-tokens", request.max_tokens, 1),
        *(("--k", k, 1) for k in request.ks),
    ]
    for option, value, bound in least:
        if value is not None and value < bound:
            raise OsmosisError(f"{option} must be >= {bound}.")
    for k in request.ks:
        if k > request.n:
            raise OsmosisError(f"--k must be <= --n ({request.n}): pass@{k} needs {k} runs of a row.")
    finite = {"--pass-threshold": request.pass_threshold, "--temperature": request.temperature}
    for option, number in finite.items():
        if number is not None and not math.isfinite(number):
            raise OsmosisError(f"{option} must be a finite number.")
    if request.temperature is not None and request.temperature < 0:
        raise OsmosisError("--temperature must be >= 0.")
    if request.timeout_s is not None and not 0 < request.timeout_s < math.inf:
        raise OsmosisError("--timeout must be > 0 seconds.")
    if not request.eval_fns:
        raise OsmosisError("--eval-fn is missing: name at least one, as in --eval-fn rewards:compute_reward")
    request.budget  # noqa: B018 - it refuses what makes no sense, too


def _require_server() -> None:
    """Check that the packages of the agent's server are installed.

    Raises:
        MissingExtraError: a package is missing.
    """
    missing = next((name for name in ("fastapi", "uvicorn") if find_spec(name) is None), None)
    if missing is not None:
        raise MissingExtraError("server", missing)


@contextlib.contextmanager
def _user_code() -> Iterator[None]:
    """Import user code: its prints stay off stdout, and its directory cannot shadow later imports."""
    path = list(sys.path)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.path[:] = path


def _rows(request: ClassicEvalRequest) -> tuple[LoopDataset, Selection]:
    from osmosis_ai.datasets import Selection, file_digest
    from osmosis_ai.evaluation.agent_loop.dataset import DatasetReader
    from osmosis_ai.evaluation.agent_loop.imported_agent import LoopDataset

    reader = DatasetReader(expanded(request.dataset))
    total, start = len(reader), request.offset
    stop = total if request.limit is None else min(total, start + request.limit)
    if start >= stop:
        held = f"{request.dataset} has {total} {'row' if total == 1 else 'rows'}"
        raise OsmosisError(f"No rows to evaluate: {held}" + (f", and --offset is {start}." if start else "."))
    path = reader.file_path.absolute()
    dataset = LoopDataset(path, path.stem, file_digest(path), "explicit")
    return dataset, Selection(range(start, stop), total, "first" if start == 0 else "chosen")


def _require_tools(request: ClassicEvalRequest, agent: RolloutAgentLoop, selection: Selection) -> None:
    from osmosis_ai.evaluation.agent_loop.dataset import DatasetReader
    from osmosis_ai.evaluation.agent_loop.offered_tools import require_tools

    rows = DatasetReader(expanded(request.dataset)).iter_rows(limit=len(selection), offset=request.offset)
    require_tools(
        agent,
        rows,
        first_index=request.offset,
        max_turns=request.max_turns,
        completion_params=request.completion_params,
        rollout_id_prefix="eval",
    )


def _model(
    request: ClassicEvalRequest,
) -> Callable[[Mapping[str, str], Callable[[Exception], None]], AbstractAsyncContextManager[ModelEndpoint]]:
    """Check the model's name, key and, under a cost limit, price; return the function that opens it."""
    from osmosis_ai.evaluation.policy import open_policy
    from osmosis_ai.inference.catalog import BUILT_IN_PREFIX, built_in_model
    from osmosis_ai.llm.chosen_endpoint import choose_endpoint, probe
    from osmosis_ai.llm.prices import price_of

    model = request.model.strip()
    if request.base_url is None and model.startswith(BUILT_IN_PREFIX):
        built_in_model(model)
        return lambda env, lost: open_policy(model, env, lost)
    endpoint = choose_endpoint(model, os.environ, base_url=request.base_url, api_key=request.api_key)
    if request.max_cost_usd is not None and price_of(endpoint) is None:
        raise OsmosisError(
            f"`--max-cost` needs the price of `{model}`, and it is not known.",
            hint="limit the run with `--max-total-tokens` or `--max-time` instead",
        )

    @contextlib.asynccontextmanager
    async def opened(
        _env: Mapping[str, str], _lost: Callable[[Exception], None]
    ) -> AsyncIterator[ModelEndpoint]:
        yield await probe(endpoint) if request.probe else endpoint

    return opened


def _hosting(request: ClassicEvalRequest, directory: Path) -> HostedLoopSettings:
    from osmosis_ai.evaluation.agent_loop.dataset import MAX_TOKENS_TOTAL
    from osmosis_ai.rollout.loop.workflow import HostedLoopSettings

    return HostedLoopSettings(
        eval_fns=list(request.eval_fns),
        max_turns=request.max_turns,
        max_tokens_total=MAX_TOKENS_TOTAL,
        completion_params=request.completion_params,
        metadata={"execution_mode": "eval"},
        rollout_ids="eval",
        debug_dir=str(directory / DEBUG_DIRECTORY) if request.debug else None,
        needs_reward=False,
    )


def _config_text(prepared: PreparedClassicEval) -> str:
    """Return the options as the text of a config, without the model's key."""
    from osmosis_ai.config.written import config_text
    from osmosis_ai.redaction import Redactor

    text = config_text(_config(prepared.request, prepared.agent))
    return Redactor(filter(None, [prepared.request.api_key])).text(text)


def _config(request: ClassicEvalRequest, agent: RolloutAgentLoop) -> dict[str, Any]:
    """Return the ``config`` of the results file: the documented fields and every other setting that affects scores."""
    return {
        "model": request.model,
        "n_runs": request.n,
        "pass_threshold": request.pass_threshold,
        "eval_fns": list(request.eval_fns),
        "agent": agent.name,
        "module": request.module,
        "dataset": str(request.dataset),
        "base_url": request.base_url,
        "batch_size": request.batch_size,
        "max_turns": request.max_turns,
        "completion_params": request.completion_params,
        "limit": request.limit,
        "offset": request.offset,
        "seed": request.seed,
        "timeout_s": request.timeout_s,
    }


def _keep_runs_here(workspace: WorkspaceDirectory) -> None:
    """Create the directory of runs, which Git ignores.

    Raises:
        OsmosisError: the directory cannot be created.
    """
    try:
        workspace.create_state_dir()
    except OSError as error:
        raise OsmosisError(
            f"the run cannot be kept in `{workspace.state_dir}`: {error.strerror or error}.",
            hint="start it in a directory that you may write to",
        ) from None
