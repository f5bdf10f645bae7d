"""Submit a run: detect every foreseeable error before its row exists.

Checks run in the order of the request's text, dataset, code at its commit, and secrets. The row is written last, in one
transaction. No transaction is open while the repository is fetched.
"""

from __future__ import annotations

import difflib
import json
import logging
import posixpath
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from osmosis_ai._version import __version__
from osmosis_ai.config.issues import Issue, closest
from osmosis_ai.config.sections import SERVED_AGENT, served_agent
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.platform.db.tables import DbDataset, DbRepository, DbRollout, DbRun, DbUser, new_id
from osmosis_ai.platform.gitsync.git import GitError
from osmosis_ai.platform.gitsync.mirror import RevisionError
from osmosis_ai.platform.isolation import isolation_problem
from osmosis_ai.platform.machines import needs_key
from osmosis_ai.platform.models import find_adapter
from osmosis_ai.platform.rollout_servers import find_server, server_names
from osmosis_ai.platform.runs.lifecycle import RunKind
from osmosis_ai.platform.runs.own_machine import own_machine_problem
from osmosis_ai.platform.runs.submit.errors import SubmitRejectedError, rejected
from osmosis_ai.platform.runs.submit.eval_request import parse_eval_request
from osmosis_ai.platform.runs.submit.model_path import IsAdapter
from osmosis_ai.platform.runs.submit.row_selection import RowSelection
from osmosis_ai.platform.runs.submit.run_names import draw_name
from osmosis_ai.platform.runs.submit.run_request import RunRequest
from osmosis_ai.platform.runs.submit.training_request import parse_training_request
from osmosis_ai.platform.secrets import resolve_scopes, resolve_secrets

if TYPE_CHECKING:
    from osmosis_ai.platform.clock import Clock
    from osmosis_ai.platform.config import PlatformConfig
    from osmosis_ai.platform.db.engine import Database
    from osmosis_ai.platform.gitsync.mirror import MirrorStore
    from osmosis_ai.platform.rollouts import RolloutStore
    from osmosis_ai.platform.runs.queue import Queue
    from osmosis_ai.platform.runs.read.run_counts import RunCounts
    from osmosis_ai.platform.runs.source_archives import SourceArchives
    from osmosis_ai.platform.vault import Vault

logger = logging.getLogger(__name__)
Done = TypeVar("Done")

SYNC_WAIT_S = 20.0
"""How long a submit waits for the repository; clients wait 30 s for its reply."""
PACK_WAIT_S = 5.0
"""How long a submit waits for its commit to be packed, in addition; packing then continues in the run's first phase."""

_PARALLEL_SUBMITS = 16
_NAME_TRIES = 64
_PARSERS: dict[RunKind, Callable[[Mapping[str, Any], IsAdapter], RunRequest]] = {
    "eval": parse_eval_request,
    "training": parse_training_request,
}


@dataclass(frozen=True)
class RunSubmission:
    """Who submits what, from where."""

    kind: RunKind
    workspace_id: str
    repository: DbRepository
    user: DbUser
    body: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class _Code:
    """The commit that a run executes."""

    sha: str
    rollout_id: str | None


@dataclass(frozen=True)
class CheckedSubmission:
    """A submit that nothing is wrong with, and all that was found out about it."""

    submission: RunSubmission
    request: RunRequest
    dataset: DbDataset
    rows: RowSelection
    code: _Code
    scopes: Mapping[str, str]

    @property
    def commit_sha(self) -> str:
        """The commit that the run executes."""
        return self.code.sha


class RunSubmitter:
    """Takes on runs."""

    def __init__(
        self,
        config: PlatformConfig,
        db: Database,
        clock: Clock,
        vault: Vault,
        mirrors: MirrorStore,
        rollouts: RolloutStore,
        counts: Mapping[RunKind, RunCounts],
        sources: SourceArchives,
        queue: Queue,
    ) -> None:
        self._config = config
        self._sources = sources
        self._queue = queue
        self._counts = counts
        self._db = db
        self._clock = clock
        self._vault = vault
        self._mirrors = mirrors
        self._rollouts = rollouts
        # Threads of their own: however slowly some host answers, other requests keep theirs.
        self._threads = ThreadPoolExecutor(_PARALLEL_SUBMITS, thread_name_prefix="submit")
        self._syncs = ThreadPoolExecutor(_PARALLEL_SUBMITS, thread_name_prefix="submit-sync")

    def start(self, submission: RunSubmission) -> Future[DbRun]:
        """As :meth:`submit`, without blocking."""
        return self._threads.submit(self.submit, submission)

    def start_check(self, submission: RunSubmission) -> Future[CheckedSubmission]:
        """As :meth:`check`, without blocking."""
        return self._threads.submit(self.check, submission)

    def submit(self, submission: RunSubmission) -> DbRun:
        """Check a request and write its run; blocks for :data:`SYNC_WAIT_S` at most."""
        return self.create(self.check(submission))

    def in_thread(self, call: Callable[[], Done]) -> Future[Done]:
        """Have something done that may take as long as a submit does."""
        return self._threads.submit(call)

    def check(self, submission: RunSubmission) -> CheckedSubmission:
        """Find out whether a request can become a run, and write nothing; blocks as :meth:`submit` does."""
        request = _PARSERS[submission.kind](submission.body, self._is_adapter(submission.workspace_id))
        self._require_machine(request)
        dataset = self._dataset(submission.workspace_id, request.experiment.dataset)
        rows = _choose_rows(request, dataset)
        code = self._code(submission.repository, request)
        scopes = self._secret_scopes(submission, request)
        return CheckedSubmission(submission, request, dataset, rows, code, scopes)

    def _require_machine(self, request: RunRequest) -> None:
        """Refuse what the platform's own machine would only fail at; machines of a pool say of themselves what they can."""
        problems = [own_machine_problem(self._config, request.execution)]
        if served_agent(request.experiment.entrypoint) is None:
            problems.append(isolation_problem(self._config, request.execution))
        if found := [problem for problem in problems if problem is not None]:
            raise rejected(found)

    def close(self) -> None:
        """End; nothing can be submitted afterwards."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._syncs.shutdown(wait=False, cancel_futures=True)

    def _is_adapter(self, workspace_id: str) -> IsAdapter:
        return lambda model_path: find_adapter(self._db, workspace_id, model_path) is not None

    def _dataset(self, workspace_id: str, name: str) -> DbDataset:
        with self._db.session() as session:
            of_workspace = DbDataset.workspace_id == workspace_id
            dataset = session.scalar(select(DbDataset).where(of_workspace, DbDataset.name == name))
            if dataset is None:
                names = session.scalars(select(DbDataset.name).where(of_workspace)).all()
                raise _no_dataset(name, list(names))
        known = (dataset.blob_key, dataset.row_count, dataset.sha256)
        if dataset.status != "uploaded" or None in known:
            raise _unusable_dataset(dataset)
        return dataset

    def _code(self, repository: DbRepository, request: RunRequest) -> _Code:
        """Find the commit meant, and the rollout and its entrypoint in it."""
        sync_error = self._sync(repository)
        experiment = request.experiment
        try:
            sha = self._mirrors.resolve(repository, branch=experiment.branch, commit=experiment.commit_sha)
        except RevisionError as error:
            raise rejected([_issue_of(error)]) from None
        except OsmosisError as error:
            raise _not_fetched(sync_error or error.message) from None
        if sync_error is not None and experiment.commit_sha is None:
            # A commit is the same whenever it was fetched; a branch would be a stale one.
            raise _not_fetched(sync_error)
        agent = served_agent(experiment.entrypoint)
        if agent is None:
            self._check_rollout(repository, sha, experiment.rollout, experiment.entrypoint)
        else:
            self._check_agent(repository.workspace_id, agent)
        with self._db.session() as session:
            known = select(DbRollout.id).where(
                DbRollout.repository_id == repository.id, DbRollout.name == experiment.rollout
            )
            return _Code(sha, session.scalar(known))

    def _sync(self, repository: DbRepository) -> str | None:
        """Fetch the repository; return why that could not be done in time, in a sentence, or None."""
        syncing: Future[DbRepository] = self._syncs.submit(self._rollouts.sync, repository.id)
        try:
            return syncing.result(timeout=SYNC_WAIT_S).sync_error
        except FutureTimeout:
            return f"fetching {repository.identity} takes longer than {SYNC_WAIT_S:.0f} s; try again in a moment."

    def _check_rollout(self, repository: DbRepository, sha: str, rollout: str, entrypoint: str) -> None:
        names = [entry.name for entry in self._mirrors.list_rollouts(repository, sha)]
        where = f"in {repository.identity} at {sha[:12]}"
        if rollout not in names:
            problem = f"there is no directory rollouts/{rollout}/ {where}; commit it and `git push`"
            raise rejected([Issue("experiment.rollout", problem, suggestion=closest(rollout, names))])
        path = posixpath.normpath(f"rollouts/{rollout}/{entrypoint}")
        try:
            self._mirrors.read_file(repository, sha, path)
        except NotFoundError:
            problem = f"there is no file {path} {where}; commit it and `git push`"
            raise rejected([Issue("experiment.entrypoint", problem)]) from None

    def _check_agent(self, workspace_id: str, agent: str) -> None:
        if find_server(self._db, workspace_id, agent) is None:
            problem = (
                f"no served agent '{agent}' is registered in this workspace; `osmosis serve` registers one"
            )
            near = closest(agent, list(server_names(self._db, workspace_id)))
            suggestion = SERVED_AGENT + near if near is not None else None
            raise rejected([Issue("experiment.entrypoint", problem, suggestion=suggestion)])

    def _secret_scopes(self, submission: RunSubmission, request: RunRequest) -> dict[str, str]:
        """Return where the value of each secret comes from; ``run`` for those given with the request."""
        stored = [name for name in request.secrets if name not in request.provided]
        found = resolve_scopes(self._db, submission.workspace_id, submission.user.id, stored)
        return {name: found.get(name, "run") for name in request.secrets}

    def create(self, checked: CheckedSubmission) -> DbRun:
        """Create and queue the run of a checked submit."""
        submission, request, rows = checked.submission, checked.request, checked.rows
        self.require_source(checked)
        run_id = new_id("run")
        described: dict[str, Any] = {
            "id": run_id,
            "workspace_id": submission.workspace_id,
            "repository_id": submission.repository.id,
            "kind": request.kind,
            "status": "pending",
            "creator_id": submission.user.id,
            "created_at": self._clock.now(),
            "request": dict(request.written),
            "commit_sha": checked.commit_sha,
            "branch": request.experiment.branch,
            "rollout_id": checked.code.rollout_id,
            "rollout_name": request.experiment.rollout,
            "dataset_id": checked.dataset.id,
            "dataset_name": checked.dataset.name,
            "model_path": request.experiment.model_path,
            "seed": request.seed,
            "pool": request.execution.pool,
            "needs": needs_key(request.execution),
            "selection": rows.record(),
            "secret_scopes": dict(checked.scopes),
            "sealed_secrets": seal_secrets(self._vault, run_id, request.provided),
            "results": request.first_results(rows),
            "platform_version": __version__,
        }
        run = self._insert(described)
        self._counts[request.kind].forget(run.workspace_id)
        return run

    def require_source(self, checked: CheckedSubmission) -> None:
        """Begin to pack the commit of a submit for workers, and refuse one that cannot be packed."""
        if served_agent(checked.request.experiment.entrypoint) is not None:
            return
        packing = self._sources.prepare(checked.submission.repository, checked.commit_sha)
        try:
            packing.result(timeout=PACK_WAIT_S)
        except FutureTimeout:
            pass
        except GitError as error:
            raise SubmitRejectedError(400, "SOURCE_UNUSABLE", error.message) from None
        except (OSError, OsmosisError) as error:
            # The run's first phase tries again.
            logger.warning("the code of a run could not be packed now: %s", error)

    def _insert(self, described: dict[str, Any]) -> DbRun:
        draws = random.SystemRandom()
        for tries in range(_NAME_TRIES):
            run = DbRun(**described, name=draw_name(draws, tries=tries))
            try:
                with self._db.transaction() as session:
                    # Deleted since it was looked at, it would be missed by the run alone.
                    if session.get(DbDataset, run.dataset_id, with_for_update=True) is None:
                        raise _no_dataset(run.dataset_name, [])
                    if _is_free(session, run):
                        session.add(run)
                        session.flush()
                        self._queue.add(session, run)
                        return run
            except IntegrityError:
                # On engines with several writers, another submit may take the name in between.
                continue
        raise OsmosisError("no free name was found for the run.", code="INTERNAL")


def secrets_context(run_id: str) -> str:
    """Return what the values given for one run are sealed for."""
    return f"runs:{run_id}"


def seal_secrets(vault: Vault, run_id: str, provided: Mapping[str, str]) -> bytes | None:
    """Return the values given for one run, encrypted; None if there are none."""
    if not provided:
        return None
    return vault.seal(json.dumps(dict(provided)).encode(), context=secrets_context(run_id))


def _is_free(session: Session, run: DbRun) -> bool:
    taken = select(DbRun.id).where(DbRun.workspace_id == run.workspace_id, DbRun.name == run.name)
    return session.scalar(taken) is None


def _choose_rows(request: RunRequest, dataset: DbDataset) -> RowSelection:
    assert dataset.row_count is not None and dataset.sha256 is not None
    return request.choose_rows(
        total_rows=dataset.row_count, sha256=dataset.sha256, extension=dataset.extension
    )


def _no_dataset(name: str, names: list[str]) -> SubmitRejectedError:
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "upload it with `osmosis dataset upload FILE`."
    return SubmitRejectedError(
        404,
        "DATASET_NOT_FOUND",
        f"there is no dataset '{name}' in this workspace; {hint}",
        issues=[Issue("experiment.dataset", "no such dataset", suggestion=near[0] if near else None)],
    )


def _unusable_dataset(dataset: DbDataset) -> SubmitRejectedError:
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
    return SubmitRejectedError(409, "DATASET_NOT_READY", sentence)


def _issue_of(error: RevisionError) -> Issue:
    # The message says already what was probably meant.
    said, hint = error.message.rstrip("."), error.hint
    if hint:
        said += f" {hint[0].upper()}{hint[1:]}" if said.endswith("?") else f"; {hint}"
    return Issue(f"experiment.{error.field}", said)


def _not_fetched(reason: str) -> SubmitRejectedError:
    return SubmitRejectedError(
        502, "REPOSITORY_NOT_FETCHED", f"the platform could not fetch the code of this run: {reason}"
    )


def secret_values_of(db: Database, vault: Vault, run: DbRun, names: Sequence[str]) -> dict[str, str]:
    """Return the value of every secret of a run: those given with the submit, and those stored by now."""
    given: dict[str, str] = {}
    if run.sealed_secrets is not None:
        given = json.loads(vault.open(run.sealed_secrets, context=secrets_context(run.id)))
    missing = [name for name in names if name not in given]
    stored = resolve_secrets(db, vault, run.workspace_id, run.creator_id or "", missing)
    return {**{name: secret.value for name, secret in stored.items()}, **given}
