"""Data that a worker receives with a run: all it needs, and nothing of other runs.

If data of an earlier worker are gone (a replaced dataset, a disconnected repository), their URL is empty. A machine
that still has them can continue.
"""

from __future__ import annotations

from datetime import timedelta

from pydantic import SecretStr

from osmosis_ai.api.wire.workers import (
    AgentPlace,
    AssignedAdapter,
    AssignedLease,
    AssignedRun,
    Assignment,
    InputDownload,
    JournalSegment,
    StoredJournal,
    StoredTraining,
)
from osmosis_ai.config.sections import served_agent
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.platform.blobs.signing import UrlSigner
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbDataset, DbRepository, DbRun
from osmosis_ai.platform.models import find_adapter
from osmosis_ai.platform.rollout_servers import locate_server
from osmosis_ai.platform.runs.demands import Demands
from osmosis_ai.platform.runs.desk.journal_folding import JournalFolding
from osmosis_ai.platform.runs.desk.training import stored_training
from osmosis_ai.platform.runs.journal_segments import journal_segments
from osmosis_ai.platform.runs.leases import Lease
from osmosis_ai.platform.runs.source_archives import SourceArchives
from osmosis_ai.platform.runs.submit.row_selection import RowSelection
from osmosis_ai.platform.runs.submit.submitter import secret_values_of
from osmosis_ai.platform.vault import Vault

_LINK_TTL = timedelta(hours=1)
_GONE = InputDownload(url="", size=0, sha256="0" * 64)


class Assignments:
    """Puts assignments together; every method blocks, and none belongs inside a transaction."""

    def __init__(
        self,
        db: Database,
        vault: Vault,
        blobs: BlobStore,
        signer: UrlSigner,
        sources: SourceArchives,
        folding: JournalFolding,
        term: timedelta,
        demands: Demands,
    ) -> None:
        self._db = db
        self._vault = vault
        self._blobs = blobs
        self._own = signer.base_url
        self._sources = sources
        self._folding = folding
        self._term = term
        self._demands = demands

    def of(self, lease: Lease, *, next_s: float) -> Assignment:
        """Return all that the owner of ``lease`` needs."""
        run = self._run(lease.run_id)
        asked = self._demands.read(run.request)
        return Assignment(
            run=assigned_run(run),
            lease=AssignedLease(
                token=SecretStr(lease.token), attempt=lease.attempt, term_s=self._term.total_seconds()
            ),
            secrets=self.secrets(run),
            source=self._source(run),
            agent=self.agent(run),
            dataset=self._dataset(run),
            dataset_extension=_rows(run).extension,
            adapter=self._adapter(run),
            journal=self._journal(run),
            training=self._training(run),
            isolation="required" if asked.isolation == "required" else None,
            network="none" if asked.network == "none" else None,
            next_s=next_s,
        )

    def renewed(self, lease: Lease, *, next_s: float) -> Assignment:
        """Return the same with URLs that are good again, and without secrets: these come with the claim alone."""
        return self.of(lease, next_s=next_s).model_copy(update={"secrets": {}})

    def secrets(self, run: DbRun) -> dict[str, SecretStr]:
        """Return the values of a run's secrets, by name."""
        values = secret_values_of(self._db, self._vault, run, secret_names(run))
        return {name: SecretStr(value) for name, value in values.items()}

    def agent(self, run: DbRun) -> AgentPlace | None:
        """Return where a run's agent is served now; None where it is one of the commit, or is not registered."""
        name = served_agent(run.request["experiment_config"]["entrypoint"])
        if name is None:
            return None
        try:
            place = locate_server(self._db, self._vault, run.workspace_id, name)
        except NotFoundError:
            return None  # it may be served again at any time
        key = SecretStr(place.api_key) if place.api_key is not None else None
        return AgentPlace(host=place.host, port=place.port, api_key=key)

    def agent_of(self, run_id: str) -> AgentPlace | None:
        """Return :meth:`agent` of a run by its id."""
        return self.agent(self._run(run_id))

    def _run(self, run_id: str) -> DbRun:
        with self._db.session() as session:
            return session.get_one(DbRun, run_id)

    def _source(self, run: DbRun) -> InputDownload | None:
        if served_agent(run.request["experiment_config"]["entrypoint"]) is not None:
            return None
        with self._db.session() as session:
            repository = session.get(DbRepository, run.repository_id) if run.repository_id else None
        archive = self._sources.find(run.workspace_id, repository, run.commit_sha or "")
        if archive is None:
            return _gone_if_begun(
                run, "the repository of this run was disconnected before the run began.", _CONNECT
            )
        return self._download(archive.blob_key, "source.tar.gz", archive.size, archive.sha256)

    def _dataset(self, run: DbRun) -> InputDownload:
        rows = _rows(run)
        with self._db.session() as session:
            dataset = session.get(DbDataset, run.dataset_id) if run.dataset_id else None
        if dataset is None or dataset.blob_key is None or dataset.sha256 != rows.sha256:
            what = "removed" if dataset is None else "replaced"
            reason = f"the dataset '{run.dataset_name}' was {what} before the run began."
            gone = _gone_if_begun(run, reason, "submit the run again")
            return gone.model_copy(update={"sha256": rows.sha256})
        filename = f"dataset.{rows.extension}"
        return self._download(dataset.blob_key, filename, dataset.file_size, rows.sha256)

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

    def _journal(self, run: DbRun) -> StoredJournal:
        self._folding.fold_all(run.id)
        with self._db.session() as session:
            current = session.get_one(DbRun, run.id)
            segments = journal_segments(session, run.id)
        return StoredJournal(
            generation=current.journal_generation,
            bytes=current.journal_bytes,
            segments=[
                JournalSegment(
                    url=self._url(segment.blob_key, "events.jsonl.gz"),
                    size=segment.length,
                    sha256=segment.sha256,
                    offset=segment.offset,
                    packed=True,
                )
                for segment in segments
                if segment.blob_key is not None
            ],
            worked_ms=(current.metrics or {}).get("duration_ms"),
        )

    def _training(self, run: DbRun) -> StoredTraining | None:
        if run.kind != "training":
            return None
        with self._db.session() as session:
            return stored_training(session, run, self._url)

    def _download(self, key: str, filename: str, size: int, sha256: str) -> InputDownload:
        return InputDownload(url=self._url(key, filename), size=size, sha256=sha256)

    def _url(self, key: str, filename: str) -> str:
        return self.told(self._blobs.signed_get_url(key, filename=filename, ttl=_LINK_TTL))

    def told(self, url: str) -> str:
        """Return a URL for workers, without the origin if it is the platform's own, which workers know better."""
        return url.removeprefix(self._own)


_CONNECT = "connect it with `osmosis platform connect`, then submit again"


def assigned_run(run: DbRun) -> AssignedRun:
    """Return a run as its worker knows it."""
    return AssignedRun(
        id=run.id,
        name=run.name,
        kind="training" if run.kind == "training" else "eval",
        workspace_id=run.workspace_id,
        request=run.request,
        commit_sha=run.commit_sha or "",
        branch=run.branch,
        rollout_name=run.rollout_name,
        dataset_name=run.dataset_name,
        model_path=run.model_path,
        seed=run.seed,
        selection=run.selection or {},
        reopened_at=run.reopened_at,
    )


def secret_names(run: DbRun) -> list[str]:
    """Return the names of a run's secrets."""
    return list((run.request.get("secrets") or {}).get("required") or ())


def _rows(run: DbRun) -> RowSelection:
    return RowSelection.read(run.selection or {})


def _gone_if_begun(run: DbRun, reason: str, hint: str) -> InputDownload:
    """Return the download entry of deleted data, for machines that still have them."""
    if run.attempt <= 1:
        raise OsmosisError(reason, hint=hint)
    return _GONE
