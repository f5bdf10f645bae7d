"""What the platform measures of itself, in Prometheus' words."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sqlalchemy import func, select

from osmosis_ai._version import __version__
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.request_counts import BUCKETS_S, RequestCounts
from osmosis_ai.platform.services import PlatformServices

if TYPE_CHECKING:
    from prometheus_client import Metric


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def metrics_text(services: PlatformServices) -> bytes:
    """Return everything that is measured, as it is now."""
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(_Platform(services))
    return generate_latest(registry)


class _Platform:
    """Collects, in the sense of ``prometheus_client``."""

    def __init__(self, services: PlatformServices) -> None:
        self._services = services

    def describe(self) -> list[Metric]:
        """Nothing is measured before it is asked for."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield each metric with its values of this moment."""
        yield from self._state()
        yield from self._runs()
        yield from _requests(self._services.request_counts)

    def _state(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        release = GaugeMetricFamily("osmosis_info", "The release that runs.", labels=["version"])
        release.add_metric([__version__], 1)
        yield release
        ready = GaugeMetricFamily(
            "osmosis_ready", "Whether what the platform needs can be used.", labels=["check"]
        )
        for name, problem in self._services.readiness.problems().items():
            ready.add_metric([name], 0 if problem else 1)
        yield ready
        config = self._services.config
        yield GaugeMetricFamily(
            "osmosis_disk_free_bytes",
            "Free space of the data directory.",
            value=shutil.disk_usage(config.home).free,
        )
        yield GaugeMetricFamily(
            "osmosis_executor_slots", "Runs that may execute at a time.", value=config.executor_slots
        )

    def _runs(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        runs = GaugeMetricFamily("osmosis_runs", "Runs there are.", labels=["kind", "status"])
        with self._services.db.session() as session:
            counted = session.execute(
                select(DbRun.kind, DbRun.status, func.count()).group_by(DbRun.kind, DbRun.status)
            ).all()
            oldest = session.scalar(select(func.min(DbRun.created_at)).where(DbRun.status == "pending"))
        for kind, status, count in counted:
            runs.add_metric([kind, status], count)
        yield runs
        waits_s = (self._services.clock.now() - oldest).total_seconds() if oldest is not None else 0.0
        yield GaugeMetricFamily(
            "osmosis_oldest_pending_run_seconds",
            "For how long the run has waited that has waited for longest.",
            value=max(0.0, waits_s),
        )


def _requests(counts: RequestCounts) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    replies = CounterMetricFamily("osmosis_http_requests", "Replies.", labels=["method", "status"])
    for (method, status), count in sorted(counts.totals().items()):
        replies.add_metric([method, status], count)
    yield replies
    yield GaugeMetricFamily(
        "osmosis_http_requests_under_way", "Requests being answered.", value=counts.under_way
    )
    cumulative, seconds = counts.durations()
    bounds = [*map(str, BUCKETS_S), "+Inf"]
    yield HistogramMetricFamily(
        "osmosis_http_reply_seconds",
        "Time until a reply begins.",
        buckets=list(zip(bounds, cumulative, strict=True)),
        sum_value=seconds,
    )
