"""Evaluation runs: lists, details, metrics, samples."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AliasChoices, Field

from osmosis_ai.api.models.base import Named, Page, Timestamp, WireModel
from osmosis_ai.api.models.runs import DetailedRun, Run, SubmittedRun


class EvalResults(WireModel):
    """Aggregates of a run; rates are 0..1, ``total_runs`` counts completed attempts."""

    score: float | None = None
    pass_rate: float | None = None
    pass_threshold: float | None = None
    graded: int | None = None
    passed: int | None = None
    failed: int | None = None
    skipped: int | None = None
    total_runs: int | None = None
    sampled_rows: int | None = None
    total_tokens: int | None = None
    total_dataset_rows: int | None = None
    resumed_count: int | None = None
    reward_stats: dict[str, Any] | None = None
    headline: dict[str, Any] | None = None
    rows_drawn: dict[str, Any] | None = None


class RunOrigin(WireModel):
    """The origin of an uploaded run as its uploader reported it, and the time of the upload."""

    local_run_id: str | None = None
    local_run_name: str | None = None
    imported_at: Timestamp | None = None
    sdk_version: str | None = None
    git_head: str | None = None
    git_branch: str | None = None
    git_dirty: bool | None = None

    @property
    def words(self) -> str:
        """Describe the origin: ``executed elsewhere, with 0.3.11 at 1a2b3c4 and uncommitted changes``."""
        release = f", with {self.sdk_version}" if self.sdk_version else ""
        commit = f" at {self.git_head[:7]}" if self.git_head else ""
        changes = " and uncommitted changes" if self.git_dirty else ""
        return f"executed elsewhere{release}{commit}{changes}"


class EvalRun(Run):
    """A run's own fields, in a list row or a detail.

    Only on our platform: ``imported`` for uploaded runs, and ``revision`` and ``retried_at`` for retried ones. The
    revision is the number of retries.
    """

    imported: RunOrigin | None = None
    revision: int = 0
    retried_at: Timestamp | None = None


class EvalRunRow(EvalRun):
    """``commit_sha`` is only on our platform."""

    model: Named | None = None
    dataset: Named | None = None
    rollout: Named | None = None
    results: EvalResults | None = None
    config: dict[str, Any] | None = None
    commit_sha: str | None = None


class EvalRunList(Page[EvalRunRow]):
    items: list[EvalRunRow] = Field(alias="eval_runs")


class EvalRunDetail(DetailedRun):
    eval_run: EvalRun
    results: EvalResults | None = None
    dataset_df_stats: dict[str, Any] | None = None
    grader_digest: str | None = None

    @property
    def run(self) -> EvalRun:
        return self.eval_run

    @property
    def model_name(self) -> str | None:
        path = (self.config or {}).get("model_path")
        return path if isinstance(path, str) else None


class EvalMetricsOverview(WireModel):
    duration_ms: float | None = None
    total_samples: int | None = None
    completed_samples: int | None = None
    graded: int | None = None
    passed: int | None = None
    failed: int | None = None
    skipped: int | None = None
    pass_rate: float | None = None
    pass_threshold: float | None = None
    tokens_used: int | None = None


class PassAtK(WireModel):
    k: int
    value: float | None = None


class EvalMetrics(WireModel):
    """``estimates`` is only on our platform: metrics over scored attempts, with intervals and counts."""

    status: str = ""
    overview: EvalMetricsOverview = EvalMetricsOverview()
    reward_stats: dict[str, float | None] | None = None
    pass_at_k: list[PassAtK] = []
    eval_run_id: str | None = None
    estimates: dict[str, Any] | None = None


class RetriedRun(SubmittedRun):
    """Clients need ``workflow_id``; here it is the run's id."""

    workflow_id: str | None = None
    retryable_samples: int | None = None


class RetryCheck(WireModel):
    """The attempts that a retry of ``eval_run`` repeats: those of ``planned`` attempts that have no score; only on our platform."""

    eval_run: Named
    samples: int
    planned: int
    failed: dict[str, int] = {}
    no_reward: int = 0
    missing: int = 0
    commit_sha: str | None = None
    resolved_secret_scopes: dict[str, str] = {}


_LARGEST = 2**53
"""The greatest integer that every JSON reader represents exactly."""


class EvalSample(WireModel):
    """The result of an attempt (``attempt``, from 0) on a selected row; only on our platform, like the following."""

    row: int = Field(ge=0)
    attempt: int = Field(ge=0)
    status: str
    source_row_index: int | None = Field(None, ge=0, le=_LARGEST)
    row_digest: str | None = None
    reward: float | None = None
    tokens: int | None = Field(None, ge=0, le=_LARGEST)
    cost_usd: float | None = None
    duration_ms: float | None = None
    model_latency_ms: float | None = None
    boundary: str | None = None
    category: str | None = None
    error: str | None = None
    input: str | None = None
    output: str | None = None
    notes: str | None = None
    parts: dict[str, float] | None = None
    finish_reasons: dict[str, int] | None = None


class EvalSamplePage(WireModel):
    """Samples sorted by row and attempt; ``next_cursor`` is absent on the last page."""

    samples: list[EvalSample]
    next_cursor: Annotated[str, Field(max_length=1000)] | None = None


class ManifestFile(WireModel):
    path: str
    size: int = Field(strict=True, ge=0)
    token: str | None = Field(None, repr=False)
    sha256: str | None = Field(None, pattern="^[0-9a-fA-F]{64}$")
    """The digest of its bytes; None if the platform does not report it."""


class SampleManifest(WireModel):
    files: list[ManifestFile] = []
    totals: dict[str, Any] = {}


class DownloadItem(WireModel):
    path: str
    token: str | None = Field(None, repr=False)
    url: str | None = Field(
        None, repr=False, validation_alias=AliasChoices("url", "presignedUrl", "presigned_url")
    )


class DownloadUrlsRequest(WireModel):
    items: list[DownloadItem]


class DownloadUrls(WireModel):
    items: list[DownloadItem] = Field(default=[], validation_alias=AliasChoices("items", "files", "urls"))
    expires_in: int | float | None = None
