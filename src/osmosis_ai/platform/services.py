"""The parts a platform is made of, built once and shared by everything that serves a request or a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
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
from osmosis_ai.platform.maintenance import Maintenance
from osmosis_ai.platform.model_serving import ModelServerFactory, ModelServerPool
from osmosis_ai.platform.models import LoraModelStore
from osmosis_ai.platform.pool_waits import RunThatWaits
from osmosis_ai.platform.readiness import Readiness
from osmosis_ai.platform.request_counts import RequestCounts
from osmosis_ai.platform.rollout_servers import RolloutServerStore
from osmosis_ai.platform.rollouts import RolloutStore
from osmosis_ai.platform.runs.deleting import RunDeletion
from osmosis_ai.platform.runs.demands import Demands
from osmosis_ai.platform.runs.desk.run_desk import RunDesk
from osmosis_ai.platform.runs.desk.shard_merging import MERGE_EVERY_S, ShardMerging
from osmosis_ai.platform.runs.execute.executor_loop import ExecutorParts
from osmosis_ai.platform.runs.imports.sessions import EvalImportStore
from osmosis_ai.platform.runs.lifecycle import RunKind
from osmosis_ai.platform.runs.read.downloads import Downloads
from osmosis_ai.platform.runs.read.run_counts import RunCounts
from osmosis_ai.platform.runs.read.run_store import RunStore
from osmosis_ai.platform.runs.read.sample_counts import SampleCounts
from osmosis_ai.platform.runs.secret_handouts import SecretHandouts
from osmosis_ai.platform.runs.source_archives import SourceArchives
from osmosis_ai.platform.runs.submit.packing import PACKING, SourcePacking
from osmosis_ai.platform.runs.submit.resuming import TrainingResumption
from osmosis_ai.platform.runs.submit.retrying import EvalRetries
from osmosis_ai.platform.runs.submit.submitter import RunSubmitter
from osmosis_ai.platform.runs.waiting import is_without_worker
from osmosis_ai.platform.secrets import SecretStore
from osmosis_ai.platform.sign_in import SignIns
from osmosis_ai.platform.vault import Vault, open_vault
from osmosis_ai.platform.worker_access import WorkerAccess
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
    secret_handouts: SecretHandouts
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
    downloads: Downloads
    maintenance: Maintenance
    shard_merging: ShardMerging
    frequent_maintenance: Maintenance
    sample_counts: SampleCounts
    readiness: Readiness
    request_counts: RequestCounts
    worker_access: WorkerAccess
    desk: RunDesk

    def runs_of(self, kind: RunKind) -> RunStore:
        """Return the runs of one kind."""
        return self.eval_runs if kind == "eval" else self.training_runs

    def executor_parts(self, config: PlatformConfig | None = None) -> ExecutorParts:
        """Return what every executor works with; ``config``: other settings than the platform's own."""
        return ExecutorParts(
            config or self.config, self.db, self.clock, self.logs, self.desk, self.worker_access
        )

    def why_it_waits(self, run: RunThatWaits) -> str | None:
        """Return why nobody works on a run that is there, in a sentence; None where that is no matter or not known."""
        return self.why_they_wait()(run)

    def silent_since(self, run: RunThatWaits) -> datetime | None:
        """Return when the worker of a run was last heard, where its silence is what :meth:`why_it_waits` tells of."""
        is_told = self.why_it_waits(run) == self.desk.why_it_waits(run)
        return self.desk.silent_since(run) if is_told else None

    def why_they_wait(self) -> Callable[[RunThatWaits], str | None]:
        """Return :meth:`why_it_waits` for the runs of one list: at most one statement for all of them."""
        of_pools = self.worker_access.known.waits()

        def why(run: RunThatWaits) -> str | None:
            if run.status == "pending" and self.sources.is_making(run.workspace_id, run.commit_sha):
                return PACKING
            if run.status == "pending" and run.pool is None and self.config.executes_nothing is not None:
                return f"isolation: {self.config.executes_nothing}"
            nobody_may = of_pools.why(run) if is_without_worker(run, self.desk.leases) else None
            return nobody_may or self.desk.why_it_waits(run)

        return why


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
    sources, shards = SourceArchives(db, blobs, used_clock, mirrors), ShardMerging(db, blobs, used_clock)
    packing = SourcePacking(db, used_clock, logs, sources)
    submitter = RunSubmitter(config, db, used_clock, vault, mirrors, rollouts, counts, packing)
    eval_runs = RunStore("eval", db, used_clock, logs, counts["eval"])
    training_runs = RunStore("training", db, used_clock, logs, counts["training"])
    resuming = TrainingResumption(db, blobs, used_clock, logs, training_runs, config.runs_dir)
    imports = EvalImportStore(db, blobs, used_clock, logs, counts["eval"])
    access, handouts = WorkerAccess(db, used_clock, logs, Demands.of(config)), SecretHandouts(db, used_clock)
    desk = RunDesk(config, db, used_clock, logs, blobs, vault, sources, signer, handouts)
    deletion = RunDeletion(db, used_clock, blobs, config.runs_dir, counts)
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
        secret_handouts=handouts,
        mirrors=mirrors,
        rollouts=rollouts,
        rollout_servers=RolloutServerStore(db, vault, used_clock),
        model_servers=ModelServerPool(ModelServerFactory(db, blobs)),
        sources=sources,
        submitter=submitter,
        eval_retries=EvalRetries(db, blobs, vault, used_clock, logs, eval_runs, submitter, packing),
        eval_runs=eval_runs,
        eval_imports=imports,
        training_runs=training_runs,
        resumption=resuming,
        run_deletion=deletion,
        lora_models=LoraModelStore(db, blobs, used_clock),
        downloads=Downloads(db, blobs, signer),
        maintenance=_maintenance(blobs, datasets, imports, resuming, sources, desk, access, shards, deletion),
        shard_merging=shards,
        frequent_maintenance=_frequent_maintenance(desk, shards),
        sample_counts=SampleCounts(),
        readiness=Readiness(db, blobs, used_clock),
        request_counts=RequestCounts(),
        worker_access=access,
        desk=desk,
    )


def _maintenance(
    blobs: BlobStore,
    datasets: DatasetStore,
    imports: EvalImportStore,
    resumption: TrainingResumption,
    sources: SourceArchives,
    desk: RunDesk,
    access: WorkerAccess,
    merging: ShardMerging,
    deletion: RunDeletion,
) -> Maintenance:
    """Return what tidies up after all that stores something."""
    return Maintenance(
        {
            "blobs": blobs.sweep,
            "datasets": datasets.ingest.recover,
            "uploads of runs": imports.tidy,
            "checkpoints of runs": resumption.forget_old,
            "commits of runs that have ended": sources.sweep,
            "uploads and journals of runs that have ended": desk.clear_ended,
            "workers that are gone": access.known.forget_old,
            "shards of runs": merging.tidy,
            "files of deleted runs": deletion.finish,
        }
    )


def _frequent_maintenance(desk: RunDesk, merging: ShardMerging) -> Maintenance:
    """Return what somebody waits for, or what grows while it is put off."""
    return Maintenance(
        {
            "stopped runs": desk.close_stopped,
            "numbers of runs that wait": desk.count_accepted,
            "shards of runs": merging.merge_due,
        },
        every_s=MERGE_EVERY_S,
    )
