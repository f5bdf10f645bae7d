"""The parts of a platform, built once and shared by requests and runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from osmosis_ai.platform.accounts import AccountStore
from osmosis_ai.platform.blobs import open_blob_store
from osmosis_ai.platform.blobs.signing import UrlSigner, url_signer
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.clock import Clock, SystemClock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.datasets.store import DatasetStore
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.gitsync.mirror import MirrorStore
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.machines import Demands
from osmosis_ai.platform.maintenance import Maintenance
from osmosis_ai.platform.metrics import PlatformMetrics
from osmosis_ai.platform.models import LoraModelStore, ModelServerPool, start_model_server
from osmosis_ai.platform.queue.access import WorkerAccess
from osmosis_ai.platform.queue.assignment import Assignments
from osmosis_ai.platform.queue.finalize import PlatformShards
from osmosis_ai.platform.queue.queue import RunQueue
from osmosis_ai.platform.queue.uploads import RunUploads
from osmosis_ai.platform.readiness import Readiness
from osmosis_ai.platform.rollouts import RolloutServerStore, RolloutStore
from osmosis_ai.platform.runs.files import RunFiles
from osmosis_ai.platform.runs.reopening import RunReopener
from osmosis_ai.platform.runs.run_imports import EvalImportStore
from osmosis_ai.platform.runs.run_store import RunStore
from osmosis_ai.platform.runs.source_archives import SourceArchives
from osmosis_ai.platform.runs.submitter import RunSubmitter
from osmosis_ai.platform.secrets import SecretStore
from osmosis_ai.platform.sign_in import DeviceLoginStore, SignIns
from osmosis_ai.platform.vault import Vault, open_vault
from osmosis_ai.platform.workspaces import WorkspaceStore
from osmosis_ai.viewer.shared_reads import SharedReads


@dataclass(frozen=True)
class PlatformServices:
    """The parts of a platform."""

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
    mirrors: MirrorStore
    rollouts: RolloutStore
    rollout_servers: RolloutServerStore
    model_servers: ModelServerPool
    sources: SourceArchives
    submitter: RunSubmitter
    runs: RunStore
    eval_imports: EvalImportStore
    reopener: RunReopener
    lora_models: LoraModelStore
    run_files: RunFiles
    maintenance: Maintenance
    sample_counts: SharedReads
    readiness: Readiness
    metrics: PlatformMetrics
    worker_access: WorkerAccess
    queue: RunQueue
    platform_shards: PlatformShards


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
    sources, demands = SourceArchives(db, blobs, used_clock, mirrors), Demands.of(config)
    assignments = Assignments(db, vault, blobs, signer, sources, config.lease_term, demands)
    uploads = RunUploads(db, blobs, signer, config.run_upload_bytes)
    queue = RunQueue(db, used_clock, logs, demands, config.lease_term, assignments, uploads)
    shards = PlatformShards(db, used_clock, blobs, queue, uploads, sources, assignments)
    runs = RunStore(db, used_clock, blobs, logs, queue, demands, config.executes_nothing)
    submitter = RunSubmitter(config, db, used_clock, vault, mirrors, rollouts, runs, sources, queue)
    reopener = RunReopener(db, blobs, vault, used_clock, logs, submitter, queue)
    imports = EvalImportStore(db, blobs, used_clock, logs, runs)
    access = WorkerAccess(db, used_clock, logs, demands)
    run_files, readiness = RunFiles(db, blobs, signer), Readiness(db, blobs, used_clock)
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
        mirrors=mirrors,
        rollouts=rollouts,
        rollout_servers=RolloutServerStore(db, vault, used_clock),
        model_servers=ModelServerPool(partial(start_model_server, db, blobs)),
        sources=sources,
        submitter=submitter,
        runs=runs,
        eval_imports=imports,
        reopener=reopener,
        lora_models=LoraModelStore(db, blobs, used_clock),
        run_files=run_files,
        maintenance=Maintenance(
            {
                "blobs": blobs.sweep,
                "datasets": datasets.ingest.recover,
                "uploads of runs": imports.tidy,
                "checkpoints of runs": reopener.forget_old,
                "commits of runs that have ended": sources.sweep,
                "uploads of runs that have ended": shards.clear_ended,
                "workers that are gone": access.known.forget_old,
                "files of deleted runs": runs.finish_deletions,
                "free space of the database": db.reclaim_space,
            }
        ),
        sample_counts=SharedReads(most=500),
        readiness=readiness,
        metrics=PlatformMetrics(config, db, used_clock, readiness),
        worker_access=access,
        queue=queue,
        platform_shards=shards,
    )
