"""What tests name of the platform's insides, in one place: where these move, nothing but this file follows."""

from __future__ import annotations

from osmosis_ai.platform.blobs.local import LocalBlobStore
from osmosis_ai.platform.blobs.store import BlobError, BlobStoreBusy, BlobStoreError, BlobStoreSilent
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.engine import Database, DatabaseBusyError, StorageFullError
from osmosis_ai.platform.db.tables import (
    Base,
    DbDataset,
    DbLogLine,
    DbLoraModel,
    DbMetricPoint,
    DbRepository,
    DbRun,
    DbRunFile,
    DbRunShard,
    DbRunUpload,
    DbSample,
    DbSecretAccess,
    DbSourceArchive,
    DbWorkspace,
    new_id,
)
from osmosis_ai.platform.log_lines import PLAN, WARNED, LogLine
from osmosis_ai.platform.logs import LogStore
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.redaction import Redactor

__all__ = [
    "PLAN",
    "WARNED",
    "Base",
    "BlobError",
    "BlobStoreBusy",
    "BlobStoreError",
    "BlobStoreSilent",
    "Database",
    "DatabaseBusyError",
    "DbDataset",
    "DbLogLine",
    "DbLoraModel",
    "DbMetricPoint",
    "DbRepository",
    "DbRun",
    "DbRunFile",
    "DbRunShard",
    "DbRunUpload",
    "DbSample",
    "DbSecretAccess",
    "DbSourceArchive",
    "DbWorkspace",
    "LocalBlobStore",
    "LogLine",
    "LogStore",
    "PlatformConfig",
    "PlatformServices",
    "Redactor",
    "StorageFullError",
    "SystemClock",
    "new_id",
]
