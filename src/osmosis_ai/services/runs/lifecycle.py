"""Runs on a platform, of either kind: read, watch, follow the log, stop and delete."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

from osmosis_ai.api.capabilities import Capability
from osmosis_ai.api.client import segment
from osmosis_ai.api.connections import REPEATING
from osmosis_ai.api.http_errors import PlatformError, UnreadableReply
from osmosis_ai.api.models.base import LogEntry, LogPage
from osmosis_ai.api.models.eval_runs import EvalMetrics, EvalRunDetail, EvalSample, EvalSamplePage
from osmosis_ai.api.models.runs import Run, StopReply
from osmosis_ai.api.models.training_runs import CheckpointList, TrainingMetrics, TrainingRunDetail
from osmosis_ai.api.paging import iterate_samples
from osmosis_ai.errors import ConflictError
from osmosis_ai.services.capabilities import is_offered, require_offered
from osmosis_ai.services.datasets import explain_unsure_deletion
from osmosis_ai.services.log_following import LogFollower, at_level, follow_log, none_of_level, page_of_level

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient

RunKind = Literal["eval", "train"]
"""Kind of a run, named like its command group."""

AnyKind = Literal["eval", "train", "benchmark"]

RUN_PATHS: Mapping[AnyKind, str] = {
    "eval": "/api/cli/eval-runs",
    "train": "/api/cli/training-runs",
    "benchmark": "/api/cli/benchmark-runs",
}

TERMINAL: Mapping[RunKind, frozenset[str]] = {
    "eval": frozenset({"finished", "failed", "stopped"}),
    "train": frozenset({"finished", "failed", "crashed", "stopped", "killed", "unknown"}),
}
"""Final statuses."""

WAITING = frozenset({"pending", "queued"})
"""Statuses of a run that has not started."""

PATIENCE_S = 300.0
"""How long the platform may be unavailable while a run is watched."""

_LARGEST_SAMPLE_PAGE = 5_000


def item_path(collection: str, name_or_id: str, below: str = "") -> str:
    """Return the path of an item of a collection, or of a resource below it, such as ``/logs``."""
    return f"{collection}/{segment(name_or_id)}{below}"


def run_path(kind: AnyKind, name_or_id: str, below: str = "") -> str:
    return item_path(RUN_PATHS[kind], name_or_id, below)


def get_evaluation(client: PlatformClient, name: str) -> EvalRunDetail:
    return client.get(run_path("eval", name), model=EvalRunDetail)


def get_training(client: PlatformClient, name: str) -> TrainingRunDetail:
    return client.get(run_path("train", name), model=TrainingRunDetail)


def get_run(client: PlatformClient, kind: RunKind, name: str) -> EvalRunDetail | TrainingRunDetail:
    return get_evaluation(client, name) if kind == "eval" else get_training(client, name)


def list_checkpoints(client: PlatformClient, name: str) -> CheckpointList:
    return client.get(run_path("train", name, "/checkpoints"), model=CheckpointList)


def lists_samples(client: PlatformClient) -> bool:
    """Whether the platform lists the samples of runs; call it after another request."""
    return client.offers is not None and is_offered(client.offers, Capability.EVAL_SAMPLES)


def platform_samples(client: PlatformClient, run_id: str, *, details: bool = False) -> Iterator[EvalSample]:
    """Yield a run's samples by row and attempt."""
    path, wanted = run_path("eval", run_id, "/samples"), "true" if details else None

    def fetch(cursor: str | None) -> EvalSamplePage:
        params = {"limit": _LARGEST_SAMPLE_PAGE, "cursor": cursor, "details": wanted}
        return client.get(path, model=EvalSamplePage, params=params)

    return iterate_samples(fetch)


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def plain(message: Any) -> Any:
    """Return a platform message as JSON data, with non-finite numbers as null."""
    return None if message is None else jsonable(message.to_wire())


def jsonable(value: Any) -> Any:
    """Return JSON data with non-finite numbers as null."""
    if isinstance(value, dict):
        return {key: jsonable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [jsonable(item) for item in value]
    return finite(value) if isinstance(value, float) else value


class DescribedRun:
    """A run with its metrics, or the reason why they are unavailable."""

    kind: ClassVar[RunKind]
    detail: EvalRunDetail | TrainingRunDetail
    metrics: EvalMetrics | TrainingMetrics | None
    metrics_error: str | None

    @property
    def run(self) -> Run:
        return self.detail.run

    @property
    def name(self) -> str:
        return self.run.name or self.run.id

    @property
    def model(self) -> str | None:
        return self.detail.model_name

    @property
    def summary(self) -> dict[str, Any]:
        raise NotImplementedError

    @property
    def ended(self) -> bool:
        return self.run.status in TERMINAL[self.kind]

    @property
    def waiting(self) -> bool:
        return self.run.status in WAITING

    @property
    def in_progress(self) -> bool:
        """Whether the metrics are a snapshot; False for a run without a status."""
        return bool(self.run.status) and not self.ended and not self.waiting

    @property
    def duration_ms(self) -> float | None:
        """The run's duration according to its metrics, or else its timestamps; None if unknown."""
        measured = self.metrics.overview.duration_ms if self.metrics is not None else None
        run = self.run
        if measured is not None or run.started_at is None:
            return measured
        end = run.completed_at or (datetime.now(timezone.utc) if self.in_progress else None)
        return (end - run.started_at).total_seconds() * 1000 if end is not None else None

    def data(self) -> dict[str, Any]:
        """Return the JSON without the command's own fields."""
        detail = self.detail
        same = ("config", "entrypoint", "branch", "commit_sha", "env_config", "resolved_secret_scopes")
        return {
            "summary": self.summary,
            **{key: getattr(detail, key) for key in same},
            "metrics_available": self.metrics is not None,
            "metrics_error": self.metrics_error,
            **({"waits": detail.waits} if detail.waits else {}),
        }

    def outcome(self) -> dict[str, Any]:
        """Return the JSON of a run that was followed to its end."""
        known = {key: self.data()[key] for key in ("commit_sha", "summary", "metrics_error")}
        return {"status": self.run.status, "error": self.run.error, **known}


class RunSeen(Protocol):
    """A snapshot of a run."""

    @property
    def ended(self) -> bool: ...


SeenT = TypeVar("SeenT", bound=RunSeen)


def watch_run(
    look: Callable[[], SeenT], *, pause: Callable[[], None], tell: Callable[[str], None]
) -> Iterator[SeenT]:
    """Yield the state of a run until it ends, retrying while the platform is briefly unreachable."""
    answered = time.monotonic()
    waiting = begun = False
    while True:
        try:
            seen = look()
        except PlatformError as error:
            # A page instead of a JSON reply may come from a proxy; before the first answer, it means a wrong
            # address.
            passes = is_temporary(error) and (begun or not isinstance(error, UnreadableReply))
            if not passes or time.monotonic() - answered > PATIENCE_S:
                raise
            if not waiting:
                tell(f"{error.message}; waiting for the platform to come back")
            waiting = True
        else:
            answered, waiting, begun = time.monotonic(), False, True
            yield seen
            if seen.ended:
                return
        pause()


def is_temporary(error: PlatformError) -> bool:
    """Whether the same request may succeed later."""
    return error.status is None or error.status >= 500 or error.status == 429


def log_page(
    client: PlatformClient,
    kind: AnyKind,
    name: str,
    *,
    limit: int,
    cursor: str | None,
    level: str | None = None,
) -> tuple[LogPage, int]:
    """Return log lines of at least ``level``, oldest first, and how many lines were searched for them."""
    fetch = client.log_pages(run_path(kind, name, "/logs"))
    return page_of_level(fetch, limit=limit, cursor=cursor, level=level)


def follow_run_log(
    client: PlatformClient,
    kind: RunKind,
    name: str,
    *,
    first: int,
    pause: Callable[[], None],
    tell: Callable[[str], None],
    level: str | None = None,
) -> Iterator[LogEntry]:
    """Yield the last ``first`` lines of a run's log, then new ones until the run ends."""
    run_id = get_run(client, kind, name).run.id
    follower = LogFollower(client.log_pages(run_path(kind, run_id, "/logs")), first=first)
    told: object = None

    def ended() -> bool:
        nonlocal told
        detail = get_run(client, kind, run_id)
        if detail.waits and detail.waits_for != told:
            tell(f"Run status: {detail.waits}")
        told = detail.waits_for
        return detail.run.status in TERMINAL[kind]

    looked_through = shown = 0
    for entry in follow_log(follower, ended=ended, pause=pause):
        looked_through += 1
        if at_level(entry, level):
            shown += 1
            yield entry
    if level is not None and looked_through and not shown:
        tell(none_of_level(level, looked_through))


def stop_run(client: PlatformClient, kind: RunKind, name: str) -> tuple[str | None, bool]:
    """Request that a run stops; return the status with which it had ended before, and whether it is stopping."""
    try:
        status = post_stop(client, kind, name).status
    except PlatformError as error:
        ended = error.body.get("status")
        if error.status != 409 or ended not in TERMINAL[kind]:
            raise
        return str(ended), False
    return status if status in TERMINAL[kind] - {"stopped"} else None, status == "stopping"


def post_stop(client: PlatformClient, kind: AnyKind, name: str) -> StopReply:
    return client.post(run_path(kind, name, "/stop"), None, model=StopReply, retry=REPEATING)


def find_deletable_run(client: PlatformClient, kind: RunKind, name: str) -> tuple[Run, int]:
    """Return a run that has ended, and how many adapters are deleted with it."""
    run = get_run(client, kind, name).run
    require_offered(client, Capability.DELETION)
    if run.status not in TERMINAL[kind]:
        shown = run.name or run.id
        raise ConflictError(
            f"Run '{shown}' is {run.status}: only a run that has ended can be deleted.",
            details={"id": run.id, "status": run.status},
            hint=f"stop it first with `osmosis {kind} stop {shown}`",
        )
    return run, len(list_checkpoints(client, run.id).checkpoints) if kind == "train" else 0


def delete_run(client: PlatformClient, kind: RunKind, run: Run) -> None:
    """Delete a run permanently."""
    with explain_unsure_deletion(f"osmosis {kind} list"):
        client.delete(run_path(kind, run.id))
