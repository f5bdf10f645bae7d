"""The parts of a platform, built once and shared by requests and runs."""

from __future__ import annotations

from functools import partial

from osmosis_ai.platform.accounts import AccountStore
from osmosis_ai.platform.blobs import open_blob_store
from osmosis_ai.platform.blobs.signing import url_signer
from osmosis_ai.platform.clock import Clock, SystemClock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.datasets.store import DatasetStore
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.gitsync.mirror import MirrorStore
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.machines import Demands
from osmosis_ai.platform.models import LoraModelStore, ModelServerPool, start_model_server
from osmosis_ai.platform.operations import Maintenance, PlatformMetrics, Readiness
from osmosis_ai.platform.queue.access import WorkerAccess
from osmosis_ai.platform.queue.assignment import Assignments
from osmosis_ai.platform.queue.finalize import PlatformShards
from osmosis_ai.platform.queue.queue import RunQueue
from osmosis_ai.platform.queue.reports import RunUploads
from osmosis_ai.platform.rollouts import RolloutServerStore, RolloutStore
from osmosis_ai.platform.runs.files import RunFiles
from osmosis_ai.platform.runs.reopening import RunReopener
from osmosis_ai.platform.runs.run_imports import EvalImportStore
from osmosis_ai.platform.runs.run_store import RunStore
from osmosis_ai.platform.runs.source_archives import SourceArchives
from osmosis_ai.platform.runs.submitter import RunSubmitter
from osmosis_ai.platform.secrets import SecretStore
from osmosis_ai.platform.shared_reads import SharedReads
from osmosis_ai.platform.sign_in import DeviceLoginStore, SignIns
from osmosis_ai.platform.vault import open_vault
from osmosis_ai.platform.workspaces import WorkspaceStore


class PlatformServices:
    """The parts of a platform; the data directory is prepared, and the database brought up to date."""

    def __init__(self, config: PlatformConfig, *, clock: Clock | None = None) -> None:
        config.prepare_home()
        clock = clock or SystemClock()
        db = Database(config.database_url)
        db.migrate()
        self.config, self.clock, self.db = config, clock, db
        self.vault, self.logs = open_vault(config), LogStore(db, clock)
        self.blobs, self.url_signer = open_blob_store(config, clock), url_signer(config, clock)
        blobs, vault, logs, signer = self.blobs, self.vault, self.logs, self.url_signer
        self.accounts, self.workspaces = AccountStore(db, clock), WorkspaceStore(db, clock)
        self.sign_ins = SignIns(self.accounts, clock)
        self.device_logins = DeviceLoginStore(db, clock, self.accounts)
        self.secrets = SecretStore(db, vault, clock)
        self.datasets = DatasetStore(db, blobs, clock, logs)
        self.mirrors = MirrorStore(config.git_dir)
        self.rollouts = RolloutStore(db, self.mirrors, clock)
        self.rollout_servers = RolloutServerStore(db, vault, clock)
        self.lora_models = LoraModelStore(db, blobs, clock)
        self.model_servers = ModelServerPool(partial(start_model_server, db, blobs))

        demands = Demands.of(config)
        self.sources = SourceArchives(db, blobs, clock, self.mirrors)
        assignments = Assignments(db, vault, blobs, signer, self.sources, config.lease_term, demands)
        uploads = RunUploads(db, blobs, signer, config.run_upload_bytes)
        queue = RunQueue(
            db, clock, logs, demands, config.lease_term, assignments=assignments, uploads=uploads
        )
        self.queue, self.worker_access = queue, WorkerAccess(db, clock, logs, demands)
        self.platform_shards = PlatformShards(db, clock, blobs, queue, uploads, assignments)
        self.runs = RunStore(db, clock, blobs, logs, queue, demands, config.executes_nothing)
        self.submitter = RunSubmitter(
            config, db, clock, vault, self.mirrors, self.rollouts, self.runs, self.sources, queue
        )
        self.reopener = RunReopener(db, blobs, vault, clock, logs, self.submitter, queue)
        self.eval_imports = EvalImportStore(db, blobs, clock, logs, self.runs)
        self.run_files = RunFiles(db, blobs, signer)
        self.sample_counts = SharedReads(most=500)

        self.readiness = Readiness(db, blobs, clock)
        self.metrics = PlatformMetrics(config, db, clock, self.readiness)
        self.maintenance = Maintenance(
            {
                "blobs": blobs.sweep,
                "datasets": self.datasets.ingest.recover,
                "uploads of runs": self.eval_imports.tidy,
                "checkpoints of runs": self.reopener.forget_old,
                "commits of runs that have ended": self.sources.sweep,
                "uploads of runs that have ended": self.platform_shards.clear_ended,
                "workers that are gone": self.worker_access.known.forget_old,
                "files of deleted runs": self.runs.finish_deletions,
                "free space of the database": db.reclaim_space,
            }
        )
