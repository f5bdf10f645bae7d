"""Prometheus metrics of the platform. Label values are from small fixed sets, never chosen by clients."""

from __future__ import annotations

import shutil
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sqlalchemy import func, select

from osmosis_ai._version import __version__
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.readiness import Readiness

if TYPE_CHECKING:
    from prometheus_client import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS_S = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class PlatformMetrics:
    """Counts requests, and reads everything else when it is asked for."""

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
        """Count the beginning of a request."""
        with self._lock:
            self._in_progress += 1

    def ended(self) -> None:
        """Count the end of a request."""
        with self._lock:
            self._in_progress -= 1

    def replied(self, method: str, status: int, seconds: float) -> None:
        """Count a reply that begins ``seconds`` after its request."""
        with self._lock:
            self._replies[method if method in _METHODS else "other", f"{status // 100}xx"] += 1
            self._by_bucket[bisect_left(_BUCKETS_S, seconds)] += 1
            self._sum_s += seconds

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics other than those of the process, as a collector of ``prometheus_client``."""
        from prometheus_client.core import GaugeMetricFamily

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
        yield from self._runs()
        yield from self._requests()

    def _runs(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

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

    def _requests(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

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
