"""The worker protocol: messages between a platform and the machines that execute its runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainSerializer, SecretStr

from osmosis_ai.api.wire.base import Timestamp, WireModel

PROTOCOL = 1
"""The version in the routes' path; the platform refuses workers with another version."""
PREFIX = f"/api/workers/v{PROTOCOL}"
CLAIM = f"{PREFIX}/claim"
LONGEST_WAIT_S = 25.0
"""The maximum time that a claim without a run or a sync without news is held open, in seconds."""
LARGEST_EXCHANGE_BYTES = 1 << 20
"""The maximum size of an unpacked request body; larger content waits for the next exchange or is uploaded."""
MOST_WANTED = 256
"""The maximum number of uploads requested in one exchange."""
MOST_JOURNAL_LINES = 8192
MOST_LOG_LINES = 1000
MOST_FILES = 2000
"""The maximum number of files in an exchange, including completed uploads."""
LEASE_LOST = "LEASE_LOST"
PROTOCOL_HEADER = "X-Osmosis-Worker-Protocol"
"""Marks an empty reply (no run available) as a platform's."""
UPLOAD_GONE = "UPLOAD_GONE"
"""409 if a named upload did not arrive as announced: the worker requests and sends it again."""
STORE_AWAY = "store_away"
"""The key in an error body that says whether the store is unavailable, so that the worker waits instead of giving up.
"""
UPLOAD_LIMIT = "UPLOAD_LIMIT"
"""409 if a run has too many open uploads, or sends more bytes than allowed."""
JOURNAL_OFFSET = "JOURNAL_OFFSET"
"""409 if a journal part starts after the stored end; ``details.bytes`` is the right offset."""

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Secret = Annotated[SecretStr, PlainSerializer(SecretStr.get_secret_value, return_type=str, when_used="json")]
"""Never shown, but sent in clear text."""
Token = Annotated[Secret, Field(min_length=1, max_length=128)]
Count = Annotated[int, Field(strict=True, ge=0, lt=1 << 53)]
Term = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Pause = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
"""An amount of a machine's resource."""
Row = Annotated[int, Field(strict=True, ge=0, lt=1 << 31)]
Step = Annotated[int, Field(strict=True, ge=0, lt=1 << 31)]


def _written(words: str) -> str:
    if not words.isprintable():
        raise ValueError("characters that cannot be printed")
    return words


Words = Annotated[str, AfterValidator(_written)]
"""One line of text, without the characters that database engines cannot store."""
MetricKey = Annotated[Words, Field(max_length=128)]


def _segment(name: str) -> str:
    if name in ("", ".", "..") or any(mark in name for mark in "/\\\0"):
        raise ValueError("not the name of one directory")
    return name


Segment = Annotated[str, AfterValidator(_segment)]
"""A safe directory name: workers do not trust the platform's value."""
UploadName = Annotated[Words, Field(max_length=160)]


class WorkerOffer(WireModel):
    """A claim: the worker and its machine's resources."""

    claim_id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    sdk_version: str
    run_id: Words | None = None
    pool: Words | None = None
    machine: Annotated[Words, Field(max_length=128)] | None = None
    labels: Annotated[list[Annotated[Words, Field(max_length=64)]], Field(max_length=64)] = []
    sandbox: bool | None = None
    sandbox_problem: Annotated[Words, Field(max_length=500)] | None = None
    isolation: Literal["auto", "required", "off"] | None = None
    cpus: Amount | None = None
    gpus: Annotated[int, Field(ge=0, lt=1 << 16)] = 0
    memory_gb: Amount | None = None
    wait_s: Annotated[float, Field(ge=0, le=LONGEST_WAIT_S)] = 0.0
    leaves: bool = False


class InputDownload(WireModel):
    """Bytes to GET and verify. A repeated claim or ``renew`` returns a new ``url`` if it expired."""

    url: str
    size: Count
    sha256: Digest


class JournalSegment(InputDownload):
    """An accepted part of the journal: ``size`` unpacked bytes from ``offset``, with the digest ``sha256``."""

    offset: Count
    packed: bool = False
    """Whether the URL serves gzip-compressed bytes."""


class StoredJournal(WireModel):
    """The part of a run's journal that the platform has stored."""

    generation: Count
    bytes: Count
    sha256: Digest | None = None
    """The digest of the whole stored journal; None if it is empty."""
    segments: list[JournalSegment] = []
    worked_ms: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """The time that earlier workers reported for the run, in milliseconds."""


class AssignedRun(WireModel):
    """A run as its worker sees it; ``request`` is as submitted and ``selection`` as drawn."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
    name: Annotated[Words, AfterValidator(_segment)]
    kind: Literal["eval", "training"]
    workspace_id: str
    request: dict[str, Any]
    commit_sha: str
    branch: str | None = None
    rollout_name: Segment
    dataset_name: str
    model_path: str
    seed: int
    selection: dict[str, Any]
    reopened_at: Count = 0
    """The bytes of the journal when the run was last retried: attempts whose records are before it and have no score run
    again."""


class AssignedLease(WireModel):
    """The lease on a run: ``term_s`` seconds from each exchange. ``attempt`` counts the claims."""

    token: Token
    attempt: Count
    term_s: Term


class AssignedAdapter(WireModel):
    """The files, by name, of the adapter that is the run's model."""

    base_model: str
    files: dict[str, InputDownload]


class AgentPlace(WireModel):
    """The address of a remote agent."""

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
    """A claimed run with everything it needs."""

    run: AssignedRun
    lease: AssignedLease
    secrets: dict[str, Secret] = {}
    source: InputDownload | None = None
    agent: AgentPlace | None = None
    dataset: InputDownload
    dataset_extension: Annotated[str, Field(pattern=r"^[a-z0-9]{1,16}$")]
    adapter: AssignedAdapter | None = None
    journal: StoredJournal
    training: StoredTraining | None = None
    isolation: Literal["required"] | None = None
    network: Literal["none"] | None = None
    next_s: Pause = 1.0


class JournalPart(WireModel):
    """Whole lines of the journal from ``offset``, byte for byte as on the worker's disk."""

    generation: Count
    offset: Count
    lines: str
    resumed: Count = 0


class LogPart(WireModel):
    """Log lines; ``first`` is the number of lines this attempt has sent before, to detect repeats."""

    first: Count
    lines: Annotated[list[WorkerLogLine], Field(max_length=MOST_LOG_LINES)]


class WorkerLogLine(WireModel):
    timestamp: Timestamp
    level: Literal["debug", "info", "warning", "error"] = "info"
    step: str = ""
    message: str
    details: dict[str, Any] | None = None


class WantedUpload(WireModel):
    """A blob that the worker is about to send. ``name`` is unique within the run."""

    name: UploadName
    size: Count
    sha256: Digest


class UploadGrant(WireModel):
    """The destination of a requested upload: one PUT of exactly its bytes."""

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
    size: Count
    sha256: Digest


class RunFilePart(WireModel):
    """A run's file, stored in an uploaded blob or a range of one; ``blob`` is the upload's name."""

    path: Annotated[str, Field(max_length=1024)]
    kind: Annotated[str, Field(pattern=r"^[a-z_]{1,16}$")]
    size: Count
    blob: UploadName
    source_row_index: Row | None = None
    shard_offset: Count | None = None
    shard_length: Count | None = None


class TrainingStart(WireModel):
    """The length of a training run, and the step after which it resumes; later steps are discarded."""

    total_steps: Step
    steps_done: Step


class TrainingStep(WireModel):
    """The metrics of a step; the platform drops values that are not finite."""

    step: Step
    timestamp_ms: Annotated[int, Field(strict=True, ge=0, lt=1 << 47)]
    metrics: dict[MetricKey, float | None]
    validation_rewards: dict[str, float | None] = {}


class CheckpointPart(WireModel):
    """A complete checkpoint: uploads by file name. ``is_resume`` marks the archive to resume from on another machine."""

    step: Step
    base_model: Annotated[Words, Field(max_length=255)]
    files: dict[str, UploadName]
    reward: float | None = None
    validation_reward: float | None = None
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

    lease: Token
    sent: Annotated[list[SentUpload], Field(max_length=MOST_FILES)] = []
    files: Annotated[list[RunFilePart], Field(max_length=MOST_FILES)] = []
    journal: JournalPart | None = None
    log: LogPart | None = None
    facts: dict[str, str] = {}
    progress: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = None
    grader_digest: Annotated[Words, Field(max_length=64)] | None = None
    training: TrainingNews | None = None
    wanted: Annotated[list[WantedUpload], Field(max_length=MOST_WANTED)] = []
    renew: Annotated[list[str], Field(max_length=16)] = []
    """Downloads that need new URLs: ``source``, ``dataset``, ``adapter``, ``journal``, ``resume``."""
    find_agent: bool = False
    may_wait: bool = False


class SyncReply(WireModel):
    """``stop``: the run must end."""

    stop: bool
    term_s: Term
    next_s: Pause
    journal_bytes: Count = 0
    log_lines: Count = 0
    uploads: list[UploadGrant] = []
    checkpoints: dict[int, str] = {}
    agent: AgentPlace | None = None
    renewed: Assignment | None = None


class EndRequest(WireModel):
    """How a run ended. If a stop was requested, its status is ``stopped`` in any case."""

    lease: Token
    outcome: Literal["finished", "failed"]
    error: str | None = None
    ending: str | None = None


class ReleaseRequest(WireModel):
    """The worker releases the run in its current state."""

    lease: Token
    setback: str | None = None
    of_machine: bool = False
    store_away: bool = False
    ending: str | None = None


class RunClosed(WireModel):
    """The run's current status, in reply to ``end`` and ``release``."""

    status: Literal["pending", "running", "finished", "failed", "stopped"]


def run_route(run_id: str, exchange: Literal["sync", "end", "release"]) -> str:
    """Return the path of an exchange about a run; the platform creates run ids, so they need no quoting."""
    return f"{PREFIX}/runs/{run_id}/{exchange}"
