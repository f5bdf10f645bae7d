"""Readiness with its reason, and metrics without names."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal
from sqlalchemy import text

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform import operations
from osmosis_ai.platform.blobs.store import BlobStoreBusy
from osmosis_ai.platform.config import from_environment
from osmosis_ai.platform.operations import Maintenance
from tests.platform.conftest import ManualClock, Member, World, application
from tests.platform.one_hop_client import OneHopClient, running
from tests.platform.viewer.runs_world import add_run

TOKEN = "metrics-token-of-the-operator"
GOOD = {"database": "ok", "migrations": "ok", "blobs": "ok"}


@pytest.fixture
def monitored(world: World, portal: BlockingPortal) -> Iterator[OneHopClient]:
    """A platform with a metrics token."""
    world.services.config = replace(world.services.config, metrics_token=TOKEN)
    with running(application(world), portal, world.services.config.base_url) as client:
        yield client


def read(client: OneHopClient, **headers: str) -> dict[str, list[Any]]:
    parser = pytest.importorskip("prometheus_client.parser")
    reply = client.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}", **headers})
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = list(parser.text_string_to_metric_families(reply.text))
    assert all(family.documentation for family in families)
    return {family.name: family.samples for family in families}


def test_a_working_platform_is_ready(client: OneHopClient) -> None:
    reply = client.get("/ready")
    assert (reply.status_code, reply.json()) == (200, {"status": "ready", "checks": GOOD})
    assert client.get("/health").json()["status"] == "ok"


def test_a_platform_without_its_store_is_not_ready_and_hides_the_location(
    client: OneHopClient,
    world: World,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def busy() -> None:
        raise BlobStoreBusy("the bucket 'planted' answered 503.")

    with monkeypatch.context() as patch:
        patch.setattr(world.services.blobs, "check", busy)
        reply = client.get("/ready")
        assert reply.status_code == 503
        assert reply.json()["checks"] == {**GOOD, "blobs": "they cannot be kept"}
        assert "planted" not in reply.text and "'planted' answered 503" in caplog.text
    # A result is cached for a while.
    assert client.get("/ready").status_code == 503
    clock.advance(operations.FRESH_S)
    assert client.get("/ready").status_code == 200
    assert "ready again: blobs" in caplog.text


def test_a_schema_of_another_release_is_not_ready(client: OneHopClient, world: World) -> None:
    with world.services.db.transaction() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    reply = client.get("/ready")
    assert reply.status_code == 503
    assert "its schema is 9999" in reply.json()["checks"]["migrations"]


def test_an_unreachable_database_is_not_ready(
    client: OneHopClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone() -> None:
        raise OSError("connection refused by planted-host")

    monkeypatch.setattr(world.services.db, "session", gone)
    reply = client.get("/ready")
    assert reply.status_code == 503 and "planted" not in reply.text
    assert reply.json()["checks"] == {
        **GOOD,
        "database": "it cannot be read",
        "migrations": "it cannot be read",
    }


def test_metrics_need_the_operators_token(
    client: OneHopClient, world: World, portal: BlockingPortal, member: Member
) -> None:
    off = client.get("/metrics", headers=member.headers)
    assert (off.status_code, off.json()["code"]) == (404, "METRICS_OFF")
    world.services.config = replace(world.services.config, metrics_token=TOKEN)
    with running(application(world), portal, world.services.config.base_url) as monitored:
        for headers in ({}, member.headers, {"Authorization": f"Bearer {TOKEN}x"}):
            refused = monitored.get("/metrics", headers=headers)
            assert (refused.status_code, refused.json()["code"]) == (401, "METRICS_TOKEN_REQUIRED")
            assert TOKEN not in refused.text
    assert TOKEN not in repr(world.services.config)


def test_metrics_cover_runs_requests_and_the_machine(
    monitored: OneHopClient, world: World, member: Member
) -> None:
    add_run(world, member, "planted-run")
    world.services.metrics.replied("GET", 200, 0.01)
    world.services.metrics.replied("PLANTED", 503, 99.0)
    found = read(monitored)
    runs = {(s.labels["kind"], s.labels["status"]): s.value for s in found["osmosis_runs"]}
    assert sum(runs.values()) == 1
    assert {s.labels["check"]: s.value for s in found["osmosis_ready"]} == dict.fromkeys(GOOD, 1)
    replies = {
        (s.labels["method"], s.labels["status"]): s.value
        for s in found["osmosis_http_requests"]
        if s.name.endswith("_total")
    }
    assert replies["other", "5xx"] == 1 and replies["GET", "2xx"] >= 1
    seconds = {s.name: s.value for s in found["osmosis_http_reply_seconds"]}
    assert seconds["osmosis_http_reply_seconds_count"] == sum(replies.values())
    buckets = [s.value for s in found["osmosis_http_reply_seconds"] if "le" in s.labels]
    assert buckets == sorted(buckets) and buckets[-1] == buckets[-2] + 1
    assert found["osmosis_http_requests_under_way"][0].value == 1
    assert found["osmosis_disk_free_bytes"][0].value > 0 and found["process_resident_memory_bytes"]


def test_metrics_contain_no_names_and_few_labels(
    monitored: OneHopClient, world: World, member: Member
) -> None:
    add_run(world, member, "planted-run")
    before = read(monitored)
    for n in range(20):
        monitored.request("GET", f"/planted-{n}", headers={"X-Osmosis-Git": f"planted/{n}"})
    after = read(monitored)
    labels = {f"{s.name}{s.labels}" for samples in after.values() for s in samples}
    assert not [each for each in labels if "planted" in each or "mara" in each or "fern" in each]
    assert len(labels) <= len({f"{s.name}{s.labels}" for samples in before.values() for s in samples}) + 4


def test_every_reply_has_an_id_that_is_logged_and_no_signed_url_is_logged(
    client: OneHopClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="osmosis_ai"):
        first, second = client.get("/health"), client.get("/blobs/planted.permission")
    ids = {reply.headers["x-request-id"] for reply in (first, second)}
    assert len(ids) == 2 and all(len(each) == 16 for each in ids)
    assert "GET /health -> 200" in caplog.text and "GET /blobs/… -> 403" in caplog.text
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("osmosis_ai")]
    assert not [line for line in ours if "planted" in line]


@pytest.mark.parametrize("value", ["short", "with a space in the midst", "x" * 257, "ünïcödé-of-16-chars"])
def test_an_invalid_metrics_token_is_refused_at_startup(value: str) -> None:
    with pytest.raises(OsmosisError, match="OSMOSIS_METRICS_TOKEN must be 16 to 256") as refused:
        from_environment({"OSMOSIS_METRICS_TOKEN": value})
    assert value not in refused.value.message


def test_a_failing_maintenance_task_does_not_block_others(caplog: pytest.LogCaptureFixture) -> None:
    done = threading.Event()

    def full() -> None:
        raise OSError(28, "No space left on device")

    def broken() -> None:
        raise ValueError("a bug")

    def away() -> None:
        raise BlobStoreBusy("the bucket 'models' answered 503; it is asked again later.")

    maintenance = Maintenance({"blobs": full, "runs": away, "datasets": broken, "uploads": done.set})
    with caplog.at_level(logging.ERROR, "osmosis_ai.platform.operations"):
        maintenance.start()
        assert done.wait(60)
        maintenance.close()
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "blobs could not be tidied up now",
        "runs could not be tidied up now",
        "datasets could not be tidied up now",
    ]
    # A temporary failure is one line; only a bug has a traceback.
    assert [bool(record.exc_info) for record in caplog.records] == [False, False, True]
