"""The parts a platform is made of, built once and shared by everything that serves a request or a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

from osmosis_ai.platform.accounts import AccountStore
from osmosis_ai.platform.blobs.opening import open_blob_store
from osmosis_ai.platform.blobs.signing import UrlSigner, url_signer
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.clock import Clock, SystemClock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.datasets import DatasetStore
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.device_logins import DeviceLoginStore
from osmosis_ai.platform.gitsync.mirror import MirrorStore
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.machines import Demands
from osmosis_ai.platform.maintenance import Maintenance
from osmosis_ai.platform.model_serving import ModelServerFactory, ModelServerPool
from osmosis_ai.platform.models import LoraModelStore
from osmosis_ai.platform.queue.access import WorkerAccess
from osmosis_ai.platform.queue.assignment import Assignments
from osmosis_ai.platform.queue.finalize import PlatformShards
from osmosis_ai.platform.queue.queue import RunQueue
from osmosis_ai.platform.queue.secret_access import SecretAccessLog
from osmosis_ai.platform.queue.uploads import RunUploads
from osmosis_ai.platform.queue.waiting import DatabaseClock, RunWaits, WaitingRun
from osmosis_ai.platform.readiness import Readiness
from osmosis_ai.platform.request_counts import RequestCounts
from osmosis_ai.platform.rollout_servers import RolloutServerStore
from osmosis_ai.platform.rollouts import RolloutStore
from osmosis_ai.platform.runs.deleting import RunDeletion
from osmosis_ai.platform.runs.files import RunFiles
from osmosis_ai.platform.runs.imports.sessions import EvalImportStore
from osmosis_ai.platform.runs.lifecycle import RunKind
from osmosis_ai.platform.runs.read.downloads import Downloads
from osmosis_ai.platform.runs.read.run_counts import RunCounts
from osmosis_ai.platform.runs.read.run_store import RunStore
from osmosis_ai.platform.runs.read.sample_counts import SampleCounts
from osmosis_ai.platform.runs.source_archives import SourceArchives
from osmosis_ai.platform.runs.submit.resuming import TrainingResumption
from osmosis_ai.platform.runs.submit.retrying import EvalRetries
from osmosis_ai.platform.runs.submit.submitter import RunSubmitter
from osmosis_ai.platform.secrets import SecretStore
from osmosis_ai.platform.sign_in import SignIns
from osmosis_ai.platform.vault import Vault, open_vault
from osmosis_ai.platform.workspaces import WorkspaceStore


@dataclass(frozen=True)
class PlatformServices:
    """What routes and workers are given."""

    config: PlatformConfig
    clock: Clock
    db: Database
    accounts: AccountStore
    workspaces: WorkspaceStore
    sign_ins: SignIns
    device_logins: DeviceLoginStore
    logs: LogStore
    blobs: BlobStore
    url_signer: UrlSigner
    datasets: DatasetStore
    vault: Vault
    secrets: SecretStore
    secret_access: SecretAccessLog
    mirrors: MirrorStore
    rollouts: RolloutStore
    rollout_servers: RolloutServerStore
    model_servers: ModelServerPool
    sources: SourceArchives
    submitter: RunSubmitter
    eval_runs: RunStore
    eval_imports: EvalImportStore
    training_runs: RunStore
    resumption: TrainingResumption
    run_deletion: RunDeletion
    eval_retries: EvalRetries
    lora_models: LoraModelStore
    run_files: RunFiles
    downloads: Downloads
    maintenance: Maintenance
    sample_counts: SampleCounts
    readiness: Readiness
    request_counts: RequestCounts
    worker_access: WorkerAccess
    queue: RunQueue
    platform_shards: PlatformShards
    lease_clock: DatabaseClock

    def runs_of(self, kind: RunKind) -> RunStore:
        """Return the runs of one kind."""
        return self.eval_runs if kind == "eval" else self.training_runs

    def run_waits(self, runs: Iterable[WaitingRun] = ()) -> RunWaits:
        """Return what explains why runs wait, for one list of runs."""
        config = self.config
        waits = RunWaits(
            self.db, self.lease_clock, Demands.of(config), self.queue.term, config.executes_nothing
        )
        if runs := list(runs):
            with self.db.session() as session:
                waits.read(session, runs)
        return waits


def build_services(config: PlatformConfig, *, clock: Clock | None = None) -> PlatformServices:
    """Prepare the data directory, bring the database up to date, and return the parts."""
    config.prepare_home()
    used_clock = clock if clock is not None else SystemClock()
    db = Database(config.database_url)
    db.migrate()
    accounts, vault = AccountStore(db, used_clock), open_vault(config)
    mirrors, logs = MirrorStore(config.git_dir), LogStore(db, used_clock)
    blobs, signer = open_blob_store(config, used_clock), url_signer(config, used_clock)
    rollouts, datasets = RolloutStore(db, mirrors, used_clock), DatasetStore(db, blobs, used_clock, logs)
    counts: dict[RunKind, RunCounts] = {kind: RunCounts(kind, used_clock) for kind in get_args(RunKind)}
    sources, demands = SourceArchives(db, blobs, used_clock, mirrors), Demands.of(config)
    assignments = Assignments(db, vault, blobs, signer, sources, config.lease_term, demands)
    uploads = RunUploads(db, blobs, signer, config.run_upload_bytes)
    queue = RunQueue(db, used_clock, logs, demands, config.lease_term, assignments, uploads)
    shards = PlatformShards(db, used_clock, blobs, queue, uploads, sources, assignments)
    submitter = RunSubmitter(config, db, used_clock, vault, mirrors, rollouts, counts, sources, queue)
    eval_runs = RunStore("eval", db, logs, counts["eval"], queue)
    training_runs = RunStore("training", db, logs, counts["training"], queue)
    resuming = TrainingResumption(db, blobs, used_clock, logs, training_runs, queue)
    imports = EvalImportStore(db, blobs, used_clock, logs, counts["eval"])
    access = WorkerAccess(db, used_clock, logs, demands)
    deletion = RunDeletion(db, used_clock, blobs, counts)
    run_files = RunFiles(db, blobs, signer)
    return PlatformServices(
        config=config,
        clock=used_clock,
        db=db,
        accounts=accounts,
        workspaces=WorkspaceStore(db, used_clock),
        sign_ins=SignIns(accounts, used_clock),
        device_logins=DeviceLoginStore(db, used_clock, accounts),
        logs=logs,
        blobs=blobs,
        url_signer=signer,
        datasets=datasets,
        vault=vault,
        secrets=SecretStore(db, vault, used_clock),
        secret_access=SecretAccessLog(db),
        mirrors=mirrors,
        rollouts=rollouts,
        rollout_servers=RolloutServerStore(db, vault, used_clock),
        model_servers=ModelServerPool(ModelServerFactory(db, blobs)),
        sources=sources,
        submitter=submitter,
        eval_retries=EvalRetries(db, blobs, vault, used_clock, logs, eval_runs, submitter, queue),
        eval_runs=eval_runs,
        eval_imports=imports,
        training_runs=training_runs,
        resumption=resuming,
        run_deletion=deletion,
        lora_models=LoraModelStore(db, blobs, used_clock),
        run_files=run_files,
        downloads=Downloads(db, blobs, run_files),
        maintenance=Maintenance(
            {
                "blobs": blobs.sweep,
                "datasets": datasets.ingest.recover,
                "uploads of runs": imports.tidy,
                "checkpoints of runs": resuming.forget_old,
                "commits of runs that have ended": sources.sweep,
                "uploads of runs that have ended": shards.clear_ended,
                "workers that are gone": access.known.forget_old,
                "files of deleted runs": deletion.finish,
                "free space of the database": db.reclaim_space,
            }
        ),
        sample_counts=SampleCounts(),
        readiness=Readiness(db, blobs, used_clock),
        request_counts=RequestCounts(),
        worker_access=access,
        queue=queue,
        platform_shards=shards,
        lease_clock=DatabaseClock(db, used_clock),
    )
