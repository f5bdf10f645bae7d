"""`osmosis platform status`: what a line on a worker says."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from osmosis_ai.cli.platform.status import _words

NOW = datetime(2031, 5, 4, 12, 0, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("silent_s", "runs", "said"),
    [
        (0, 0, "idle, asked last"),
        (90, 1, "works on 1 run, asked last"),
        (600, 0, "not heard of for 10m 0s, asked last"),
        (600, 1, "not heard of for 10m 0s, asked last"),
    ],
)
def test_a_worker_that_nobody_has_heard_of_for_long_is_not_shown_as_busy(
    silent_s: int, runs: int, said: str
) -> None:
    heard = NOW - timedelta(seconds=silent_s)
    worker = {
        "machine": "box-1",
        "pool": "gpu",
        "labels": [],
        "cpus": 8,
        "gpus": 0,
        "memory_gb": None,
        "sandbox": None,
        "runs": runs,
        "seen_at": "2031-05-04T11:50:00Z",
        "heard_at": heard.isoformat().replace("+00:00", "Z"),
    }
    assert _words(worker, NOW) == f"box-1 of gpu: 8 cpus; {said} 2031-05-04T11:50:00Z"
