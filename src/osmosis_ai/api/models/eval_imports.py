"""Upload of a local evaluation: announced, then sent file by file, then finalized."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from osmosis_ai.api.models.base import Timestamp, WireModel
from osmosis_ai.api.models.datasets import UploadInstructions

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

SCHEMA_VERSION = 1
LARGEST_BATCH = 100
"""The maximum number of files per request."""


class ImportFile(WireModel):
    """A file by its path in the run's directory."""

    path: str
    size: int = Field(strict=True, ge=0)
    sha256: Digest


class ImportFileState(ImportFile):
    state: Literal["pending", "uploaded"]


class ImportedRollout(WireModel):
    name: str
    source_digest: str | None = None
    branch: str | None = None
    commit_sha: str | None = None


class ImportedDataset(WireModel):
    """``selected_source_rows`` are rows of the file, counted from 0, such as ``0-9,12``."""

    name: str
    sha256: str | None = None
    selected_source_rows: str


class ImportedExperiment(WireModel):
    rollout: ImportedRollout
    entrypoint: str
    model_path: str
    dataset: ImportedDataset


class ImportedEvaluation(WireModel):
    n: int = Field(default=1, strict=True, ge=1)
    pass_threshold: float = Field(default=1.0, allow_inf_nan=False)


class ImportedRun(WireModel):
    name: str
    started_at: Timestamp
    completed_at: Timestamp
    experiment_config: ImportedExperiment
    evaluation_config: ImportedEvaluation = ImportedEvaluation()


class EvalImportStart(WireModel):
    """``manifest_digest`` is that of the run's ``manifest.json``, which is not sent.

    ``reimport`` replaces the results of an earlier upload of the run.
    """

    schema_version: int
    local_run_id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    manifest_digest: Digest
    run: ImportedRun
    schema_versions: dict[str, Any] = {}
    provenance: dict[str, Any] = {}
    files: list[ImportFile]
    reimport: bool = False


class EvalImportSession(WireModel):
    """The state of an upload, and its run once it is finalized."""

    session_id: str
    status: Literal["uploading", "finalized"]
    expected_files: int = Field(ge=0)
    uploaded_files: int = Field(ge=0)
    files: list[ImportFileState]
    expires_at: Timestamp | None = None
    eval_run_id: str | None = None
    eval_run_name: str | None = None
    platform_url: str | None = None


class ImportUploadsRequest(WireModel):
    paths: list[str]


class ImportUpload(ImportFile):
    upload: UploadInstructions


class ImportUploads(WireModel):
    """Upload URLs for the missing files."""

    files: list[ImportUpload] = []


class ImportPart(WireModel):
    part_number: int
    etag: str


class ImportUploadComplete(WireModel):
    path: str
    parts: list[ImportPart] | None = None
