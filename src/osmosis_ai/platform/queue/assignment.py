"""What a claim is answered with: everything that a worker needs for its shard, and nothing of other runs.

If inputs are gone (a replaced dataset, a disconnected repository) after a worker has begun, their URL is empty: a machine
that still has them can continue.
"""

from __future__ import annotations

from datetime import timedelta

from pydantic import SecretStr
from sqlalchemy import select

from osmosis_ai.api.models.workers import (
    AgentPlace,
    AssignedAdapter,
    AssignedLease,
    AssignedRun,
    AssignedShard,
    Assignment,
    InputDownload,
    StoredTraining,
)
from osmosis_ai.config.sections import served_agent
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.platform.blobs.signing import UrlSigner
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbDataset, DbRepository, DbRun, DbRunShard
from osmosis_ai.platform.machines import Demands
from osmosis_ai.platform.models import find_adapter
from osmosis_ai.platform.queue.training import stored_training
from osmosis_ai.platform.rollouts import locate_server
from osmosis_ai.platform.runs.journals import journal_digest
from osmosis_ai.platform.runs.requests import RowSelection
from osmosis_ai.platform.runs.source_archives import SourceArchives
from osmosis_ai.platform.runs.submitter import secret_values_of
from osmosis_ai.platform.vault import Vault

_LINK_TTL = timedelta(hours=1)
_GONE = InputDownload(url="", size=0, sha256="0" * 64)


class Assignments:
    """Builds assignments. Every method blocks, and none belongs inside a transaction."""

    def __init__(
        self,
        db: Database,
        vault: Vault,
        blobs: BlobStore,
        signer: UrlSigner,
        sources: SourceArchives,
        term: timedelta,
        demands: Demands,
    ) -> None:
        self._db = db
        self._vault = vault
        self._blobs = blobs
        self._own_address = signer.base_url
        self._sources = sources
        self._term = term
        self._demands = demands

    def of(self, shard_id: str, *, next_poll_s: float) -> Assignment:
        """Return the assignment of a shard's present owner."""
        run, shard = self._find(shard_id)
        asked = self._demands.read(run.request)
        described = {name: getattr(run, name) for name in AssignedRun.model_fields}
        part = AssignedShard.model_validate(shard, from_attributes=True)
        if shard.journal_bytes:
            part.journal_sha256 = journal_digest(self._db, shard.id)
        return Assignment(
            run=AssignedRun(
                **{**described, "commit_sha": run.commit_sha or "", "selection": run.selection or {}}
            ),
            shard=part,
            lease=AssignedLease(
                token=SecretStr(shard.lease_token or ""),
                attempt=shard.attempt,
                term_s=self._term.total_seconds(),
            ),
            secrets=self.secrets(run),
            source=self._source(run, shard),
            agent=self._agent(run),
            dataset=self._dataset(run, shard),
            dataset_extension=RowSelection.read(run.selection or {}).extension,
            adapter=self._adapter(run),
            training=self._training(run),
            isolation="required" if asked.isolation == "required" else None,
            network="none" if asked.network == "none" else None,
            next_poll_s=next_poll_s,
        )

    def secrets(self, run: DbRun) -> dict[str, SecretStr]:
        """Return the values of a run's secrets, by name."""
        names = list((run.request.get("secrets") or {}).get("required") or ())
        values = secret_values_of(self._db, self._vault, run, names)
        return {name: SecretStr(value) for name, value in values.items()}

    def doubt_source(self, run_id: str) -> None:
        """Verify the packed commit of a run before its next use, because a worker failed."""
        self._sources.doubt(run_id)

    def agent_of(self, shard_id: str) -> AgentPlace | None:
        """Return where the run's remote agent is served now; None if it is not registered."""
        return self._agent(self._find(shard_id)[0])

    def _find(self, shard_id: str) -> tuple[DbRun, DbRunShard]:
        with self._db.session() as session:
            asked = select(DbRun, DbRunShard).join(DbRunShard).where(DbRunShard.id == shard_id)
            run, shard = session.execute(asked).one()
        return run, shard

    def _agent(self, run: DbRun) -> AgentPlace | None:
        name = served_agent(run.request["experiment_config"]["entrypoint"])
        if name is None:
            return None
        try:
            place = locate_server(self._db, self._vault, run.workspace_id, name)
        except NotFoundError:
            return None  # it may be served again at any time
        key = SecretStr(place.api_key) if place.api_key is not None else None
        return AgentPlace(host=place.host, port=place.port, api_key=key)

    def _source(self, run: DbRun, shard: DbRunShard) -> InputDownload | None:
        if served_agent(run.request["experiment_config"]["entrypoint"]) is not None:
            return None
        with self._db.session() as session:
            repository = session.get(DbRepository, run.repository_id) if run.repository_id else None
        archive = self._sources.find(run.workspace_id, repository, run.commit_sha or "")
        if archive is None:
            return _gone(
                shard,
                "the repository of this run was disconnected before the run began.",
                "connect it with `osmosis platform connect`, then submit again",
            )
        return self._download(archive.blob_key, "source.tar.gz", archive.size, archive.sha256)

    def _dataset(self, run: DbRun, shard: DbRunShard) -> InputDownload:
        rows = RowSelection.read(run.selection or {})
        with self._db.session() as session:
            dataset = session.get(DbDataset, run.dataset_id) if run.dataset_id else None
        if dataset is None or dataset.blob_key is None or dataset.sha256 != rows.sha256:
            change = "removed" if dataset is None else "replaced"
            problem = f"the dataset '{run.dataset_name}' was {change} before the run began."
            gone = _gone(shard, problem, "submit the run again")
            return gone.model_copy(update={"sha256": rows.sha256})
        return self._download(dataset.blob_key, f"dataset.{rows.extension}", dataset.file_size, rows.sha256)

    def _adapter(self, run: DbRun) -> AssignedAdapter | None:
        model = find_adapter(self._db, run.workspace_id, run.model_path)
        if model is None:
            return None
        return AssignedAdapter(
            base_model=model.base_model,
            files={
                name: self._download(known["blob_key"], name, known["size"], known["sha256"])
                for name, known in model.files.items()
            },
        )

    def _training(self, run: DbRun) -> StoredTraining | None:
        if run.kind != "training":
            return None
        with self._db.session() as session:
            return stored_training(session, run, self._url)

    def _download(self, key: str, filename: str, size: int, sha256: str) -> InputDownload:
        return InputDownload(url=self._url(key, filename), size=size, sha256=sha256)

    def _url(self, key: str, filename: str) -> str:
        # A worker knows the platform's address better than the platform.
        url = self._blobs.signed_get_url(key, filename=filename, ttl=_LINK_TTL)
        return url.removeprefix(self._own_address)


def _gone(shard: DbRunShard, problem: str, hint: str) -> InputDownload:
    """Return the entry of inputs that are gone; an error for the first worker, which cannot have them."""
    if shard.attempt <= 1:
        raise OsmosisError(problem, hint=hint)
    return _GONE
