"""The worker protocol: four idempotent calls between a platform and the machines that execute its runs.

A run has one or more shards, and a worker executes one shard at a time:

``claim``
    A host asks for a shard with its worker token or ticket. The answer has everything that the worker needs, including
    the token of its lease. A repeat with the same ``claim_id`` gets the same answer while the lease lasts.
``sync``
    Keeps the lease and reports what is new. Journal lines are accepted by their offset, log lines by their number.
``finish``, ``release``
    End the shard, or return it for another worker. A repeat gets the same answer.

The last three calls, and the download of the stored journal, are authorized by the lease's token alone.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, SecretStr, model_validator

from osmosis_ai.api.models.base import Timestamp, WireModel

PROTOCOL = 2
"""The version in the routes' path; the platform refuses workers with another version."""
PREFIX = f"/api/workers/v{PROTOCOL}"
CLAIM = f"{PREFIX}/claim"
LARGEST_EXCHANGE_BYTES = 4 << 20
"""The maximum size of an unpacked request body; larger content waits for the next exchange or is uploaded."""
LARGEST_INLINE_BYTES = 32 << 10
"""The maximum compressed size of a file that is sent within a sync; larger ones are uploaded first."""
LARGEST_FILE_BYTES = 4 << 20
"""The maximum unpacked size of a file that is sent within a sync, or stored as a range of an upload."""
MOST_WANTED = 256
"""The maximum number of uploads requested in one exchange."""
MOST_JOURNAL_LINES = 8192
MOST_LOG_LINES = 1000
MOST_FILES = 2000
"""The maximum number of files in an exchange, including completed uploads."""

LEASE_LOST = "LEASE_LOST"
"""409 if the shard has another owner now, or has ended."""
JOURNAL_OFFSET = "JOURNAL_OFFSET"
"""409 if journal lines start after the stored end; ``details.bytes`` is the right offset."""
JOURNAL_DIVERGED = "JOURNAL_DIVERGED"
"""409 if journal lines differ from the stored ones."""
UPLOAD_GONE = "UPLOAD_GONE"
"""409 if a named upload did not arrive as announced: the worker requests and sends it again."""
UPLOAD_LIMIT = "UPLOAD_LIMIT"
"""409 if a run has too many open uploads, or sends more bytes than allowed."""
STORE_AWAY = "store_away"
"""The key in an error body that says that the store is unavailable, so that the worker waits instead of giving up."""

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Secret = Annotated[SecretStr, PlainSerializer(SecretStr.get_secret_value, return_type=str, when_used="json")]
"""Never shown, but sent in clear text."""
Token = Annotated[Secret, Field(min_length=1, max_length=128)]
Count = Annotated[int, Field(strict=True, ge=0, lt=1 << 53)]
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
"""An amount of a machine's resource."""
Finite = Annotated[float, Field(allow_inf_nan=False)]
Row = Annotated[int, Field(strict=True, ge=0, lt=1 << 31)]
Step = Annotated[int, Field(strict=True, ge=0, lt=1 << 31)]
Identifier = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("characters that cannot be printed")
    return text


Line = Annotated[str, AfterValidator(_printable)]
"""One line of text, without the characters that database engines cannot store."""
MetricKey = Annotated[Line, Field(max_length=128)]


def _segment(name: str) -> str:
    if name in ("", ".", "..") or any(mark in name for mark in "/\\\0"):
        raise ValueError("not the name of one directory")
    return name


Segment = Annotated[str, AfterValidator(_segment)]
"""A safe directory name: workers do not trust the platform's value."""
UploadName = Annotated[Line, Field(max_length=160)]


def _decoded(written: Any) -> Any:
    if not isinstance(written, str):
        return written
    try:
        return base64.b64decode(written, validate=True)
    except binascii.Error:
        raise ValueError("not Base64") from None


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


Content = Annotated[
    bytes,
    BeforeValidator(_decoded),
    PlainSerializer(_encoded, return_type=str, when_used="json"),
    Field(max_length=LARGEST_INLINE_BYTES),
]
"""Bytes, sent as Base64."""


# -- claim -----------------------------------------------------------------------------------------


class ClaimRequest(WireModel):
    """A claim: the host and its machine's resources. With ``leaves``, the host only reports that it claims no more."""

    claim_id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    sdk_version: str
    run_id: Line | None = None
    pool: Line | None = None
    machine: Annotated[Line, Field(max_length=128)] | None = None
    labels: Annotated[list[Annotated[Line, Field(max_length=64)]], Field(max_length=64)] = []
    sandbox: bool | None = None
    sandbox_problem: Annotated[Line, Field(max_length=500)] | None = None
    isolation: Literal["auto", "required", "off"] | None = None
    cpus: Amount | None = None
    gpus: Annotated[int, Field(ge=0, lt=1 << 16)] = 0
    memory_gb: Amount | None = None
    leaves: bool = False


class InputDownload(WireModel):
    """Bytes to GET and verify; the URL is empty if the platform no longer has them."""

    url: str
    size: Count
    sha256: Digest


class AssignedRun(WireModel):
    """A run as its workers see it; ``request`` is as submitted and ``selection`` as drawn."""

    id: Identifier
    name: Annotated[Line, AfterValidator(_segment)]
    kind: Literal["eval", "training"]
    workspace_id: Identifier
    request: dict[str, Any]
    commit_sha: str
    branch: str | None = None
    rollout_name: Segment
    dataset_name: str
    model_path: str
    seed: int
    selection: dict[str, Any]


class AssignedShard(WireModel):
    """The part of a run that a worker executes: number ``number`` of ``count``.

    Of an evaluation it has the rows ``number``, ``number + count`` and so on, or exactly the ``attempts`` (row and
    number of the attempt) if they are listed. ``journal_bytes`` of its journal are stored, with this digest.
    """

    id: Identifier
    number: Count = 0
    count: Annotated[int, Field(ge=1, le=1 << 16)] = 1
    attempts: list[tuple[Row, Row]] | None = None
    journal_bytes: Count = 0
    journal_sha256: Digest | None = None
    worked_s: Seconds = 0.0
    """How long earlier workers worked on the shard, in seconds."""


class AssignedLease(WireModel):
    """The lease on a shard: ``term_s`` seconds from each exchange. ``attempt`` counts the claims."""

    token: Token
    attempt: Count
    term_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]


class AssignedAdapter(WireModel):
    """The files, by name, of the adapter that is the run's model."""

    base_model: str
    files: dict[str, InputDownload]


class AgentPlace(WireModel):
    host: str
    port: int
    api_key: Secret | None = None


class StoredTraining(WireModel):
    """The stored state of a training run: steps with a kept checkpoint, the version of the newest validation, and the
    archive to resume from (a checkpoint with its history; None before the first one).
    """

    checkpoint_steps: list[int] = []
    validation: str | None = None
    resume_step: int | None = None
    resume: InputDownload | None = None


class Assignment(WireModel):
    """A claimed shard with everything that its worker needs."""

    run: AssignedRun
    shard: AssignedShard
    lease: AssignedLease
    secrets: dict[str, Secret] = {}
    source: InputDownload | None = None
    agent: AgentPlace | None = None
    dataset: InputDownload
    dataset_extension: Annotated[str, Field(pattern=r"^[a-z0-9]{1,16}$")]
    validation: InputDownload | None = None
    adapter: AssignedAdapter | None = None
    training: StoredTraining | None = None
    isolation: Literal["required"] | None = None
    network: Literal["none"] | None = None
    next_poll_s: Seconds = 1.0


class ClaimReply(WireModel):
    """The claimed shard, if there is one, and when to ask again otherwise."""

    assignment: Assignment | None = None
    next_poll_s: Seconds = 1.0


# -- sync ------------------------------------------------------------------------------------------


class JournalPart(WireModel):
    """Whole lines of the shard's journal from ``offset``, byte for byte as on the worker's disk."""

    offset: Count
    lines: str


class WorkerLogLine(WireModel):
    timestamp: Timestamp
    level: Literal["debug", "info", "warning", "error"] = "info"
    step: str = ""
    message: str
    details: dict[str, Any] | None = None


class LogPart(WireModel):
    """Log lines; ``first`` is the number of lines that this worker has sent before."""

    first: Annotated[int, Field(strict=True, ge=0, lt=1 << 30)]
    lines: Annotated[list[WorkerLogLine], Field(max_length=MOST_LOG_LINES)]


class WantedUpload(WireModel):
    """A blob that the worker is about to send. ``name`` is unique within the run."""

    name: UploadName
    size: Count
    sha256: Digest


def _all_different(wanted: list[WantedUpload]) -> list[WantedUpload]:
    if len({each.name for each in wanted}) < len(wanted):
        raise ValueError("the same upload twice")
    return wanted


class UploadGrant(WireModel):
    """The destination of a requested upload: one PUT of exactly its bytes, or one for each part.

    Without a URL, the platform has the bytes.
    """

    name: str
    id: str
    url: str
    further_urls: list[str] = []
    part_size: Count | None = None
    received: dict[int, str] = {}


class SentUpload(WireModel):
    """A completed upload: the ``etag`` of its PUT, and ``further_etags`` of further parts."""

    name: UploadName
    id: str
    etag: str
    further_etags: Annotated[list[str], Field(max_length=10_000)] = []


class RunFilePart(WireModel):
    """A run's file of ``size`` bytes.

    Its bytes are ``content`` (zlib, at most ``LARGEST_INLINE_BYTES``), an upload of its own, or a compressed range of an
    upload.
    """

    path: Annotated[str, Field(max_length=1024)]
    kind: Annotated[str, Field(pattern=r"^[a-z_]{1,16}$")]
    size: Count
    content: Content | None = None
    blob: UploadName | None = None
    offset: Count | None = None
    length: Count | None = None
    source_row_index: Row | None = None

    @model_validator(mode="after")
    def _check_bytes(self) -> RunFilePart:
        is_range = self.offset is not None and self.length is not None
        if (self.content is None) == (self.blob is None):
            raise ValueError("a file has either content or the name of an upload")
        if (self.offset is None) != (self.length is None) or (is_range and self.blob is None):
            raise ValueError("a range has an offset and a length in an upload")
        if (is_range or self.content is not None) and max(self.size, self.length or 0) > LARGEST_FILE_BYTES:
            raise ValueError(f"such a file has at most {LARGEST_FILE_BYTES} bytes")
        return self


class TrainingStart(WireModel):
    """The length of a training run, and the step after which it resumes; later steps are discarded."""

    total_steps: Step
    steps_done: Step


class TrainingStep(WireModel):
    """The metrics of a step; the platform drops values that are not finite."""

    step: Step
    timestamp_ms: Annotated[int, Field(strict=True, ge=0, lt=1 << 47)]
    metrics: dict[MetricKey, float | None]
    validation_rewards: dict[MetricKey, float | None] = {}


class CheckpointPart(WireModel):
    """A complete checkpoint: uploads by file name. ``is_resume`` marks the archive to resume from on another machine."""

    step: Step
    base_model: Annotated[Line, Field(max_length=255)]
    files: dict[str, UploadName]
    reward: Finite | None = None
    validation_reward: Finite | None = None
    is_resume: bool = False


class ValidationPart(WireModel):
    """The newest validation; its files replace those of the previous one, also if there are none."""

    version: str | None = None
    files: list[RunFilePart] = []


class TrainingNews(WireModel):
    """Updates of a training run, applied in this order."""

    start: TrainingStart | None = None
    steps: list[TrainingStep] = []
    validation: ValidationPart | None = None
    checkpoints: list[CheckpointPart] = []


class SyncRequest(WireModel):
    """A heartbeat and all updates, applied in one transaction: files before the records that name them."""

    sent: Annotated[list[SentUpload], Field(max_length=MOST_FILES)] = []
    files: Annotated[list[RunFilePart], Field(max_length=MOST_FILES)] = []
    journal: JournalPart | None = None
    log: LogPart | None = None
    environment: str | None = None
    isolation: str | None = None
    grader_digest: Annotated[Line, Field(max_length=64)] | None = None
    worked_s: Seconds | None = None
    limited_by: dict[str, Any] | None = None
    training: TrainingNews | None = None
    wanted: Annotated[list[WantedUpload], Field(max_length=MOST_WANTED), AfterValidator(_all_different)] = []
    find_agent: bool = False


class SyncReply(WireModel):
    """``stop``: the shard must end. The lease lasts ``term_s`` from this reply."""

    stop: bool
    term_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    next_poll_s: Seconds
    journal_bytes: Count = 0
    log_lines: Count = 0
    uploads: list[UploadGrant] = []
    checkpoints: dict[int, str] = {}
    agent: AgentPlace | None = None


# -- finish and release ----------------------------------------------------------------------------


class FinishRequest(WireModel):
    """How the shard ended; ``note`` is shown with the run's results."""

    outcome: Literal["finished", "failed"]
    error: str | None = None
    note: str | None = None


class ReleaseRequest(WireModel):
    """The worker returns the shard in its current state.

    Args:
        reason: The reason, in a sentence; None if the worker was asked to end.
        counts: Whether this counts as a failed attempt of the shard.
        unfit: Whether only this machine is at fault, so that others are tried first.
    """

    reason: str | None = None
    counts: bool = False
    unfit: bool = False


class ShardClosed(WireModel):
    """The shard's current status, in reply to ``finish`` and ``release``."""

    status: Literal["pending", "running", "finished", "failed", "stopped"]


def shard_route(shard_id: str, call: Literal["sync", "finish", "release", "journal"]) -> str:
    """Return the path of a call about a shard; the platform creates shard ids, so they need no quoting."""
    return f"{PREFIX}/shards/{shard_id}/{call}"
