"""Running an evaluation on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.files import cache_dir, expanded

if TYPE_CHECKING:
    from osmosis_ai.datasets import Selection
    from osmosis_ai.evaluation.budget import Budget
    from osmosis_ai.evaluation.comparison.run_samples import RunSlice
    from osmosis_ai.evaluation.hooks import RunHooks
    from osmosis_ai.evaluation.rollout_source import RolloutSource
    from osmosis_ai.evaluation.spec import DatasetInput, EvalRunSpec
    from osmosis_ai.evaluation.summary import RunSummary
    from osmosis_ai.sandbox import Network, Sandbox
    from osmosis_ai.services.datasets import OpenNamedProgress
    from osmosis_ai.workspace.config_files import EvalConfig
    from osmosis_ai.workspace.layout import WorkspaceDirectory


_OPTIONS = {"isolation": "--isolate", "network": "--network none", "servers": "--servers"}


def local_sandbox(root: Path, rollout_dir: Path, *, network: Network, port: int | None) -> Sandbox:
    """Return the sandbox of a rollout here: it sees its workspace, without `.env`, earlier runs and other dotfiles.

    Args:
        root: the workspace directory.
        rollout_dir: the rollout's directory, to which it may write; nothing of that stays.
        network: what it reaches.
        port: that the user chose for its server.

    Raises:
        IsolationUnavailableError: this machine can hold nothing back.
        OsmosisError: a port is asked for where there is no network.
    """
    from osmosis_ai.sandbox import RunLimits, check_sandbox, choose_isolation

    if network == "none" and port is not None:
        raise OsmosisError(
            "`--rollout-port` and `--network none` do not go together.",
            hint="leave the port out: the server is reached by a socket",
        )
    capability = check_sandbox()
    choose_isolation("required", capability, network)
    # A link could lead out of the workspace.
    shown = [place for place in root.iterdir() if not place.name.startswith(".") and not place.is_symlink()]
    return capability.sandbox(rollout_dir, readable=shown, limits=RunLimits(), network=network)


def isolation_fact(sandbox: Sandbox | None) -> str | None:
    """Return what a run's manifest and its page say of the sandbox; None without one."""
    return None if sandbox is None else f"bubblewrap, network {sandbox.network}"


def advanced_note(advanced: Mapping[str, Any], sandbox: Sandbox | None) -> str:
    """Return what the user should know of a config's ``[advanced]`` in a run on this machine.

    Args:
        advanced: the section.
        sandbox: what the run has by its options.
    """
    from osmosis_ai.config.execution import EXECUTION

    said = "`[advanced]` is recorded, but it means nothing to a run on this machine"
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
    """What the user asked for; every field but ``config`` may be left out.

    Attributes:
        config: a file of ``configs/eval/``.
        dataset_file: rows from this file instead of ``data/<dataset>.*`` or the platform's dataset.
        rows: ``"3,7,10-20"``, overrides the config's ``limit``.
        output: directory of runs; ``.osmosis/evals`` of the workspace by default.
        servers: rollout servers at once; as many as this machine has processors to spare for when None.
        secret_values: values for ``[secrets].required``; the environment comes second.
        slices: columns of the dataset by which results are shown, beside those that the config's decide.toml names.
        previews: whether the journal may keep how input and output begin; the config and its decide.toml say so, too.
        isolate: whether the rollout runs in a sandbox.
        network: what it reaches; with less than its machine does, it runs in a sandbox.
    """

    config: Path
    dataset_file: Path | None = None
    rows: str | None = None
    name: str | None = None
    output: Path | None = None
    fresh: bool = False
    retry_failed: bool = False
    salvage: bool = False
    max_in_flight: int | None = None
    secret_values: Mapping[str, str] | None = None
    seed: int = 0
    budget: Budget | None = None
    rollout_port: int | None = None
    servers: int | None = None
    verbose: bool = False
    slices: tuple[str, ...] = ()
    previews: bool = True
    isolate: bool = False
    network: Network = "host"

    def options(self, shown: Callable[[Path], str] = str) -> list[str]:
        """Return the options with which the run is continued, or what failed in it done again.

        Args:
            shown: how files and directories are named.
        """
        given: list[tuple[str, object]] = [
            ("--rows", self.rows),
            ("--dataset-file", self.dataset_file and shown(self.dataset_file)),
            ("--output", self.output and shown(self.output)),
            ("--seed", self.seed or None),
            ("--max-in-flight", self.max_in_flight),
            ("--servers", self.servers),
            ("--network", None if self.network == "host" else self.network),
        ]
        words = [word for option, value in given if value is not None for word in (option, str(value))]
        flags = {"--no-previews": not self.previews, "--isolate": self.isolate}
        return [*words, *(flag for flag, is_set in flags.items() if is_set)]


@dataclass(frozen=True)
class PreparedEvalRun:
    """A run whose inputs have been found, read and checked.

    Attributes:
        notes: what the user should know before agreeing (pins that differ, ignored sections).
        served: whether the policy is one of our own models, which costs nothing.
        slices: columns of the dataset that have few enough values.
        previews: whether the journal keeps how input and output of each sample begin.
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
    origin: str | None
    notes: tuple[str, ...]
    served: bool
    slices: tuple[str, ...] = ()
    previews: bool = True


@dataclass(frozen=True)
class EvalRunResult:
    """How the run ended and where it belongs, and its numbers by slice where they were asked for."""

    prepared: PreparedEvalRun
    summary: RunSummary
    slices: tuple[RunSlice, ...] = ()


def prepare_eval_run(
    request: EvalRunRequest, *, start: Path | None = None, fetching: OpenNamedProgress | None = None
) -> PreparedEvalRun:
    """Find and check everything a run needs; starts nothing, and writes nothing but a dataset into the cache.

    Args:
        request: what the user asked for.
        start: a directory of the workspace; the current one when None.
        fetching: opens a display when a dataset of the platform has to be downloaded.

    Raises:
        OsmosisError: says what is wrong and how to fix it.
    """
    from osmosis_ai.datasets import count_records, file_digest, select_rows
    from osmosis_ai.evaluation.spec import DatasetInput, EvalRunSpec, keeps_previews
    from osmosis_ai.inference import served_models
    from osmosis_ai.services.eval_runs.slices import require_sliceable
    from osmosis_ai.workspace.config_files import decisions_about, load_eval_config
    from osmosis_ai.workspace.layout import find_workspace

    workspace = find_workspace(start)
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
    provenance["options"] = request.options(lambda given: _in_workspace(workspace, expanded(given)))
    return PreparedEvalRun(
        request=request,
        workspace=workspace,
        config=config,
        spec=spec,
        dataset=DatasetInput(path, config.experiment.dataset, file_digest(path), source),
        selection=selection,
        rollout=rollout,
        output_root=(expanded(request.output).absolute() if request.output else workspace.evals_dir),
        provenance={**provenance, "isolation": isolation_fact(rollout.sandbox)},
        origin=_origin(workspace),
        notes=notes,
        served=served,
        slices=slices,
        previews=request.previews and decided.previews and keeps_previews(config.advanced),
    )


async def run_eval(prepared: PreparedEvalRun, hooks: RunHooks) -> EvalRunResult | None:
    """Run a prepared evaluation; None when ``hooks`` declined to dispatch.

    Raises:
        OsmosisError: when the run could not start or be continued.
    """
    from osmosis_ai.evaluation.budget import Budget
    from osmosis_ai.evaluation.policy import open_policy
    from osmosis_ai.evaluation.runner import EvalRunner
    from osmosis_ai.evaluation.spec import EvalRunOptions
    from osmosis_ai.services.eval_runs.slices import local_slices

    request = prepared.request
    if prepared.output_root.is_relative_to(prepared.workspace.state_dir):
        prepared.workspace.create_state_dir()
    runner = EvalRunner(
        spec=prepared.spec,
        options=EvalRunOptions(
            name=request.name,
            fresh=request.fresh,
            retry_failed=request.retry_failed,
            salvage=request.salvage,
            max_in_flight=request.max_in_flight,
            rollout_port=request.rollout_port,
            servers=_servers(prepared),
            verbose=request.verbose,
            seed=request.seed,
            budget=request.budget or Budget(),
            previews=prepared.previews,
        ),
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
    summary = await runner.run()
    if summary is None:
        return None
    slices = local_slices(summary.run_dir, prepared.dataset.path, prepared.slices)
    return EvalRunResult(prepared, summary, slices)


def _servers(prepared: PreparedEvalRun) -> int:
    """Return how many rollout servers the run has at most."""
    from osmosis_ai.config.execution import read_execution
    from osmosis_ai.controller.server_process import default_servers

    request = prepared.request
    if request.servers is not None or request.rollout_port is not None:
        return request.servers or 1
    return default_servers(gpus=read_execution(prepared.config.advanced).gpus)


def _rollout(workspace: WorkspaceDirectory, config: EvalConfig, request: EvalRunRequest) -> RolloutSource:
    """Return the agent that a config names: a directory here, or one that is served elsewhere.

    Raises:
        OsmosisError: there is no such directory, no agent can be served there, or it cannot be isolated.
    """
    from osmosis_ai.config.sections import served_agent
    from osmosis_ai.evaluation.rollout_source import ProjectSource
    from osmosis_ai.workspace.config_files import entrypoint_path, rollout_directory

    agent = served_agent(config.experiment.entrypoint)
    isolate = request.isolate or request.network == "none"
    if agent is not None:
        if isolate:
            raise OsmosisError(f"the agent at {agent} is served elsewhere: nothing here can hold it back.")
        return _served(agent)
    entrypoint_path(workspace, config.experiment)
    directory = rollout_directory(workspace, config.experiment.rollout)
    if not isolate:
        return ProjectSource(directory)
    sandbox = local_sandbox(workspace.root, directory, network=request.network, port=request.rollout_port)
    return ProjectSource(directory, sandbox)


def _served(agent: str) -> RolloutSource:
    from osmosis_ai.controller.remote_agents import AgentAddress, AgentAddressError, AgentLocation
    from osmosis_ai.evaluation.served_source import ServedSource
    from osmosis_ai.services.rollouts import AGENT_KEY_ENV, agent_key

    try:
        address = AgentAddress.parse(agent)
    except AgentAddressError as error:
        raise OsmosisError(
            f"`eval run` asks a served agent itself, and `server://{agent}` does not say where it is: {error.message}",
            hint="write server://HOST:PORT; the names of registered agents are known to their platform alone "
            "(`osmosis eval submit`)",
        ) from None
    location = AgentLocation(address, agent_key())
    return ServedSource(
        agent, lambda: location, hint=f"start it with `osmosis serve`, and put its key into {AGENT_KEY_ENV}"
    )


def _dataset_file(
    workspace: WorkspaceDirectory, name: str, explicit: Path | None, fetching: OpenNamedProgress | None
) -> tuple[Path, str]:
    from osmosis_ai.workspace.layout import find_dataset_file

    if explicit is not None:
        path = expanded(explicit).absolute()
        if not path.is_file():
            raise NotFoundError(f"there is no dataset file `{explicit}`.")
        return path, "explicit"
    found = find_dataset_file(workspace, name)
    return (found, "workspace") if found is not None else _platform_dataset(workspace, name, fetching)


def _platform_dataset(
    workspace: WorkspaceDirectory, name: str, fetching: OpenNamedProgress | None
) -> tuple[Path, str]:
    """Return the platform's dataset of that name, where somebody is logged in to one."""
    from osmosis_ai.api.credentials import require_credentials
    from osmosis_ai.api.http_errors import PlatformError
    from osmosis_ai.services.context import find_checkout, open_context
    from osmosis_ai.services.datasets import fetch_dataset
    from osmosis_ai.workspace.layout import similar_dataset

    missing = (
        f"the config names the dataset `{name}`, and there is no `data/{name}.jsonl`, `.csv`, `.json` or "
        f"`.parquet` in {workspace.root}"
    )
    near = similar_dataset(workspace, name)
    hint = f"did you mean `{near}`?" if near else "put the file there, or pass `--dataset-file FILE`"
    try:
        find_checkout(workspace.root)
        require_credentials()
    except OsmosisError as error:
        unasked = f"{hint}; the platform was not asked for a dataset of that name: {error.message}"
        raise NotFoundError(f"{missing}.", hint=hint if near else unasked) from None
    with open_context(workspace.root) as context:
        try:
            dataset = fetch_dataset(context.client, name, progress=fetching)
        except PlatformError as error:
            if error.status != 404 or (error.platform_code or "").startswith("GIT_"):
                raise
            raise NotFoundError(
                f"{missing}, nor a dataset of that name on {context.client.platform_url}.",
                hint=hint if near else f"{hint}, or upload it: osmosis dataset upload FILE",
            ) from None
    return dataset.path, dataset.source


def _check_policy(spec: EvalRunSpec, request: EvalRunRequest, *, served: bool) -> None:
    """Find out now whether the model can be named, keyed and, under a cost limit, priced."""
    from osmosis_ai.inference import served_models
    from osmosis_ai.llm.prices import price_of
    from osmosis_ai.llm.providers import resolve_model

    if served:
        return
    env = {**os.environ, **spec.env, **(request.secret_values or {})}
    try:
        endpoint = resolve_model(
            spec.experiment.model_path, env, served=dict.fromkeys(served_models(), ("", None))
        )
    except OsmosisError as error:
        if error.details.get("missing_variable") in spec.secret_names:
            return  # it will be asked for
        raise
    limited = request.budget is not None and request.budget.max_cost_usd is not None
    if limited and price_of(endpoint) is None:
        raise OsmosisError(
            f"`--max-cost` needs the price of `{spec.experiment.model_path}`, and it is not known.",
            hint="limit the run with `--max-tokens` or `--max-time` instead",
        )


def _provenance(
    workspace: WorkspaceDirectory, config: EvalConfig, dataset: Path, sandbox: Sandbox | None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return facts for the manifest, and what about them the user should know."""
    from osmosis_ai._version import __version__
    from osmosis_ai.evaluation.spec import PREVIEWS_KEY
    from osmosis_ai.workspace.git import read_git_state

    git, experiment = read_git_state(workspace.root), config.experiment
    notes = []
    if config.advanced.keys() - {PREVIEWS_KEY}:
        notes.append(advanced_note(config.advanced, sandbox))
    if experiment.branch and experiment.branch != git.branch:
        notes.append(
            f"the config pins branch `{experiment.branch}`; this runs what is checked out ({git.branch})."
        )
    pinned = experiment.commit_sha
    if pinned and not (git.head or "").startswith(pinned.lower()):
        notes.append(
            f"the config pins commit {pinned}; this runs what is checked out ({(git.head or 'none')[:12]})."
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
    """Return a path as it is in every checkout of the workspace; that of a file elsewhere as it is."""
    resolved, root = path.resolve(), workspace.root.resolve()
    return resolved.relative_to(root).as_posix() if resolved.is_relative_to(root) else str(resolved)


def _origin(workspace: WorkspaceDirectory) -> str | None:
    from osmosis_ai.workspace.git import read_origin, without_credentials

    origin = read_origin(workspace.root)
    return without_credentials(origin) if origin else None
