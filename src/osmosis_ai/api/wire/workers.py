"""The worker protocol: what a machine that executes runs says to its platform, and what it is told."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainSerializer, SecretStr

from osmosis_ai.api.wire.base import Timestamp, WireModel

PROTOCOL = 1
"""The version in the routes' path; a worker that speaks another is refused with a sentence."""
PREFIX = f"/api/workers/v{PROTOCOL}"
CLAIM = f"{PREFIX}/claim"
LONGEST_WAIT_S = 25.0
"""How long a claim without a run, or a sync with nothing new, is held open at most."""
LARGEST_EXCHANGE_BYTES = 1 << 20
"""Of a request's body, unpacked; what is larger waits for the next exchange, or goes up as a file."""
MOST_WANTED = 256
"""Uploads asked for in one exchange at most."""
MOST_JOURNAL_LINES = 8192
MOST_LOG_LINES = 1000
MOST_FILES = 2000
"""Of an exchange; uploads that were sent count as files."""
LEASE_LOST = "LEASE_LOST"
PROTOCOL_HEADER = "X-Osmosis-Worker-Protocol"
"""In a reply that has nothing else to show that it is a platform's: there is no run."""
UPLOAD_GONE = "UPLOAD_GONE"
"""409 of an upload that is named and has not come as it was announced: it is asked for and sent again."""
STORE_AWAY = "store_away"
"""Of a refusal's body: whether it is that the store is away, which a worker waits for, and not that it refuses something."""
UPLOAD_LIMIT = "UPLOAD_LIMIT"
"""409 of more uploads than a run may have open, or more bytes than it may send in all."""
JOURNAL_OFFSET = "JOURNAL_OFFSET"
"""409 of a journal part above what is stored; ``details.bytes`` is the right offset."""

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Secret = Annotated[SecretStr, PlainSerializer(SecretStr.get_secret_value, return_type=str, when_used="json")]
"""Shown nowhere, and sent as it is."""
Token = Annotated[Secret, Field(min_length=1, max_length=128)]
Count = Annotated[int, Field(strict=True, ge=0, lt=1 << 53)]
Term = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Pause = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
"""Of what a machine has."""
Row = Annotated[int, Field(strict=True, ge=0, lt=1 << 31)]
Step = Annotated[int, Field(strict=True, ge=0, lt=1 << 31)]


def _written(words: str) -> str:
    if not words.isprintable():
        raise ValueError("characters that cannot be printed")
    return words


Words = Annotated[str, AfterValidator(_written)]
"""In one line; no engine keeps every character that JSON can hold."""
MetricKey = Annotated[Words, Field(max_length=128)]


def _segment(name: str) -> str:
    if name in ("", ".", "..") or any(mark in name for mark in "/\\\0"):
        raise ValueError("not the name of one directory")
    return name


Segment = Annotated[str, AfterValidator(_segment)]
"""A worker makes a directory of it, whatever its platform says."""
UploadName = Annotated[Words, Field(max_length=160)]


class WorkerOffer(WireModel):
    """A claim: who asks, and what its machine can do."""

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
    """Bytes to be fetched by GET, and checked; an expired ``url`` comes anew with a repeated claim or ``renew``."""

    url: str
    size: Count
    sha256: Digest


class JournalSegment(InputDownload):
    """A part of the journal as it was accepted: ``size`` bytes from ``offset`` on, unpacked; ``sha256`` is of these."""

    offset: Count
    packed: bool = False
    """Whether what the URL serves is compressed with gzip."""


class StoredJournal(WireModel):
    """What the platform has of a run's journal."""

    generation: Count
    bytes: Count
    sha256: Digest | None = None
    """Of all of it; None where there is none."""
    segments: list[JournalSegment] = []
    worked_ms: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """How long earlier workers have worked on it, as far as they said."""


class AssignedRun(WireModel):
    """A run as its worker knows it; ``request`` and ``selection`` as they were submitted and drawn."""

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
    retried: list[Any] | None = None


class AssignedLease(WireModel):
    """The right to write a run: ``term_s`` seconds long from each exchange on. ``attempt``: how often it was claimed."""

    token: Token
    attempt: Count
    term_s: Term


class AssignedAdapter(WireModel):
    """The adapter that a run's model is: files by name."""

    base_model: str
    files: dict[str, InputDownload]


class AgentPlace(WireModel):
    """Where an agent is served that is no rollout of the repository."""

    host: str
    port: int
    api_key: Secret | None = None


class StoredTraining(WireModel):
    """What the platform has of a training run: steps with a kept checkpoint, the version of the newest
    validation, and what another machine goes on from (a checkpoint with its history, as an archive; None
    before there is one)."""

    checkpoint_steps: list[int] = []
    validation: str | None = None
    resume_step: int | None = None
    resume: InputDownload | None = None


class Assignment(WireModel):
    """A claimed run with all that it needs."""

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
    """Whole lines of the journal from ``offset`` on, as they stand on the worker's disk."""

    generation: Count
    offset: Count
    lines: str
    resumed: Count = 0


class LogPart(WireModel):
    """Log lines; ``first`` is how many this attempt has sent before, so that repeated ones are known."""

    first: Count
    lines: Annotated[list[WorkerLogLine], Field(max_length=MOST_LOG_LINES)]


class WorkerLogLine(WireModel):
    timestamp: Timestamp
    level: Literal["debug", "info", "warning", "error"] = "info"
    step: str = ""
    message: str
    details: dict[str, Any] | None = None


class WantedUpload(WireModel):
    """A blob that the worker is about to send. ``name`` is below the run's own; a name is used once."""

    name: UploadName
    size: Count
    sha256: Digest


class UploadGrant(WireModel):
    """Where a wanted upload goes: one PUT of exactly its bytes."""

    name: str
    id: str
    url: str
    further_urls: list[str] = []
    part_size: Count | None = None
    received: dict[int, str] = {}


class SentUpload(WireModel):
    """An upload whose PUT was answered with ``etag``, and those of its further parts with ``further_etags``."""

    name: UploadName
    id: str
    etag: str
    further_etags: Annotated[list[str], Field(max_length=10_000)] = []
    size: Count
    sha256: Digest


class RunFilePart(WireModel):
    """A file of a run, in a blob that was sent or a piece of one; ``blob`` is the name of its upload."""

    path: Annotated[str, Field(max_length=1024)]
    kind: Annotated[str, Field(pattern=r"^[a-z_]{1,16}$")]
    size: Count
    blob: UploadName
    source_row_index: Row | None = None
    shard_offset: Count | None = None
    shard_length: Count | None = None


class TrainingStart(WireModel):
    """How long a training run will be, and behind which step it goes on; what came after that is forgotten."""

    total_steps: Step
    steps_done: Step


class TrainingStep(WireModel):
    """What a step has come to; numbers that are not finite are left out by the platform."""

    step: Step
    timestamp_ms: Annotated[int, Field(strict=True, ge=0, lt=1 << 47)]
    metrics: dict[MetricKey, float | None]
    validation_rewards: dict[str, float | None] = {}


class CheckpointPart(WireModel):
    """A checkpoint, whole: uploads by file name. ``is_resume``: the archive that another machine goes on from."""

    step: Step
    base_model: Annotated[Words, Field(max_length=255)]
    files: dict[str, UploadName]
    reward: float | None = None
    validation_reward: float | None = None
    is_resume: bool = False


class ValidationPart(WireModel):
    """The newest validation: its files become the run's in place of those of the one before. None of them: no files."""

    version: str | None = None
    files: list[RunFilePart] = []


class TrainingNews(WireModel):
    """What is new of a training run; applied in this order."""

    start: TrainingStart | None = None
    steps: list[TrainingStep] = []
    validation: ValidationPart | None = None
    checkpoints: list[CheckpointPart] = []


class SyncRequest(WireModel):
    """A heartbeat and everything new; applied in one transaction, files before the records that name them."""

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
    """Of what to give downloads anew: ``source``, ``dataset``, ``adapter``, ``journal``, ``resume``."""
    find_agent: bool = False
    may_wait: bool = False


class SyncReply(WireModel):
    """``stop``: the run is to end."""

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
    """How a run ended; asked to stop, it is ``stopped`` whatever happened to it."""

    lease: Token
    outcome: Literal["finished", "failed"]
    error: str | None = None
    ending: str | None = None


class ReleaseRequest(WireModel):
    """The run is let go as it is."""

    lease: Token
    setback: str | None = None
    of_machine: bool = False
    store_away: bool = False
    ending: str | None = None


class RunClosed(WireModel):
    """The reply to ``end`` and ``release``: the run's status now."""

    status: Literal["pending", "running", "finished", "failed", "stopped"]


def run_route(run_id: str, exchange: Literal["sync", "end", "release"]) -> str:
    """Return the path of an exchange about one run; ids of runs are made by the platform and need no quoting."""
    return f"{PREFIX}/runs/{run_id}/{exchange}"
