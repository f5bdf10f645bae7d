"""Benchmarks and development servers on a platform that has neither: empty lists, sentences, and no 5xx."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from tests.platform.conftest import assert_flat_error

RUN, SERVER = "/api/cli/benchmark-runs/amber-otter", "/api/cli/dev-rollout-server/ds_1"


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("/benchmarks", "benchmarks"),
        ("/benchmark-runs?benchmark=bm_1", "benchmark_runs"),
        ("/dev-rollout-server?limit=50&offset=0", "dev_rollout_servers"),
    ],
)
def test_lists_are_the_documented_empty_ones(api: TestClient, path: str, key: str) -> None:
    assert api.get(f"/api/cli{path}").json() == {
        key: [],
        "total_count": 0,
        "has_more": False,
        "next_offset": None,
    }


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/cli/benchmarks/acme%2Ftoy%403"),
        *(("GET", f"{RUN}{below}") for below in ("", "/logs", "/outputs/manifest?types=summary")),
        *(("POST", f"{RUN}{below}") for below in ("/stop", "/outputs/download-urls")),
        ("DELETE", SERVER),
        *(("GET", f"{SERVER}{below}") for below in ("/logs?limit=200", "/logs/stream?tail=100")),
    ],
)
def test_nothing_is_found_by_any_name(api: TestClient, method: str, path: str) -> None:
    reply = api.request(method, path, json={} if method != "GET" else None)
    assert_flat_error(reply, 404, "NOT_FOUND")
    assert "self-hosted platforms do not support" in reply.json()["error"]


@pytest.mark.parametrize(
    ("path", "instead"),
    [("/benchmark-runs", "osmosis eval submit"), ("/dev-rollout-server", "osmosis eval run")],
)
def test_what_would_make_one_is_refused_with_what_to_do_instead(
    api: TestClient, path: str, instead: str
) -> None:
    reply = api.post(f"/api/cli{path}", json={"experiment_config": {"benchmark": "hle"}})
    assert_flat_error(reply, 403, "NOT_OFFERED")
    assert (
        "a self-hosted platform does not offer" in reply.json()["error"] and instead in reply.json()["error"]
    )
