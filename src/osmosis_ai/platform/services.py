"""The parts a platform is made of, built once and shared by everything that serves a request or a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from osmosis_ai.platform.accounts import Accounts
from osmosis_ai.platform.blobs.local import open_blob_store
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.clock import Clock, SystemClock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.datasets import Datasets
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.device_logins import DeviceLogins
from osmosis_ai.platform.gitsync.mirror import MirrorStore
from osmosis_ai.platform.logs import Logs
from osmosis_ai.platform.model_servers import ModelServers
from osmosis_ai.platform.model_serving import ServedModels
from osmosis_ai.platform.models import LoraModels
from osmosis_ai.platform.rollouts import Rollouts
from osmosis_ai.platform.runs.lifecycle import RunKind
from osmosis_ai.platform.runs.read.downloads import Downloads
from osmosis_ai.platform.runs.read.run_counts import RunCounts
from osmosis_ai.platform.runs.read.run_store import Runs
from osmosis_ai.platform.runs.submit.resuming import TrainingResumption
from osmosis_ai.platform.runs.submit.submitter import Submits
from osmosis_ai.platform.secrets import Secrets
from osmosis_ai.platform.sign_in import SignIns
from osmosis_ai.platform.vault import Vault, open_vault
from osmosis_ai.platform.workspaces import Workspaces


@dataclass(frozen=True)
class PlatformServices:
    """What routes and workers are given."""

    config: PlatformConfig
    clock: Clock
    db: Database
    accounts: Accounts
    workspaces: Workspaces
    sign_ins: SignIns
    device_logins: DeviceLogins
    logs: Logs
    blobs: BlobStore
    datasets: Datasets
    vault: Vault
    secrets: Secrets
    mirrors: MirrorStore
    rollouts: Rollouts
    served: ServedModels
    submits: Submits
    eval_runs: Runs
    training_runs: Runs
    resumption: TrainingResumption
    lora_models: LoraModels
    downloads: Downloads


def build_services(config: PlatformConfig, *, clock: Clock | None = None) -> PlatformServices:
    """Prepare the data directory, bring the database up to date, and return the parts.

    Raises:
        OsmosisError: when the directory or the database cannot be used.
    """
    config.prepare_home()
    used_clock = clock if clock is not None else SystemClock()
    db = Database(config.database_url)
    db.migrate()
    accounts = Accounts(db, used_clock)
    vault = open_vault(config)
    mirrors = MirrorStore(config.git_dir)
    logs = Logs(db, used_clock)
    blobs = open_blob_store(config, used_clock)
    rollouts = Rollouts(db, mirrors, used_clock)
    counts: dict[RunKind, RunCounts] = {kind: RunCounts(kind, used_clock) for kind in get_args(RunKind)}
    training_runs = Runs("training", db, used_clock, logs, counts["training"])
    return PlatformServices(
        config=config,
        clock=used_clock,
        db=db,
        accounts=accounts,
        workspaces=Workspaces(db, used_clock),
        sign_ins=SignIns(accounts, used_clock),
        device_logins=DeviceLogins(db, used_clock, accounts),
        logs=logs,
        blobs=blobs,
        datasets=Datasets(db, blobs, used_clock, logs),
        vault=vault,
        secrets=Secrets(db, vault, used_clock),
        mirrors=mirrors,
        rollouts=rollouts,
        served=ServedModels(ModelServers(db, blobs)),
        submits=Submits(db, used_clock, vault, mirrors, rollouts, counts),
        eval_runs=Runs("eval", db, used_clock, logs, counts["eval"]),
        training_runs=training_runs,
        resumption=TrainingResumption(db, used_clock, logs, training_runs, config.runs_dir),
        lora_models=LoraModels(db, blobs, used_clock),
        downloads=Downloads(db, blobs),
    )
