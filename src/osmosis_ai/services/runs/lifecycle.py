"""Platform runs of both kinds: status, watching, logs and stopping."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.http_errors import PlatformError
    from osmosis_ai.api.models.base import LogEntry, LogPage
    from osmosis_ai.api.models.eval_runs import EvalMetrics, EvalRunDetail
    from osmosis_ai.api.models.runs import Run
    from osmosis_ai.api.models.training_runs import TrainingMetrics, TrainingRunDetail
    from osmosis_ai.api.resources import EvalRuns, TrainingRuns

RunKind = Literal["eval", "train"]
"""Kind of a run, named like its command group."""

TERMINAL: Mapping[RunKind, frozenset[str]] = {
    "eval": frozenset({"finished", "failed", "stopped"}),
    "train": frozenset({"finished", "failed", "crashed", "stopped", "killed", "unknown"}),
}
"""Final statuses."""

WAITING = frozenset({"pending", "queued"})
"""Statuses of a run that has not started."""

PATIENCE_S = 300.0
"""How long the platform may be unavailable while a run is watched."""

_STREAM_TRIES = 3
"""Number of streams that may end without an event before polling takes over."""


class DescribedRun:
    """A run of either kind with its metrics.

    Attributes:
        metrics: None if missing or unavailable; ``metrics_error`` has the reason.
    """

    kind: ClassVar[RunKind]
    detail: EvalRunDetail | TrainingRunDetail
    metrics: EvalMetrics | TrainingMetrics | None
    metrics_error: str | None

    @property
    def run(self) -> Run:
        raise NotImplementedError

    @property
    def model(self) -> str | None:
        raise NotImplementedError

    @property
    def summary(self) -> dict[str, Any]:
        """The known metrics of the run."""
        raise NotImplementedError

    @property
    def ended(self) -> bool:
        """Whether the status is final."""
        return self.run.status in TERMINAL[self.kind]

    @property
    def waiting(self) -> bool:
        """Whether the run has not started."""
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
        return {
            "summary": self.summary,
            "config": detail.config,
            "entrypoint": detail.entrypoint,
            "branch": detail.branch,
            "commit_sha": detail.commit_sha,
            "env_config": detail.env_config,
            "resolved_secret_scopes": detail.resolved_secret_scopes,
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
    def ended(self) -> bool:
        """Whether the status is final."""
        ...


SeenT = TypeVar("SeenT", bound=RunSeen)


class RunNews:
    """Waits for changes of a run: on an event stream if the platform offers one, else by ``pause``.

    A new stream immediately sends the current state, so no change between a poll and the stream is missed.

    Args:
        client: the platform, which must have answered a request before.
        kind, name: the run.
        pause: waits until the next poll.
    """

    def __init__(
        self, client: PlatformClient, kind: RunKind, name: str, *, pause: Callable[[], None]
    ) -> None:
        self._client, self._kind, self._name = client, kind, name
        self._pause = pause
        self._events: Generator[dict[str, Any]] | None = None
        self._failed = 0

    def __call__(self) -> None:
        from osmosis_ai.api.http_errors import PlatformError

        if self._events is None and self._is_told():
            self._events = _runs(self._client, self._kind).events(self._name)
        if self._events is not None:
            try:
                next(self._events)
            except (PlatformError, StopIteration):
                self._events = None
                self._failed += 1
            else:
                self._failed = 0
                return
        self._pause()

    def close(self) -> None:
        """Close the stream."""
        if self._events is not None:
            self._events.close()

    def _is_told(self) -> bool:
        from osmosis_ai.api.capabilities import Capability

        return self._failed < _STREAM_TRIES and Capability.RUN_EVENTS in (self._client.offers or ())


def watch_run(
    look: Callable[[], SeenT],
    *,
    pause: Callable[[], None],
    tell: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[SeenT]:
    """Yield the state of a run until it ends, retrying while the platform is briefly unreachable.

    Args:
        look: fetches the state.
        pause: waits between two polls.
        tell: receives one message when the platform becomes unreachable.
        clock: seconds.

    Raises:
        PlatformError: ``look`` raised it, and retrying does not help or did not within :data:`PATIENCE_S`.
    """
    from osmosis_ai.api.http_errors import PlatformError, UnreadableReply

    answered = clock()
    waiting = begun = False
    while True:
        try:
            seen = look()
        except PlatformError as error:
            # A page instead of a JSON reply may come from a proxy; before the first answer, it means a wrong
            # address.
            passes = is_away(error) and (begun or not isinstance(error, UnreadableReply))
            if not passes or clock() - answered > PATIENCE_S:
                raise
            if not waiting:
                tell(f"{error.message}; waiting for the platform to come back")
            waiting = True
        else:
            answered, waiting, begun = clock(), False, True
            yield seen
            if seen.ended:
                return
        pause()


def is_away(error: PlatformError) -> bool:
    """Whether the same request may succeed later."""
    return error.status is None or error.status >= 500 or error.status == 429


def run_log(
    client: PlatformClient,
    kind: RunKind,
    name: str,
    *,
    limit: int,
    cursor: str | None,
    level: str | None = None,
) -> tuple[LogPage, int]:
    """Return a page of a run's log, oldest line first, and how many lines were searched for it.

    Only lines of at least ``level`` are returned, or all lines if it is None.
    """
    from osmosis_ai.services.log_following import page_of_level

    runs = _runs(client, kind)
    return page_of_level(
        lambda size, place: runs.logs(name, limit=size, cursor=place), limit=limit, cursor=cursor, level=level
    )


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
    """Yield the last ``first`` lines of a run's log, then new ones until the run ends.

    Args:
        client: the platform.
        kind: kind of the run.
        name: the run's name or id.
        first: number of lines to begin with, of every level.
        pause: waits between two polls.
        tell: receives the reason why no worker is active when it changes, one message about a silent worker,
            and a message at the end if no line had the level.
        level: minimum level; None for all lines.
    """
    from osmosis_ai.services.log_following import LogFollower, at_level, follow_log, none_of_level

    run_id = get_run(client, kind, name).id
    runs = _runs(client, kind)
    follower = LogFollower(lambda size, cursor: runs.logs(run_id, limit=size, cursor=cursor), first=first)
    told: object = None

    def ended() -> bool:
        nonlocal told
        detail = _detail(client, kind, run_id)
        if detail.waits and detail.waits_for != told:
            tell(f"Run status: {detail.waits}")
        told = detail.waits_for
        return _own(detail).status in TERMINAL[kind]

    looked_through = shown = 0
    for entry in follow_log(follower, ended=ended, pause=pause):
        looked_through += 1
        if at_level(entry, level):
            shown += 1
            yield entry
    if level is not None and looked_through and not shown:
        tell(none_of_level(level, looked_through))


@dataclass(frozen=True)
class StopAnswer:
    """The result of a stop request.

    Attributes:
        ended: the final status, if the run had already ended.
        is_stopping: whether the worker still has to finish its current work.
    """

    ended: str | None = None
    is_stopping: bool = False


def stop_run(client: PlatformClient, kind: RunKind, name: str) -> StopAnswer:
    """Request that a run stops.

    Raises:
        PlatformError: the run does not exist or the request failed.
    """
    from osmosis_ai.api.http_errors import PlatformError

    try:
        status = _runs(client, kind).stop(name).status
    except PlatformError as error:
        ended = error.body.get("status")
        if error.status != 409 or ended not in TERMINAL[kind]:
            raise
        return StopAnswer(str(ended))
    ended_before = status if status in TERMINAL[kind] - {"stopped"} else None
    return StopAnswer(ended_before, status == "stopping")


def _runs(client: PlatformClient, kind: RunKind) -> EvalRuns | TrainingRuns:
    return client.eval_runs if kind == "eval" else client.training_runs


def get_run(client: PlatformClient, kind: RunKind, name: str) -> Run:
    """Return a run without its metrics.

    Raises:
        PlatformError: the run does not exist or the request failed.
    """
    return _own(_detail(client, kind, name))


def _detail(client: PlatformClient, kind: RunKind, name: str) -> EvalRunDetail | TrainingRunDetail:
    return client.eval_runs.get(name) if kind == "eval" else client.training_runs.get(name)


def _own(detail: EvalRunDetail | TrainingRunDetail) -> Run:
    from osmosis_ai.api.models.eval_runs import EvalRunDetail

    return detail.eval_run if isinstance(detail, EvalRunDetail) else detail.training_run
