"""`osmosis eval watch`: how far a run is, on this machine or on a platform.

Of a run of this machine the journal says what is finished, the lock whether anybody works on it; nothing
is written, and nothing is asked of the process that runs it. Of a run of a platform its detail says all,
and a platform that is away for a while is waited for.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.services.runs.lifecycle import TERMINAL

if TYPE_CHECKING:
    from collections.abc import Callable

    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.wire.eval_runs import EvalRunDetail
    from osmosis_ai.datasets.selection import RowsDrawn
    from osmosis_ai.evaluation.headline import Headline
    from osmosis_ai.evaluation.manifest import Manifest
    from osmosis_ai.evaluation.metrics_models import Estimates
    from osmosis_ai.evaluation.run_directory import RunDirectory
    from osmosis_ai.evaluation.run_state import ProgressSnapshot

_LONGEST_NAME = 255
WatchedStatus = Literal["running", "finished", "incomplete"]


@dataclass(frozen=True)
class WatchedRun:
    """A run directory at one moment.

    Attributes:
        status: ``incomplete`` when nobody works on it and work is left.
        metrics: the last written ``metrics.json``; None before there is one.
    """

    run_name: str
    run_dir: Path
    local_run_id: str
    status: WatchedStatus
    progress: ProgressSnapshot
    metrics: dict[str, Any] | None

    @property
    def ended(self) -> bool:
        """Whether nobody works on it any more."""
        return self.status != "running"

    @property
    def estimates(self) -> Estimates | None:
        """The numbers that the run has written down."""
        from osmosis_ai.evaluation.metrics_models import Estimates

        return Estimates.read((self.metrics or {}).get("estimates"))

    @property
    def rows(self) -> RowsDrawn | None:
        """How many rows of how many, and how they were chosen; None before the first metrics."""
        from osmosis_ai.datasets.selection import RowsDrawn

        return RowsDrawn.read((self.metrics or {}).get("eval_run", {}).get("rows"))

    @property
    def headline(self) -> Headline | None:
        """The result in a line, as far as the run has written it down."""
        from osmosis_ai.evaluation.headline import Headline

        estimates = self.estimates
        return None if estimates is None else Headline.of(estimates, self.rows)


def run_nowhere(run: str, missing: NotFoundError, error: OsmosisError) -> OsmosisError:
    """Return what to say of a run that is neither here nor to be had from a platform.

    Args:
        run: as the user named it.
        missing: why it is not here.
        error: what asking the platform came to.
    """
    platform_code = getattr(error, "platform_code", None)
    if error.code in ("AUTH_REQUIRED", "VALIDATION") and getattr(error, "status", None) is None:
        hint = (
            f"{missing.hint}; runs of a platform can be seen once you are logged in" if missing.hint else None
        )
        return NotFoundError(missing.message, details=missing.details, hint=hint)
    if error.code == "NOT_FOUND" and not (platform_code or "").startswith("GIT_"):
        meant = _meant_there(error)
        here = missing.hint
        if meant and missing.details.get("nearest"):
            here = f"of the runs of this machine, {here}"
        hints = (meant, "`osmosis eval list` lists the platform's", here)
        return NotFoundError(
            f"there is no run `{run}`, neither on this machine nor on the platform.",
            details=missing.details,
            hint="; ".join(filter(None, hints)),
        )
    if getattr(error, "status", 0) is None and missing.hint:
        # Who is not reached may know the run; so may this machine, by another name.
        error.hint = (
            f"{error.hint}; or, of the runs of this machine, {missing.hint}" if error.hint else missing.hint
        )
    return error


def _meant_there(error: OsmosisError) -> str | None:
    """Return which of the platform's runs was probably meant, as the platform says or as was found in its list."""
    if error.hint is not None and error.hint.startswith("did you mean"):
        return error.hint
    suggested = getattr(error, "body", {}).get("suggestion")
    return f"did you mean {suggested[:_LONGEST_NAME]}?" if isinstance(suggested, str) and suggested else None


class RunWatcher:
    """Reads a run's directory again and again, each byte of the journal once.

    Raises:
        OsmosisError: when the directory is no run.
    """

    def __init__(self, run_dir: Path) -> None:
        from osmosis_ai.evaluation.ledger import Ledger
        from osmosis_ai.evaluation.local_results import pass_threshold_of
        from osmosis_ai.evaluation.manifest import Manifest
        from osmosis_ai.evaluation.run_directory import RunDirectory

        self._directory: RunDirectory = RunDirectory(run_dir)
        self._manifest: Manifest = Manifest.load(self._directory.manifest)
        self._ledger = Ledger(self._manifest.sampled_rows, self._manifest.inputs["n"])
        self._threshold = pass_threshold_of(self._directory)
        self._read = 0
        self._rewards: dict[str, float] = {"sum": 0.0, "scored": 0, "passed": 0}
        self._tokens = 0
        self._cost_usd: float | None = None
        self._finished = 0
        self._started = time.monotonic()
        self._read_journal()
        self._finished = 0

    def look(self) -> WatchedRun:
        """Return how the run stands now."""
        from osmosis_ai.evaluation.run_lock import is_running

        # The lock first: whoever releases it has written everything before.
        running = is_running(self._directory.path.parent, self._directory.path.name)
        self._read_journal()
        metrics = self._directory.read_metrics()
        if running:
            status: WatchedStatus = "running"
        else:
            status = "incomplete" if self._ledger.unrecorded_count else "finished"
        return WatchedRun(
            run_name=self._directory.path.name,
            run_dir=self._directory.path,
            local_run_id=self._manifest.local_run_id,
            status=status,
            progress=self._progress(),
            metrics=metrics,
        )

    def _read_journal(self) -> None:
        from osmosis_ai.evaluation.journal import replay

        events = self._directory.events
        if not events.exists():
            return
        for offset, end, record in replay(events, self._read):
            self._read = end
            if not self._ledger.holds(record.row_index, record.run_index):
                continue
            self._ledger.settle(record.row_index, record.run_index, record.status, offset)
            self._finished += 1
            self._tokens += record.tokens or 0
            if record.cost_usd is not None:
                self._cost_usd = (self._cost_usd or 0.0) + record.cost_usd
            if record.status == "success" and record.reward is not None:
                self._rewards["scored"] += 1
                self._rewards["sum"] += record.reward
                self._rewards["passed"] += record.reward >= self._threshold

    def _progress(self) -> ProgressSnapshot:
        from osmosis_ai.evaluation.run_state import ProgressSnapshot

        scored = int(self._rewards["scored"])
        return ProgressSnapshot(
            completed=len(self._ledger) - self._ledger.unrecorded_count,
            total=len(self._ledger),
            passed=int(self._rewards["passed"]),
            failed=self._ledger.count("failed"),
            skipped=self._ledger.count("skipped"),
            scored=scored,
            reward_mean=self._rewards["sum"] / scored if scored else None,
            tokens=self._tokens,
            cost_usd=self._cost_usd,
            in_flight=None,
            elapsed_s=time.monotonic() - self._started,
            finished=self._finished,
        )


@dataclass(frozen=True)
class SeenEvaluation:
    """A run of a platform at one moment; ``progress`` is None while the platform does not say."""

    detail: EvalRunDetail
    progress: ProgressSnapshot | None

    @property
    def ended(self) -> bool:
        """Whether the run will not change any more."""
        return self.detail.eval_run.status in TERMINAL["eval"]


class WorkPace:
    """How long somebody has worked on a run since that was first seen, and what they have finished meanwhile.

    Invariant: no time counts in which the run waits. That a worker is gone is told some time after it is: what
    passed since something was last finished is then taken back.

    Args:
        clock: monotonic seconds.

    Attributes:
        worked_s: seconds of work.
        finished: samples that were finished in them.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._at: float | None = None  # of the last look, while somebody works
        self._completed = 0
        self._certain_s = 0.0
        self.worked_s, self.finished = 0.0, 0

    def see(self, completed: int, *, works: bool) -> None:
        """Take in a look at the run: how many samples are done, and whether somebody ``works`` on it."""
        now, more = self._clock(), max(0, completed - self._completed)
        if self._at is not None:
            self.worked_s += now - self._at
            self.finished += more
            if more:
                self._certain_s = self.worked_s
        if not works:
            self.worked_s = self._certain_s
        self._at, self._completed = (now if works else None), completed


class EvaluationLook:
    """Asks how a run of a platform stands, again and again.

    Args:
        client: the platform.
        name: the run's name or id.
    """

    def __init__(self, client: PlatformClient, name: str) -> None:
        self._client = client
        self._name = name
        self._pace = WorkPace(time.monotonic)

    def __call__(self) -> SeenEvaluation:
        detail = self._client.eval_runs.get(self._name)
        self._name = detail.eval_run.id
        return SeenEvaluation(detail, self._snapshot(detail))

    def _snapshot(self, detail: EvalRunDetail) -> ProgressSnapshot | None:
        from osmosis_ai.evaluation.run_state import ProgressSnapshot
        from osmosis_ai.services.eval_runs.info import run_progress
        from osmosis_ai.services.runs.finite import finite

        progress, results = run_progress(detail.results, detail.config), detail.results
        if progress is None or results is None:
            return None
        self._pace.see(progress.completed, works=detail.eval_run.status == "running" and not detail.waits)
        return ProgressSnapshot(
            completed=progress.completed,
            total=progress.total,
            passed=results.passed or 0,
            failed=results.failed or 0,
            skipped=results.skipped or 0,
            scored=(results.graded or 0) if finite(results.score) is not None else 0,
            reward_mean=finite(results.score),
            tokens=results.total_tokens or 0,
            cost_usd=None,
            in_flight=None,
            elapsed_s=self._pace.worked_s,
            finished=self._pace.finished,
        )
