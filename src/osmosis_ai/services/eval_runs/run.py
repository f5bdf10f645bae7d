"""Run an evaluation on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from osmosis_ai._version import __version__
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.config.sections import PREVIEWS_KEY, previews_enabled, served_agent
from osmosis_ai.datasets import Selection, count_records, file_digest, select_rows
from osmosis_ai.errors import InteractiveRequiredError, NotFoundError, OsmosisError
from osmosis_ai.evaluation.hooks import RunHooks, RunSummary
from osmosis_ai.evaluation.spec import DatasetInput, EvalRunOptions, EvalRunSpec
from osmosis_ai.files import cache_dir, expanded, require_directory
from osmosis_ai.services.eval_runs.samples import require_sliceable
from osmosis_ai.workspace.config_files import (
    EvalConfig,
    decisions_about,
    entrypoint_path,
    load_eval_config,
    rollout_directory,
)
from osmosis_ai.workspace.git import read_git_state
from osmosis_ai.workspace.layout import WorkspaceDirectory, find_dataset_file, find_workspace, similar_dataset

if TYPE_CHECKING:
    from osmosis_ai.evaluation.sources import RolloutSource
    from osmosis_ai.sandbox.bubblewrap import Network, Sandbox
    from osmosis_ai.services.datasets import OpenNamedProgress


_OPTIONS = {"isolation": "--isolate", "network": "--network none", "servers": "--servers"}


def local_sandbox(root: Path, rollout_dir: Path, *, network: Network, port: int | None) -> Sandbox:
    """Return a local rollout's sandbox, which shows its workspace without `.env`, earlier runs and other dotfiles."""
    from osmosis_ai.sandbox.control_groups import RunLimits
    from osmosis_ai.sandbox.isolation import check_sandbox, choose_isolation

    if network == "none" and port is not None:
        raise OsmosisError(
            "'--rollout-port' and '--network none' are mutually exclusive.",
            hint="leave the port out: the server is reached by a socket",
        )
    capability = check_sandbox()
    choose_isolation("required", capability, network)
    # A link could point outside the workspace.
    shown = [place for place in root.iterdir() if not place.name.startswith(".") and not place.is_symlink()]
    return capability.sandbox(rollout_dir, readable=shown, limits=RunLimits(), network=network)


def _advanced_note(advanced: Mapping[str, Any], sandbox: Sandbox | None) -> str:
    """Return a note about a config's ``[advanced]`` section for a local run."""
    from osmosis_ai.config.execution import EXECUTION

    said = "`[advanced]` is recorded, but has no effect on this machine"
    asked = advanced.get(EXECUTION)
    given = set() if sandbox is None else {"isolation", *(["network"] if sandbox.network == "none" else [])}
    options = [
        f"`{option}` is for its `{key}`"
        for key, option in _OPTIONS.items()
        if isinstance(asked, Mapping) and key in asked and key not in given
    ]
    return f"{said}; {' and '.join(options)}." if options else f"{said}."


@dataclass(frozen=True)
class EvalRunRequest:
    """Options of a local evaluation.

    ``rows`` overrides the config's ``limit``, ``slices`` add to those of its decide file, values of secrets override
    the environment, and a restricted network implies a sandbox.
    """

    config: Path
    dataset_file: Path | None = None
    rows: str | None = None
    output: Path | None = None
    secret_values: Mapping[str, str] | None = None
    slices: tuple[str, ...] = ()
    isolate: bool = False
    network: Network = "host"
    run: EvalRunOptions = field(default_factory=EvalRunOptions)

    def options(self, shown: Callable[[Path], str] = str) -> list[str]:
        """Return the options that a command needs to resume this run or retry its failures."""
        given: list[tuple[str, object]] = [
            ("--rows", self.rows),
            ("--dataset-file", self.dataset_file and shown(self.dataset_file)),
            ("--output", self.output and shown(self.output)),
            ("--seed", self.run.seed or None),
            ("--max-in-flight", self.run.max_in_flight),
            ("--servers", self.run.servers),
            ("--network", None if self.network == "host" else self.network),
        ]
        words = [word for option, value in given if value is not None for word in (option, str(value))]
        flags = {"--no-previews": not self.run.previews, "--isolate": self.isolate}
        return [*words, *(flag for flag, is_set in flags.items() if is_set)]


@dataclass(frozen=True)
class PreparedEvalRun:
    """A run with validated inputs, and notes to show before confirmation.

    ``served`` models are Osmosis's own, which cost nothing. ``options`` are the request's, with the number of servers and
    the config's decision on previews.
    """

    request: EvalRunRequest
    workspace: WorkspaceDirectory
    config: EvalConfig
    spec: EvalRunSpec
    dataset: DatasetInput
    selection: Selection
    rollout: RolloutSource
    output_root: Path
    provenance: Mapping[str, Any]
    notes: tuple[str, ...]
    served: bool
    slices: tuple[str, ...] = ()
    options: EvalRunOptions = field(default_factory=EvalRunOptions)


def prepare_eval_run(
    request: EvalRunRequest,
    *,
    fetching: OpenNamedProgress = lambda _name, _size: nullcontext(lambda _done: None),
) -> PreparedEvalRun:
    """Find and validate the inputs of a run; writes nothing except a dataset to the cache."""
    from osmosis_ai.config.execution import read_execution
    from osmosis_ai.controller.server_process import default_servers
    from osmosis_ai.inference import served_models

    workspace = find_workspace()
    config = load_eval_config(request.config, workspace)
    spec = EvalRunSpec(config.experiment, config.evaluation, env=config.env, secret_names=config.secrets)
    rollout = _rollout(workspace, config, request)
    served = spec.experiment.model_path in served_models()
    _check_policy(spec, request, served=served)
    path, source = _dataset_file(workspace, config.experiment.dataset, request.dataset_file, fetching)
    selection = select_rows(count_records(path), limit=config.evaluation.limit, rows=request.rows)
    decided = decisions_about(config.path, workspace)
    slices = tuple(dict.fromkeys((*request.slices, *decided.slices)))
    require_sliceable(slices, path, selection)
    provenance, notes = _provenance(workspace, config, path, rollout.sandbox)
    provenance["reward_range"] = None if decided.reward_range is None else list(decided.reward_range)
    isolation = f"bubblewrap, network {rollout.sandbox.network}" if rollout.sandbox is not None else None
    provenance["isolation"] = isolation
    provenance["options"] = request.options(lambda given: _in_workspace(workspace, expanded(given)))
    servers = request.run.servers
    if servers is None:
        gpus = read_execution(config.advanced).gpus
        servers = 1 if request.run.rollout_port is not None else default_servers(gpus=gpus)
    output_root = expanded(request.output).absolute() if request.output else workspace.evals_dir
    require_directory(output_root)
    return PreparedEvalRun(
        request=request,
        workspace=workspace,
        config=config,
        spec=spec,
        dataset=DatasetInput(path, config.experiment.dataset, file_digest(path), source),
        selection=selection,
        rollout=rollout,
        output_root=output_root,
        provenance=provenance,
        notes=notes,
        served=served,
        slices=slices,
        options=replace(
            request.run,
            servers=servers,
            previews=request.run.previews and decided.previews and previews_enabled(config.advanced),
        ),
    )


async def run_eval(prepared: PreparedEvalRun, hooks: RunHooks) -> RunSummary | None:
    """Run a prepared evaluation; return None if ``hooks`` declined to start."""
    from osmosis_ai.evaluation.runner import EvalRunner
    from osmosis_ai.evaluation.sources import open_policy

    if prepared.output_root.is_relative_to(prepared.workspace.state_dir):
        prepared.workspace.create_state_dir()
    runner = EvalRunner(
        spec=prepared.spec,
        options=prepared.options,
        dataset=prepared.dataset,
        selection=prepared.selection,
        rollout=prepared.rollout,
        output_root=prepared.output_root,
        hooks=hooks,
        open_model=lambda env, lost: open_policy(prepared.spec.experiment.model_path, env, lost),
        provenance=prepared.provenance,
        config_text=prepared.config.text,
        config_stem=prepared.config.path.stem,
        cache_dir=None if prepared.rollout.sandbox is None else cache_dir() / "sandboxed",
    )
    return await runner.run()


def find_secret_values(
    names: Sequence[str],
    *,
    given: Mapping[str, str],
    environ: Mapping[str, str],
    ask: Callable[[str], str | None],
) -> dict[str, str]:
    """Return a value for every name: from ``given``, else ``environ``, else by asking."""
    found = {name: value for name in names if (value := given.get(name) or environ.get(name) or ask(name))}
    if missing := [name for name in names if name not in found]:
        raise InteractiveRequiredError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set (required by [secrets].required).",
            details={"missing": missing, "flags": ["--secrets-file"]},
            hint=f"export {missing[0]}=…, or pass '--secrets-file'; secrets stored on a platform are not used here",
        )
    return found


def _rollout(workspace: WorkspaceDirectory, config: EvalConfig, request: EvalRunRequest) -> RolloutSource:
    from osmosis_ai.evaluation.sources import ProjectSource

    agent = served_agent(config.experiment.entrypoint)
    isolate = request.isolate or request.network == "none"
    if agent is not None:
        if isolate:
            raise OsmosisError(f"The remote agent at {agent} cannot be sandboxed on this machine.")
        return _served(agent)
    entrypoint_path(workspace, config.experiment.rollout, config.experiment.entrypoint)
    directory = rollout_directory(workspace, config.experiment.rollout)
    if not isolate:
        return ProjectSource(directory)
    sandbox = local_sandbox(workspace.root, directory, network=request.network, port=request.run.rollout_port)
    return ProjectSource(directory, sandbox)


def _served(agent: str) -> RolloutSource:
    from osmosis_ai.controller.remote_agents import AgentAddress, AgentAddressError
    from osmosis_ai.evaluation.sources import RemoteSource
    from osmosis_ai.services.rollouts import AGENT_KEY_ENV, agent_key

    try:
        address = AgentAddress.parse(agent, agent_key())
    except AgentAddressError as error:
        raise OsmosisError(
            f"The address of the remote agent 'server://{agent}' is incomplete: {error.message}",
            hint="write server://HOST:PORT; the names of registered agents are known to their platform alone "
            "(`osmosis eval submit`)",
        ) from None
    return RemoteSource(
        agent, lambda: address, hint=f"start it with `osmosis serve`, and put its key into {AGENT_KEY_ENV}"
    )


def _dataset_file(
    workspace: WorkspaceDirectory, name: str, explicit: Path | None, fetching: OpenNamedProgress
) -> tuple[Path, str]:
    """Return the given file, or else the workspace's or the platform's dataset of that name."""
    from osmosis_ai.api.credentials import require_credentials
    from osmosis_ai.services.context import find_checkout, open_context
    from osmosis_ai.services.datasets import fetch_dataset

    if explicit is not None:
        path = expanded(explicit).absolute()
        if not path.is_file():
            problem = "is a directory" if path.is_dir() else "not found"
            raise NotFoundError(f"Dataset file '{explicit}' {problem}.")
        return path, "explicit"
    found = find_dataset_file(workspace, name)
    if found is not None:
        return found, "workspace"
    missing = f"Dataset '{name}' of the config not found in {workspace.data_dir}"
    near = similar_dataset(workspace, name)
    hint = f"did you mean '{near}'?" if near else "put the file there, or pass '--dataset-file FILE'"
    try:
        find_checkout(workspace.root)
        require_credentials()
    except OsmosisError as error:
        unasked = f"{hint}; the platform was not asked: {error.message}"
        raise NotFoundError(f"{missing}.", hint=hint if near else unasked) from None
    with open_context(workspace.root) as context:
        try:
            dataset = fetch_dataset(context.client, name, progress=fetching)
        except PlatformError as error:
            if error.status != 404 or (error.platform_code or "").startswith("GIT_"):
                raise
            raise NotFoundError(
                f"{missing} or on {context.client.platform_url}.",
                hint=hint if near else f"{hint}, or upload it: osmosis dataset upload FILE",
            ) from None
    return dataset.path, dataset.source


def _check_policy(spec: EvalRunSpec, request: EvalRunRequest, *, served: bool) -> None:
    """Check early that the model is known, has a key and, with a cost limit, a price."""
    from osmosis_ai.inference import served_models
    from osmosis_ai.llm.prices import price_of
    from osmosis_ai.llm.providers import resolve_model

    if served:
        return
    env = {**os.environ, **spec.env, **(request.secret_values or {})}
    try:
        endpoint = resolve_model(spec.experiment.model_path, env, served=served_models())
    except OsmosisError as error:
        if error.details.get("missing_variable") in spec.secret_names:
            return  # the user is asked for it
        if ":" in spec.experiment.model_path and not error.details.get("missing_variable"):
            error.hint = (
                f"an adapter exists only on its platform: osmosis eval submit {quote(str(request.config))}"
            )
        raise
    limited = request.run.budget.max_cost_usd is not None
    if limited and price_of(endpoint) is None:
        raise OsmosisError(
            f"The price of '{spec.experiment.model_path}' is unknown (required by '--max-cost').",
            hint="limit the run with '--max-tokens' or '--max-time' instead",
        )


def _provenance(
    workspace: WorkspaceDirectory, config: EvalConfig, dataset: Path, sandbox: Sandbox | None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    git, experiment = read_git_state(workspace.root), config.experiment
    notes = []
    if config.advanced.keys() - {PREVIEWS_KEY}:
        notes.append(_advanced_note(config.advanced, sandbox))
    if experiment.branch and experiment.branch != git.branch:
        notes.append(
            f"the config pins branch `{experiment.branch}`; this runs the checked-out commit ({git.branch})."
        )
    pinned = experiment.commit_sha
    if pinned and not (git.head or "").startswith(pinned.lower()):
        notes.append(
            f"the config pins commit {pinned}; this runs the checked-out commit ({(git.head or 'none')[:12]})."
        )
    facts = {
        "sdk_version": __version__,
        "git_head": git.head,
        "git_branch": git.branch,
        "git_dirty": git.dirty,
        "config_branch": experiment.branch,
        "config_commit_sha": pinned,
        "advanced": dict(config.advanced) or None,
        "config": _in_workspace(workspace, config.path),
        "dataset_name": experiment.dataset,
        "dataset_path": str(dataset.absolute()),
    }
    return facts, tuple(notes)


def _in_workspace(workspace: WorkspaceDirectory, path: Path) -> str:
    """Return a path relative to the workspace; paths outside it are unchanged."""
    resolved, root = path.resolve(), workspace.root.resolve()
    return resolved.relative_to(root).as_posix() if resolved.is_relative_to(root) else str(resolved)
