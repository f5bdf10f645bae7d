"""Operations for the platform's operator: readiness checks, Prometheus metrics, and periodic maintenance."""

from __future__ import annotations

import logging
import shutil
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select, text
from sqlalchemy.exc import SQLAlchemyError

from osmosis_ai._version import __version__
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.blobs.store import BlobError, BlobNotFound, BlobStore, BlobStoreError
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.engine import Database, DatabaseBusyError, StorageFullError
from osmosis_ai.platform.db.migrations import current_revision, newest_revision
from osmosis_ai.platform.db.tables import DbDataset, DbLoraModel, DbRun, DbRunFile

if TYPE_CHECKING:
    from prometheus_client import Metric

logger = logging.getLogger(__name__)

FRESH_S = 10.0
"""How long a result is cached."""
ANSWER_WITHIN_S = 3.0
"""How long a request waits for an unresponsive check."""
_SAMPLED = 5
"""How many of the oldest and newest datasets, runs and adapters have their files looked up at startup."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The metrics' format."""
_BUCKETS_S = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
EVERY_S = 600.0
"""The time between two rounds of maintenance."""


class Readiness:
    """Checks the database, its schema and the file store.

    Answers come within seconds even if a store or database hangs, and results are cached. The reasons are public and
    contain no locations; the log has the details.
    """

    def __init__(self, db: Database, blobs: BlobStore, clock: Clock) -> None:
        self._db = db
        self._blobs = blobs
        self._clock = clock
        self._checks = {
            "database": self._check_database,
            "migrations": self._check_schema,
            "blobs": self._check_blobs,
        }
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._found: dict[str, str] = {}
        self._ended_at_s = 0.0
        self._logged: dict[str, str] = {}

    def problems(self) -> dict[str, str]:
        """Return the problem that each check found, an empty string if it found none."""
        with self._starting:
            thread = self._thread
            if thread is None or (
                not thread.is_alive() and self._clock.monotonic() - self._ended_at_s >= FRESH_S
            ):
                self._found = {}
                thread = self._thread = threading.Thread(
                    target=self._run, args=(self._found,), name="osmosis-readiness", daemon=True
                )
                thread.start()
            found = self._found
        thread.join(ANSWER_WITHIN_S)
        return {name: found.get(name, "it does not answer") for name in self._checks}

    def _run(self, found: dict[str, str]) -> None:
        try:
            for name, check in self._checks.items():
                try:
                    problem, details = check(), ""
                except (OsmosisError, SQLAlchemyError, OSError) as error:
                    problem = "they cannot be kept" if name == "blobs" else "it cannot be read"
                    details = f" ({type(error).__name__}: {error})"
                if problem != self._logged.get(name, ""):
                    if problem:
                        logger.warning("not ready, %s: %s%s", name, problem, details)
                    else:
                        logger.warning("ready again: %s", name)
                    self._logged[name] = problem
                found[name] = problem
        finally:
            self._ended_at_s = self._clock.monotonic()

    def _check_database(self) -> str:
        with self._db.session() as session:
            is_standby = not self._db.is_sqlite and session.scalar(text("SELECT pg_is_in_recovery()"))
            session.execute(text("SELECT 1"))
        return "it takes no writes" if is_standby else ""

    def _check_schema(self) -> str:
        with self._db.session() as session:
            found = current_revision(session.connection())
        wanted = newest_revision()
        return "" if found == wanted else f"its schema is {found}, and this release works with {wanted}"

    def _check_blobs(self) -> str:
        self._blobs.check()
        return ""


def missing_files(db: Database, blobs: BlobStore, shown: str) -> str | None:
    """Return a sentence about missing files; None if there are none or the store does not answer.

    A database restored without its files, or started with another bucket, would otherwise fail file by file. There may
    be millions of files, so this looks for a sample of about 40.
    """
    keys, missing = set(_some_keys(db)), 0
    for key in keys:
        try:
            blobs.size(key)
        except BlobNotFound:
            missing += 1
        except BlobError:
            return None  # which requests for files report
    if not missing:
        return None
    return (
        f"{missing} of {len(keys)} sampled files of datasets, runs and adapters are missing from {shown}. The database may "
        "have been restored or moved without its files. Restore the files, or start with the original OSMOSIS_BLOBS_URL "
        "or OSMOSIS_HOME; until then, runs of these datasets fail."
    )


def _some_keys(db: Database) -> Iterator[str]:
    """Yield the keys of the oldest and newest datasets, journals, conversations (one of a run) and adapters."""
    conversation = (
        select(DbRunFile.blob_key)
        .where(
            DbRunFile.run_id == DbRun.id, DbRunFile.kind == "trajectories", DbRunFile.blob_key.is_not(None)
        )
        .limit(1)
        .correlate(DbRun)
        .scalar_subquery()
    )
    with db.session() as session:
        table: Any
        for table, column in (
            (DbDataset, DbDataset.blob_key),
            (DbRun, DbRun.journal_blob),
            (DbRun, conversation),
            (DbLoraModel, DbLoraModel.files),
        ):
            for order in (table.created_at.asc(), table.created_at.desc()):
                sample = select(column).select_from(table).where(column.is_not(None))
                for found in session.scalars(sample.order_by(order).limit(_SAMPLED)):
                    if isinstance(found, str):
                        yield found
                    elif found:
                        # The largest file of an adapter has its weights.
                        yield max(found.values(), key=lambda file: file["size"])["blob_key"]


class PlatformMetrics:
    """Counts requests, and reads everything else when it is asked for. Clients choose no value of a label."""

    def __init__(self, config: PlatformConfig, db: Database, clock: Clock, readiness: Readiness) -> None:
        self._config = config
        self._db = db
        self._clock = clock
        self._readiness = readiness
        self._lock = threading.Lock()
        self._replies: Counter[tuple[str, str]] = Counter()
        self._by_bucket = [0] * (len(_BUCKETS_S) + 1)
        self._sum_s = 0.0
        self._in_progress = 0

    def begun(self) -> None:
        with self._lock:
            self._in_progress += 1

    def ended(self) -> None:
        with self._lock:
            self._in_progress -= 1

    def replied(self, method: str, status: int, seconds: float) -> None:
        """Count a reply that begins ``seconds`` after its request."""
        with self._lock:
            self._replies[method if method in _METHODS else "other", f"{status // 100}xx"] += 1
            self._by_bucket[bisect_left(_BUCKETS_S, seconds)] += 1
            self._sum_s += seconds

    def text(self) -> bytes:
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics other than those of the process, as a collector of ``prometheus_client``."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        release = GaugeMetricFamily("osmosis_info", "The running release.", labels=["version"])
        release.add_metric([__version__], 1)
        yield release
        ready = GaugeMetricFamily("osmosis_ready", "Whether each readiness check passes.", labels=["check"])
        for name, problem in self._readiness.problems().items():
            ready.add_metric([name], 0 if problem else 1)
        yield ready
        free = shutil.disk_usage(self._config.home).free
        yield GaugeMetricFamily("osmosis_disk_free_bytes", "Free space of the data directory.", value=free)
        slots = self._config.executor_slots
        yield GaugeMetricFamily("osmosis_executor_slots", "Maximum number of executing runs.", value=slots)
        runs = GaugeMetricFamily("osmosis_runs", "Number of runs.", labels=["kind", "status"])
        by_status = select(DbRun.kind, DbRun.status, func.count()).group_by(DbRun.kind, DbRun.status)
        with self._db.session() as session:
            for kind, status, count in session.execute(by_status):
                runs.add_metric([kind, status], count)
            oldest = session.scalar(select(func.min(DbRun.created_at)).where(DbRun.status == "pending"))
        yield runs
        waits_s = (self._clock.now() - oldest).total_seconds() if oldest is not None else 0.0
        yield GaugeMetricFamily(
            "osmosis_oldest_pending_run_seconds", "Age of the oldest pending run.", value=max(0.0, waits_s)
        )
        with self._lock:
            counted, by_bucket = dict(self._replies), list(self._by_bucket)
            seconds, in_progress = self._sum_s, self._in_progress
        replies = CounterMetricFamily("osmosis_http_requests", "Replies.", labels=["method", "status"])
        for (method, status), count in sorted(counted.items()):
            replies.add_metric([method, status], count)
        yield replies
        yield GaugeMetricFamily("osmosis_http_requests_under_way", "Requests in progress.", value=in_progress)
        bounds = [*map(str, _BUCKETS_S), "+Inf"]
        cumulative = [sum(by_bucket[: number + 1]) for number in range(len(by_bucket))]
        yield HistogramMetricFamily(
            "osmosis_http_reply_seconds",
            "Time until a reply begins.",
            buckets=list(zip(bounds, cumulative, strict=True)),
            sum_value=seconds,
        )


class Maintenance:
    """Runs all chores in a thread, every :data:`EVERY_S` seconds, also when some fail.

    A failure is logged once, and again when its reason changes.
    """

    def __init__(self, chores: Mapping[str, Callable[[], None]]) -> None:
        self._chores = chores
        self._logged: dict[str, str] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._stopping.clear()
        self._thread = threading.Thread(target=self._work, name="osmosis-maintenance", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop after the current task."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while not self._stopping.is_set():
            for name, chore in self._chores.items():
                if not self._stopping.is_set():
                    self._do(name, chore)
            self._stopping.wait(EVERY_S)

    def _do(self, name: str, chore: Callable[[], None]) -> None:
        logged = self._logged.pop(name, None)
        try:
            chore()
        except (BlobStoreError, DatabaseBusyError, StorageFullError, OSError) as error:
            self._logged[name] = str(error)
            if str(error) != logged:
                logger.error("%s could not be tidied up now: %s", name, error)
        except Exception:
            # A bug in one chore must not end the thread.
            logger.exception("%s could not be tidied up now", name)
