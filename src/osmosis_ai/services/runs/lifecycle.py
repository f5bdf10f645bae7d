"""Runs of the platform, of either kind: how they stand, looked at until they end, what they say, and stopping them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.http_errors import PlatformError
    from osmosis_ai.api.resources import EvalRuns, TrainingRuns
    from osmosis_ai.api.wire.base import LogEntry, LogPage
    from osmosis_ai.api.wire.eval_runs import EvalMetrics, EvalRunDetail
    from osmosis_ai.api.wire.runs import Run
    from osmosis_ai.api.wire.training_runs import TrainingMetrics, TrainingRunDetail

RunKind = Literal["eval", "train"]
"""A kind of run, by the name of its command group."""

TERMINAL: Mapping[RunKind, frozenset[str]] = {
    "eval": frozenset({"finished", "failed", "stopped"}),
    "train": frozenset({"finished", "failed", "crashed", "stopped", "killed", "unknown"}),
}
"""The statuses of a run that will not change any more."""

WAITING = frozenset({"pending", "queued"})
"""The statuses of a run that has not begun."""

PATIENCE_S = 300.0
"""How long a platform may be away while a run of its own is watched."""

_STREAM_TRIES = 3
"""So often a stream may end without an event before nobody listens any more."""


class DescribedRun:
    """A run in full, of either kind.

    Attributes:
        metrics: None while there are none, or when they could not be had: ``metrics_error`` says why.
    """

    kind: ClassVar[RunKind]
    detail: EvalRunDetail | TrainingRunDetail
    metrics: EvalMetrics | TrainingMetrics | None
    metrics_error: str | None

    @property
    def run(self) -> Run:
        """The run's own fields."""
        raise NotImplementedError

    @property
    def model(self) -> str | None:
        """The policy's name."""
        raise NotImplementedError

    @property
    def summary(self) -> dict[str, Any]:
        """The numbers of the run that are known."""
        raise NotImplementedError

    @property
    def ended(self) -> bool:
        """Whether the run will not change any more."""
        return self.run.status in TERMINAL[self.kind]

    @property
    def waiting(self) -> bool:
        """Whether the run has not begun."""
        return self.run.status in WAITING

    @property
    def in_progress(self) -> bool:
        """Whether the metrics are a snapshot; nobody knows it of a run without a status."""
        return bool(self.run.status) and not self.ended and not self.waiting

    @property
    def duration_ms(self) -> float | None:
        """How long the run has taken: by its metrics, else by its clock; None where neither says."""
        measured = self.metrics.overview.duration_ms if self.metrics is not None else None
        run = self.run
        if measured is not None or run.started_at is None:
            return measured
        end = run.completed_at or (datetime.now(timezone.utc) if self.in_progress else None)
        return (end - run.started_at).total_seconds() * 1000 if end is not None else None

    def data(self) -> dict[str, Any]:
        """Return what scripts see of a run of any kind, but for what a command adds."""
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
        """Return what a script wants to know of a run that it followed to its end."""
        known = {key: self.data()[key] for key in ("commit_sha", "summary", "metrics_error")}
        return {"status": self.run.status, "error": self.run.error, **known}


class RunSeen(Protocol):
    """A run at one moment."""

    @property
    def ended(self) -> bool:
        """Whether the run will not change any more."""
        ...


SeenT = TypeVar("SeenT", bound=RunSeen)


class RunNews:
    """Waits until something is new in a run: told by a platform that tells it, else for as long as ``pause`` takes.

    The first call of a stream returns at once, for it tells how the run stands; nothing that happens between a look
    and the stream is missed.

    Args:
        client: the platform, which has answered a call before.
        kind, name: the run.
        pause: waits where nobody tells.
    """

    def __init__(
        self, client: PlatformClient, kind: RunKind, name: str, *, pause: Callable[[], None]
    ) -> None:
        self._client, self._kind, self._name = client, kind, name
        self._pause = pause
        self._events: Generator[dict[str, Any]] | None = None
        self._failed = 0

    def __call__(self) -> None:
        """Wait."""
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
        """Listen no more."""
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
    """Yield the state of a run until it has ended; keep trying while the platform is briefly unreachable.

    Args:
        look: asks how the run stands.
        pause: waits between two looks.
        tell: told, once, when the platform does not answer and is waited for.
        clock: seconds.

    Raises:
        PlatformError: what ``look`` raised, when waiting does not help or :data:`PATIENCE_S` were not enough.
    """
    from osmosis_ai.api.http_errors import PlatformError, UnreadableReply

    answered = clock()
    waiting = begun = False
    while True:
        try:
            seen = look()
        except PlatformError as error:
            # A page instead of a reply may be a proxy's for a while; of who never answered it is a wrong address.
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
    """Tell whether the same call may well succeed a while later."""
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
    """Return a page of a run's log, the oldest line first, and how many lines were looked through for it.

    They are of a level and above, all lines when it is None.
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
    """Yield the last ``first`` lines of a run's log, then every new one until the run has ended.

    Args:
        client: the platform.
        kind: of the run.
        name: the run's name or id.
        first: how many lines to begin with, of every level.
        pause: waits between two looks.
        tell: told why nobody works on the run now, each time that this is another reason, and once of a silent worker; at the
            end that there was no line of the level.
        level: the least; None for all lines.
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
            tell(f"The run waits: {detail.waits}")
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
    """What came of asking for a run to stop.

    Attributes:
        ended: the status that it had before, where it had ended.
        is_stopping: whether its worker has yet to end what it does.
    """

    ended: str | None = None
    is_stopping: bool = False


def stop_run(client: PlatformClient, kind: RunKind, name: str) -> StopAnswer:
    """Ask for a run to stop.

    Raises:
        PlatformError: no such run, or as every call.
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
    """Return a run's own fields.

    Raises:
        PlatformError: no such run, or as every call.
    """
    return _own(_detail(client, kind, name))


def _detail(client: PlatformClient, kind: RunKind, name: str) -> EvalRunDetail | TrainingRunDetail:
    return client.eval_runs.get(name) if kind == "eval" else client.training_runs.get(name)


def _own(detail: EvalRunDetail | TrainingRunDetail) -> Run:
    from osmosis_ai.api.wire.eval_runs import EvalRunDetail

    return detail.eval_run if isinstance(detail, EvalRunDetail) else detail.training_run
