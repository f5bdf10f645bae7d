"""Submit a run: detect every foreseeable error before its row exists.

The request, its dataset, the code at its commit, and its secrets are checked in this order. The row is written last, in
one transaction, and no transaction is open while the repository is fetched.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import logging
import os
import posixpath
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import or_, select
from sqlalchemy.exc import IntegrityError

from osmosis_ai._version import __version__
from osmosis_ai.config.execution import PLACE, ExecutionSection
from osmosis_ai.config.issues import Issue, closest
from osmosis_ai.config.sections import SERVED_AGENT, served_agent
from osmosis_ai.controller.server_process import granted_memory
from osmosis_ai.datasets.conversations import MESSAGES_COLUMN
from osmosis_ai.datasets.readers import METADATA_COLUMN
from osmosis_ai.datasets.rows import PROMPT_COLUMN
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbDataset, DbRepository, DbRollout, DbRun, DbUser, new_id
from osmosis_ai.platform.gitsync.git import GitError, parse_clone_url
from osmosis_ai.platform.gitsync.mirror import MirrorStore, RevisionError
from osmosis_ai.platform.isolation import isolation_problem
from osmosis_ai.platform.machines import Machine, needs_key
from osmosis_ai.platform.models import find_adapter
from osmosis_ai.platform.refusals import ApiError
from osmosis_ai.platform.rollouts import RolloutStore, find_server, server_names
from osmosis_ai.platform.runs.lifecycle import RunKind
from osmosis_ai.platform.runs.passing_attempts import count_passing
from osmosis_ai.platform.runs.requests import (
    RowSelection,
    RunRequest,
    TrainingRequest,
    parse_eval_request,
    parse_training_request,
    rejected,
    runs_rollouts,
)
from osmosis_ai.platform.runs.run_store import Queue, RunStore
from osmosis_ai.platform.runs.source_archives import SourceArchives
from osmosis_ai.platform.secrets import resolve_scopes, resolve_secrets
from osmosis_ai.platform.vault import Vault
from osmosis_ai.sandbox.gpus import counted_gpus

logger = logging.getLogger(__name__)
Done = TypeVar("Done")

SYNC_WAIT_S = 20.0
"""How long a submit waits for the repository; clients wait 30 s for its reply."""
PACK_WAIT_S = 5.0
"""How long a submit then waits for its commit to be packed; packing continues in the run's first phase."""
_PARALLEL_SUBMITS = 16
_NAME_TRIES, _DRAWS_PER_RANGE = 64, 8
_GIB = 1 << 30


@dataclass(frozen=True)
class CheckedSubmission:
    """A submit without issues, and what was resolved for it."""

    repository: DbRepository
    user: DbUser
    request: RunRequest
    dataset: DbDataset
    rows: RowSelection
    commit_sha: str
    rollout_id: str | None
    scopes: Mapping[str, str]


@dataclass
class RunSubmitter:
    _config: PlatformConfig
    _db: Database
    _clock: Clock
    _vault: Vault
    _mirrors: MirrorStore
    _rollouts: RolloutStore
    _runs: RunStore
    _sources: SourceArchives
    _queue: Queue

    def __post_init__(self) -> None:
        # Separate threads, so that a slow Git host does not delay other requests.
        self._threads = ThreadPoolExecutor(_PARALLEL_SUBMITS, thread_name_prefix="submit")
        self._syncs = ThreadPoolExecutor(_PARALLEL_SUBMITS, thread_name_prefix="submit-sync")

    async def in_thread(self, call: Callable[[], Done]) -> Done:
        """Call a function that may block for as long as a submit."""
        return await asyncio.wrap_future(self._threads.submit(call))

    def close(self) -> None:
        """End; nothing can be submitted afterwards."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._syncs.shutdown(wait=False, cancel_futures=True)

    def check(
        self, kind: RunKind, repository: DbRepository, user: DbUser, body: Mapping[str, Any]
    ) -> CheckedSubmission:
        """Check whether a request can become a run, and write nothing; blocks for :data:`SYNC_WAIT_S` at most."""
        workspace_id = repository.workspace_id
        parse = parse_eval_request if kind == "eval" else parse_training_request
        request: RunRequest = parse(body, lambda path: find_adapter(self._db, workspace_id, path) is not None)
        # Machines of a pool report what they can do.
        problems = [own_machine_problem(self._config, request.execution)]
        if runs_rollouts(request.written):
            problems.append(isolation_problem(self._config, request.execution))
        if found := [problem for problem in problems if problem is not None]:
            raise rejected(found)
        dataset = self._dataset(workspace_id, request.experiment.dataset)
        rows = self._rows(workspace_id, request, dataset)
        if isinstance(request, TrainingRequest):
            rows = replace(rows, validation=self._validation(workspace_id, request, rows.total_rows))
        sha = self._commit(repository, request)
        stored = [name for name in request.secrets if name not in request.provided]
        scopes = resolve_scopes(self._db, workspace_id, user.id, stored)
        with self._db.session() as session:
            known = select(DbRollout.id).where(
                DbRollout.repository_id == repository.id, DbRollout.name == request.experiment.rollout
            )
            rollout_id = session.scalar(known)
        all_scopes = {name: scopes.get(name, "run") for name in request.secrets}
        return CheckedSubmission(repository, user, request, dataset, rows, sha, rollout_id, all_scopes)

    def create(self, checked: CheckedSubmission) -> DbRun:
        request = checked.request
        self.require_source(checked)
        run_id = new_id("run")
        described: dict[str, Any] = {
            "id": run_id,
            "workspace_id": checked.repository.workspace_id,
            "repository_id": checked.repository.id,
            "kind": request.kind,
            "status": "pending",
            "creator_id": checked.user.id,
            "created_at": self._clock.now(),
            "request": dict(request.written),
            "commit_sha": checked.commit_sha,
            "branch": request.experiment.branch,
            "rollout_id": checked.rollout_id,
            "rollout_name": request.experiment.rollout,
            "dataset_id": checked.dataset.id,
            "dataset_name": checked.dataset.name,
            "model_path": request.experiment.model_path,
            "seed": request.seed,
            "pool": request.execution.pool,
            "needs": needs_key(request.execution),
            "selection": asdict(checked.rows),
            "secret_scopes": dict(checked.scopes),
            "sealed_secrets": seal_secrets(self._vault, run_id, request.provided),
            "results": request.first_results(checked.rows),
            "platform_version": __version__,
        }
        draws = random.SystemRandom()
        for tries in range(_NAME_TRIES):
            run = DbRun(**described, name=draw_name(draws, tries=tries))
            taken = select(DbRun.id).where(DbRun.workspace_id == run.workspace_id, DbRun.name == run.name)
            try:
                with self._db.transaction() as session:
                    if session.get(DbDataset, run.dataset_id, with_for_update=True) is None:
                        raise _no_dataset(run.dataset_name, [])
                    if session.scalar(taken) is None:
                        session.add(run)
                        session.flush()
                        self._queue.add(session, run)
                        break
            except IntegrityError:
                # On engines with several writers, another submit may take the name in between.
                continue
        else:
            raise OsmosisError("no free name was found for the run.", code="INTERNAL")
        self._runs.forget_count(run.workspace_id)
        return run

    def require_source(self, checked: CheckedSubmission) -> None:
        """Begin to pack the commit of a submit for workers, and refuse one that cannot be packed."""
        if not runs_rollouts(checked.request.written):
            return
        packing = self._sources.prepare(checked.repository, checked.commit_sha)
        try:
            packing.result(timeout=PACK_WAIT_S)
        except FutureTimeout:
            pass
        except GitError as error:
            raise ApiError(400, "SOURCE_UNUSABLE", error.message) from None
        except (OSError, OsmosisError) as error:
            # The run's first phase tries again.
            logger.warning("the code of a run could not be packed now: %s", error)

    def _validation(
        self, workspace_id: str, request: TrainingRequest, rows: int
    ) -> tuple[str, str, str] | None:
        settings = request.settings
        if (name := settings.validation_dataset) is not None:
            found = self._dataset(workspace_id, name, key="advanced.validation_dataset")
            _require_columns(found, settings.method == "sft", "advanced.validation_dataset")
            return found.id, found.sha256 or "", found.extension
        if settings.method == "rl" and (settings.validation_rows or 0) >= rows:
            problem = f"leaves no training rows: the dataset has {rows:,}"
            raise rejected([Issue("advanced.validation_rows", problem)])
        return None

    def _dataset(self, workspace_id: str, name_or_id: str, *, key: str = "experiment.dataset") -> DbDataset:
        with self._db.session() as session:
            of_workspace = DbDataset.workspace_id == workspace_id
            is_named = or_(DbDataset.id == name_or_id, DbDataset.name == name_or_id)
            by_id_first = select(DbDataset).where(of_workspace, is_named).order_by(DbDataset.id != name_or_id)
            dataset = session.scalar(by_id_first)
            if dataset is None:
                names = session.scalars(select(DbDataset.name).where(of_workspace)).all()
                raise _no_dataset(name_or_id, names, key)
        if dataset.status != "uploaded" or None in (dataset.blob_key, dataset.row_count, dataset.sha256):
            raise _unusable_dataset(dataset)
        return dataset

    def _rows(self, workspace_id: str, request: RunRequest, dataset: DbDataset) -> RowSelection:
        """Return the rows of a run: prompts of the dataset, its conversations, or the attempts of an evaluation."""
        settings = request.settings if isinstance(request, TrainingRequest) else None
        is_supervised = settings is not None and settings.method == "sft"
        if settings is not None and (source := settings.source_run) is not None:
            try:
                return count_passing(self._db, workspace_id, source)
            except OsmosisError as error:
                raise rejected([Issue("advanced.sft_source", error.message.rstrip("."))]) from None
        _require_columns(dataset, is_supervised, "experiment.dataset")
        return request.choose_rows(dataset.row_count or 0, dataset.sha256 or "", dataset.extension)

    def _commit(self, repository: DbRepository, request: RunRequest) -> str:
        """Resolve the requested commit, and check that it has the rollout and its entrypoint."""
        sync_error = self._sync(repository)
        experiment = request.experiment
        try:
            sha = self._mirrors.resolve(repository, branch=experiment.branch, commit=experiment.commit_sha)
        except RevisionError as error:
            said, hint = error.message.rstrip("."), error.hint
            if hint:
                said += f" {hint[0].upper()}{hint[1:]}" if said.endswith("?") else f"; {hint}"
            raise rejected([Issue(f"experiment.{error.field}", said)]) from None
        except OsmosisError as error:
            raise _not_fetched(sync_error or error.message) from None
        if sync_error is not None and experiment.commit_sha is None:
            # A branch may be stale; a commit cannot be.
            raise _not_fetched(sync_error)
        agent = served_agent(experiment.entrypoint)
        if agent is None:
            self._check_rollout(repository, sha, experiment.rollout, experiment.entrypoint)
        elif find_server(self._db, repository.workspace_id, agent) is None:
            problem = (
                f"no served agent '{agent}' is registered in this workspace; `osmosis serve` registers one"
            )
            near = closest(agent, list(server_names(self._db, repository.workspace_id)))
            suggestion = SERVED_AGENT + near if near is not None else None
            raise rejected([Issue("experiment.entrypoint", problem, suggestion=suggestion)])
        return sha

    def _sync(self, repository: DbRepository) -> str | None:
        """Fetch the repository; return why that was not possible in time."""
        syncing: Future[DbRepository] = self._syncs.submit(self._rollouts.sync, repository.id)
        try:
            return syncing.result(timeout=SYNC_WAIT_S).sync_error
        except FutureTimeout:
            return f"fetching {repository.identity} takes longer than {SYNC_WAIT_S:.0f} s; try again in a moment."

    def _check_rollout(self, repository: DbRepository, sha: str, rollout: str, entrypoint: str) -> None:
        names = [entry.name for entry in self._mirrors.list_rollouts(repository, sha)]
        source = parse_clone_url(repository.clone_url)
        is_checkout = source.transport == "file" and (Path(source.address) / ".git").exists()
        push = "" if is_checkout else " and `git push origin HEAD`"
        where = f"in {repository.identity} at {sha[:12]}; commit it{push}"
        if rollout not in names:
            problem = f"there is no directory rollouts/{rollout}/ {where}"
            raise rejected([Issue("experiment.rollout", problem, suggestion=closest(rollout, names))])
        path = posixpath.normpath(f"rollouts/{rollout}/{entrypoint}")
        try:
            self._mirrors.read_file(repository, sha, path)
        except NotFoundError:
            problem = f"there is no file {path} {where}"
            raise rejected([Issue("experiment.entrypoint", problem)]) from None


# -- the platform's own machine ----------------------------------------------------------------------


def own_machine(root: Path = Path("/")) -> Machine:
    """Return what this machine has for runs without a pool; only NVIDIA GPUs are counted."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    # A container or service may have less memory than its machine.
    memory_gb = round(min([memory, *granted_memory(root)]) / _GIB, 1)
    return Machine(gpus=counted_gpus(root), memory_gb=memory_gb)


def own_machine_problem(config: PlatformConfig, asked: ExecutionSection) -> Issue | None:
    """Return why the platform's own machine cannot execute a run that it would execute."""
    wanted = ExecutionSection(gpus=asked.gpus, memory_gb=asked.memory_gb)
    if config.ray is not None or asked.pool is not None or wanted == ExecutionSection():
        return None
    lacking = list(own_machine().lacks(wanted))
    if not lacking:
        return None
    key = "gpus" if "GPU" in lacking[0] else "memory_gb"
    return Issue(
        f"{PLACE}.{key}",
        "asks for more than the platform's own machine has, which executes runs without a pool: "
        f"it has {', '.join(lacking)}; "
        "name a pool whose workers have it",
    )


# -- secrets of a run --------------------------------------------------------------------------------


def seal_secrets(vault: Vault, run_id: str, provided: Mapping[str, str]) -> bytes | None:
    """Return the values given for one run, encrypted; None if there are none."""
    if not provided:
        return None
    return vault.seal(json.dumps(dict(provided)).encode(), context=f"runs:{run_id}")


def secret_values_of(db: Database, vault: Vault, run: DbRun, names: Sequence[str]) -> dict[str, str]:
    """Return the value of every secret of a run: those given with the submit, and those stored by now."""
    given: dict[str, str] = {}
    if run.sealed_secrets is not None:
        given = json.loads(vault.open(run.sealed_secrets, context=f"runs:{run.id}"))
    missing = [name for name in names if name not in given]
    stored = resolve_secrets(db, vault, run.workspace_id, run.creator_id or "", missing)
    return {**{name: secret.value for name, secret in stored.items()}, **given}


# -- names -------------------------------------------------------------------------------------------


def draw_name(draws: random.Random, *, tries: int) -> str:
    """Return a random name that may be taken, like ``amber-otter-42``; it never looks like an id or a route."""
    highest = 99 * 10 ** (2 * (tries // _DRAWS_PER_RANGE))
    return f"{draws.choice(_ADJECTIVES)}-{draws.choice(_NOUNS)}-{draws.randint(2, highest)}"


# Words of one or two syllables that are hard to mishear; none of them judges a run.
_ADJECTIVES = tuple(
    """
    amber ample autumn azure basil bold brave brisk bronze calm cedar cobalt copper coral crisp dapper
    dawn deep dusky eager early fern fleet floral fond frosty gentle gilded glad golden grand green
    hazel humble indigo ivory jade jolly keen kind lemon light lilac lively lucid lunar maple mellow
    merry misty modest mossy neat noble north oaken ochre olive opal pale pearl plain plum polar proud
    quick quiet rapid ready rosy ruby russet rustic sable sage sandy scarlet serene silver sleek smooth
    snowy solar spry steady still stony sunny swift tawny teal tidal topaz tranquil umber upbeat velvet
    vivid warm wavy wild winter wise witty
    """.split()  # noqa: SIM905 - a table of words is to be read
)
_NOUNS = tuple(
    """
    acorn alder anchor arbor aspen badger bay beacon beaver birch bison bloom brook canyon cedar cliff
    cloud clover comet condor coral cove crane creek cricket daisy delta dolphin dove dune eagle egret
    ember falcon fern finch fjord forest fox gecko glacier grove gull harbor hare hawk hazel heron hill
    ibis inlet iris island ivy jaguar jay juniper kestrel kite koala lagoon lake lantern lark laurel
    lily lotus lynx magpie maple marten meadow meteor moose moth oak ocean orchid oriole osprey otter
    owl panda pebble pelican pine planet plover poppy puffin quail quartz raven reef ridge river robin
    rowan seal shore sparrow spruce star stoat stone stork stream swan thistle thrush tiger toucan trail
    trout tulip turtle valley vole walrus willow wombat wren zebra
    """.split()  # noqa: SIM905 - a table of words is to be read
)


# -- refusals ----------------------------------------------------------------------------------------


def _no_dataset(name: str, names: Sequence[str], key: str = "experiment.dataset") -> ApiError:
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "upload it with `osmosis dataset upload FILE`."
    issue = Issue(key, "no such dataset", suggestion=near[0] if near else None)
    message = f"there is no dataset '{name}' in this workspace; {hint}"
    return rejected([issue], 404, "DATASET_NOT_FOUND", message)


def _require_columns(dataset: DbDataset, is_supervised: bool, key: str) -> None:
    """Check from a dataset's preview that it has the columns that its run learns from or validates on."""
    columns = {*(dataset.preview or [{}])[0]}
    has_conversations = MESSAGES_COLUMN in columns
    if columns and is_supervised and not has_conversations:
        problem = f"has no column '{MESSAGES_COLUMN}' (required by method = \"sft\")"
        raise rejected([Issue(key, problem)])
    if not is_supervised and has_conversations and not {PROMPT_COLUMN, METADATA_COLUMN} & columns:
        problem = 'has conversations but no prompts (only usable with [advanced].method = "sft")'
        raise rejected([Issue(key, problem)])


def _unusable_dataset(dataset: DbDataset) -> ApiError:
    name = dataset.name
    if dataset.status == "error":
        reason = (dataset.error or "it could not be read").rstrip(".")
        sentence = f"the dataset '{name}' cannot be used: {reason}. Fix the file and upload it again."
    elif dataset.status == "cancelled":
        sentence = f"the upload of the dataset '{name}' was cancelled; upload it again."
    elif dataset.status == "processing":
        sentence = f"the dataset '{name}' is still being checked (processing); submit again in a moment."
    else:
        sentence = f"the dataset '{name}' has not been uploaded yet ({dataset.status})."
    return ApiError(409, "DATASET_NOT_READY", sentence)


def _not_fetched(reason: str) -> ApiError:
    return ApiError(
        502, "REPOSITORY_NOT_FETCHED", f"the platform could not fetch the code of this run: {reason}"
    )
