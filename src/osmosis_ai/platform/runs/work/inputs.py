"""What a run works on: its commit's files, its rows, the values of its secrets.

Everything is put into the run's working directory first and used from there, so that a worker that continues the
run later meets the same bytes, whatever happened to the repository or the dataset meanwhile.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from osmosis_ai.config.sections import served_agent
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.rollout_source import ProjectSource, RolloutSource
from osmosis_ai.evaluation.served_source import ServedSource
from osmosis_ai.evaluation.spec import DatasetInput
from osmosis_ai.platform.blobs.opening import open_blob_store
from osmosis_ai.platform.blobs.s3 import S3BlobStore
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.datasets.lookup import open_dataset
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRepository, DbRun
from osmosis_ai.platform.gitsync.mirror import MirrorStore
from osmosis_ai.platform.models import copy_adapter, find_adapter
from osmosis_ai.platform.rollout_servers import server_locator
from osmosis_ai.platform.runs.submit.model_path import PolicyWeights
from osmosis_ai.platform.runs.submit.row_selection import RowSelection
from osmosis_ai.platform.runs.submit.run_request import RunRequest
from osmosis_ai.platform.runs.submit.submitter import secret_values_of
from osmosis_ai.platform.runs.work.containment import RunContainment, contain
from osmosis_ai.platform.runs.working_directory import WorkingDirectory
from osmosis_ai.platform.vault import open_vault
from osmosis_ai.redaction import Redactor


class RunInputs:
    """The inputs of one run.

    Args:
        config, db: the platform's.
        directory: where the run works.
        run_id: which run.

    Attributes:
        run: its row, as it was when this was made.
        commit_sha: the commit it executes.
        rows: which rows it uses.
        blobs: where its files go.
    """

    def __init__(
        self, config: PlatformConfig, db: Database, directory: WorkingDirectory, run_id: str
    ) -> None:
        self._config = config
        self._db = db
        self._directory = directory
        self._vault = open_vault(config)
        self.blobs = open_blob_store(config, SystemClock(), takes_credentials=True)
        with db.session() as session:
            self.run = session.get_one(DbRun, run_id)
            repository_id = self.run.repository_id
            self._repository = session.get(DbRepository, repository_id) if repository_id else None
        assert self.run.commit_sha is not None
        self.commit_sha: str = self.run.commit_sha
        self.rows = RowSelection.read(self.run.selection or {})

    def source(self) -> Path:
        """Return the commit's files, exported anew: an agent may have written into its own since the last time.

        Raises:
            OsmosisError: the repository is not connected any more.
        """
        source, repository = self._directory.source, self._repository
        if repository is None:
            if source.is_dir():
                return source
            raise OsmosisError(
                "the repository of this run was disconnected before the run began.",
                hint="connect it with `osmosis platform connect`, then submit again",
            )
        shutil.rmtree(source, ignore_errors=True)
        mirrors = MirrorStore(self._config.git_dir)
        try:
            mirrors.export(repository, self.commit_sha, source)
        finally:
            mirrors.close()
        return source

    def rollout(
        self, entrypoint: str, redactor: Redactor, containment: RunContainment | None
    ) -> RolloutSource:
        """Return the agent: a directory of the commit, or one that is served elsewhere.

        Args:
            entrypoint: of the run's config.
            redactor: told of the key of a served agent.
            containment: what holds an agent of the commit back.

        Raises:
            OsmosisError: the repository is not connected any more.
        """
        agent = served_agent(entrypoint)
        if agent is None:
            sandbox = containment.sandbox if containment is not None else None
            return ProjectSource(self.source() / "rollouts" / self.run.rollout_name, sandbox)
        return self.served(agent, redactor)

    def served(self, agent: str, redactor: Redactor) -> ServedSource:
        """Return an agent that is served elsewhere, looked for whenever it has to be found."""
        workspace_id = self.run.workspace_id
        locate = server_locator(self._db, self._vault, workspace_id, agent, lambda key: redactor.add([key]))
        return ServedSource(
            agent,
            locate,
            hint="look at it with `osmosis rollout server list`; `osmosis serve` registers it anew",
        )

    def dataset(self) -> DatasetInput:
        """Return the rows, in a copy of this run's own.

        Raises:
            OsmosisError: the dataset was replaced or removed before there was one.
        """
        run, rows = self.run, self.rows
        path = self._directory.dataset(rows.extension)
        if not path.exists():
            partial = path.with_name(f".{path.name}.partial")
            row = open_dataset(self._db, self.blobs, run.dataset_id or "", partial)
            if row.sha256 != rows.sha256:
                partial.unlink()
                raise OsmosisError(
                    f"the dataset '{run.dataset_name}' was replaced before the run began.",
                    hint="submit the run again",
                )
            partial.replace(path)
        return DatasetInput(path, run.dataset_name, rows.sha256, "platform")

    def policy(self) -> PolicyWeights:
        """Return the weights of the run; those of an adapter in a copy of this run's own.

        Raises:
            OsmosisError: what is stored of the adapter is not what was trained.
        """
        base, _, _ = self.run.model_path.rpartition(":")
        adapter = self._directory.adapter
        if adapter.is_dir():
            return PolicyWeights(base, adapter)
        model = find_adapter(self._db, self.run.workspace_id, self.run.model_path)
        if model is None:
            return PolicyWeights(self.run.model_path)
        partial = adapter.with_name(f".{adapter.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        copy_adapter(self.blobs, model, partial)
        partial.rename(adapter)
        return PolicyWeights(base, adapter)

    def secret_values(self, names: Sequence[str]) -> dict[str, str]:
        """Return the value of every secret: those given with the submit, and those stored by now."""
        return secret_values_of(self._db, self._vault, self.run, names)

    def containment(self, request: RunRequest) -> RunContainment | None:
        """Return what holds the run's rollouts back; None for an agent that is served elsewhere.

        Raises:
            IsolationUnavailableError: a sandbox is required, and this machine can not make one.
        """
        if served_agent(request.experiment.entrypoint) is not None:
            return None
        by_machine = isinstance(self.blobs, S3BlobStore) and self.blobs.has_credentials_of_machine()
        return contain(
            self._config, self._directory, self.run.workspace_id, request.execution, hands_out_keys=by_machine
        )

    def common(self, secret_values: Mapping[str, str], request: RunRequest) -> dict[str, Any]:
        """Return the fields of a :class:`~osmosis_ai.platform.runs.work.run_work.PreparedRun`.

        Raises:
            IsolationUnavailableError: as :meth:`containment`.
        """
        return {
            "run": self.run,
            "commit_sha": self.commit_sha,
            "blobs": self.blobs,
            "redactor": Redactor(secret_values.values()),
            "containment": self.containment(request),
        }
