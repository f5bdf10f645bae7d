"""The answer to a claim: everything that a worker needs for its shard, and nothing of other runs.

If inputs are gone (a replaced dataset, a disconnected repository) after a worker has begun, their URL is empty: a machine
that still has them can continue.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from pydantic import SecretStr
from sqlalchemy import select

from osmosis_ai.api.models import workers as wire
from osmosis_ai.config.sections import served_agent
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.platform.blobs.signing import UrlSigner
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbDataset, DbRepository, DbRun, DbRunShard
from osmosis_ai.platform.machines import Demands
from osmosis_ai.platform.models import find_adapter
from osmosis_ai.platform.queue.reports import stored_training
from osmosis_ai.platform.rollouts import locate_server
from osmosis_ai.platform.runs.journals import journal_digest
from osmosis_ai.platform.runs.passing_attempts import conversations_key, source_of
from osmosis_ai.platform.runs.requests import RowSelection, runs_rollouts
from osmosis_ai.platform.runs.source_archives import SourceArchives
from osmosis_ai.platform.runs.submitter import secret_values_of
from osmosis_ai.platform.vault import Vault

_LINK_TTL = timedelta(hours=1)
_GONE = wire.InputDownload(url="", size=0, sha256="0" * 64)


@dataclass(frozen=True)
class Assignments:
    """Builds assignments. Every method blocks, and none belongs inside a transaction."""

    db: Database
    vault: Vault
    blobs: BlobStore
    signer: UrlSigner
    sources: SourceArchives
    term: timedelta
    demands: Demands

    def of(self, shard_id: str, *, next_poll_s: float) -> wire.Assignment:
        """Return the assignment of a shard's present owner."""
        run, shard = self._find(shard_id)
        asked, rows = self.demands.read(run.request), RowSelection.read(run.selection or {})
        described = {name: getattr(run, name) for name in wire.AssignedRun.model_fields}
        part = wire.AssignedShard.model_validate(shard, from_attributes=True)
        if shard.journal_bytes:
            part.journal_sha256 = journal_digest(self.db, shard.id)
        return wire.Assignment(
            run=wire.AssignedRun(
                **{**described, "commit_sha": run.commit_sha or "", "selection": run.selection or {}}
            ),
            shard=part,
            lease=wire.AssignedLease(
                token=SecretStr(shard.lease_token or ""),
                attempt=shard.attempt,
                term_s=self.term.total_seconds(),
            ),
            secrets=self.secrets(run),
            source=self._source(run, shard),
            agent=self._agent(run),
            dataset=self._dataset(run, shard),
            dataset_extension=rows.extension,
            validation=self._rows(shard, "validation dataset", *rows.validation) if rows.validation else None,
            adapter=self._adapter(run),
            training=self._training(run) if run.kind == "training" else None,
            isolation="required" if asked.isolation == "required" else None,
            network="none" if asked.network == "none" else None,
            next_poll_s=next_poll_s,
        )

    def secrets(self, run: DbRun) -> dict[str, SecretStr]:
        names = list((run.request.get("secrets") or {}).get("required") or ())
        values = secret_values_of(self.db, self.vault, run, names)
        return {name: SecretStr(value) for name, value in values.items()}

    def agent_of(self, shard_id: str) -> wire.AgentPlace | None:
        """Return where the run's remote agent is served now; None if it is not registered."""
        return self._agent(self._find(shard_id)[0])

    def _find(self, shard_id: str) -> tuple[DbRun, DbRunShard]:
        asked = select(DbRun, DbRunShard).join(DbRunShard).where(DbRunShard.id == shard_id)
        ((run, shard),) = self.db.rows(asked)
        return run, shard

    def _agent(self, run: DbRun) -> wire.AgentPlace | None:
        name = served_agent(run.request["experiment_config"]["entrypoint"])
        if name is None:
            return None
        try:
            place = locate_server(self.db, self.vault, run.workspace_id, name)
        except NotFoundError:
            return None  # it may be served again at any time
        key = SecretStr(place.api_key) if place.api_key is not None else None
        return wire.AgentPlace(host=place.host, port=place.port, api_key=key)

    def _source(self, run: DbRun, shard: DbRunShard) -> wire.InputDownload | None:
        if not runs_rollouts(run.request):
            return None
        repository = self.db.get(DbRepository, run.repository_id) if run.repository_id else None
        archive = self.sources.find(run.workspace_id, repository, run.commit_sha or "")
        if archive is None:
            return _gone(
                shard,
                "the repository of this run was disconnected before the run began.",
                "connect it with `osmosis platform connect`, then submit again",
            )
        return self._download(archive.blob_key, "source.tar.gz", archive.size, archive.sha256)

    def _dataset(self, run: DbRun, shard: DbRunShard) -> wire.InputDownload:
        rows = RowSelection.read(run.selection or {})
        if source_of(run) is not None:
            key = conversations_key(run)
            return self._download(key, f"dataset.{rows.extension}", self.blobs.size(key), rows.sha256)
        return self._rows(shard, f"dataset '{run.dataset_name}'", run.dataset_id, rows.sha256, rows.extension)

    def _rows(
        self, shard: DbRunShard, what: str, dataset_id: str | None, sha256: str, extension: str
    ) -> wire.InputDownload:
        dataset = self.db.get(DbDataset, dataset_id) if dataset_id else None
        if dataset is None or dataset.blob_key is None or dataset.sha256 != sha256:
            change = "removed" if dataset is None else "replaced"
            gone = _gone(shard, f"the {what} was {change} before the run began.", "submit the run again")
            return gone.model_copy(update={"sha256": sha256})
        return self._download(dataset.blob_key, f"dataset.{extension}", dataset.file_size, sha256)

    def _adapter(self, run: DbRun) -> wire.AssignedAdapter | None:
        model = find_adapter(self.db, run.workspace_id, run.model_path)
        if model is None:
            return None
        return wire.AssignedAdapter(
            base_model=model.base_model,
            files={
                name: self._download(known["blob_key"], name, known["size"], known["sha256"])
                for name, known in model.files.items()
            },
        )

    def _training(self, run: DbRun) -> wire.StoredTraining:
        with self.db.session() as session:
            return stored_training(session, run, self._url)

    def _download(self, key: str, filename: str, size: int, sha256: str) -> wire.InputDownload:
        return wire.InputDownload(url=self._url(key, filename), size=size, sha256=sha256)

    def _url(self, key: str, filename: str) -> str:
        # A worker knows the platform's address better than the platform.
        url = self.blobs.signed_get_url(key, filename=filename, ttl=_LINK_TTL)
        return url.removeprefix(self.signer.base_url)


def _gone(shard: DbRunShard, problem: str, hint: str) -> wire.InputDownload:
    """Return the entry of inputs that are gone; an error for the first worker, which cannot have them."""
    if shard.attempt <= 1:
        raise OsmosisError(problem, hint=hint)
    return _GONE
