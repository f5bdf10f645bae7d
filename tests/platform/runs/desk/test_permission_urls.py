"""Signed URLs are permissions: given to who asks for files, for one file each, and written down nowhere."""

from __future__ import annotations

import io
import logging
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi.testclient import TestClient

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.blobs.copies import BlobCopies
from osmosis_ai.platform.blobs.s3 import S3BlobStore
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.runs.desk.uploads import UploadGoneError
from osmosis_ai.platform.runs.work.http_link import HttpLink
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import Member
from tests.platform.evaluations import Submits, submit_body
from tests.platform.runs.desk.desk_workers import DeskWorker, offer
from tests.platform.s3_server import CREDENTIALS, new_address
from tests.platform.viewer.runs_world import add_file, add_run, add_samples

HOUR = timedelta(hours=1)
SUBMITS = Submits("/api/cli/eval-runs", submit_body)
TRAJECTORY = "trajectories/row_0_run_0.json"


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> S3BlobStore:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return S3BlobStore(new_address(), SystemClock(), BlobCopies(tmp_path / "copies"))


def test_what_tells_of_a_run_holds_no_permission_to_its_files(
    api: TestClient, services: PlatformServices, member: Member
) -> None:
    run = add_run(services, member, "first")
    add_samples(services, run, [{"row": 0, "attempt": 0, "reward": 1.0, "error_type": None}])
    add_file(services, run, TRAJECTORY, b"{}")
    for path in ("/first", "", "/first/metrics", "/first/samples", "/first/logs"):
        reply = api.get(f"/api/cli/eval-runs{path}")
        assert "/blobs/" not in reply.text and "X-Amz-" not in reply.text, path
    assert api.get("/api/cli/eval-runs/first").status_code == 200


def test_an_upload_of_a_run_is_nothing_to_the_worker_of_another(
    api: TestClient, services: PlatformServices, member: Member
) -> None:
    SUBMITS.taken(api)
    SUBMITS.taken(api)
    mine, other = DeskWorker.claims(services), DeskWorker.claims(services)
    assert mine.run_id != other.run_id
    sent = mine.puts(mine.wants("files/a", b"mine"), b"mine")
    with pytest.raises(UploadGoneError):
        other.sync(sent=[sent])
    others = other.wants("files/a", b"mine")
    assert others.id != sent.id
    with pytest.raises(UploadGoneError):
        other.sync(sent=[sent])
    mine.sync(sent=[sent])
    assert [key for key in services.blobs.keys("runs") if key.endswith("files/a")] == [
        f"runs/{mine.run_id}/files/a"
    ]


@pytest.mark.integration
def test_a_url_of_the_bucket_is_for_its_file_its_upload_and_its_method(bucket: S3BlobStore) -> None:
    bucket.put("runs/one/a", io.BytesIO(b"one"))
    bucket.put("runs/two/a", io.BytesIO(b"two"))
    one, two = bucket.begin_upload("runs/one/b"), bucket.begin_upload("runs/two/b")
    get = bucket.signed_get_url("runs/one/a", filename="a", ttl=HOUR)
    put = bucket.signed_part_url(one, 1, size=3, ttl=HOUR)
    with httpx.Client(trust_env=False, timeout=300) as http:
        assert http.get(get).content == b"one"
        refused = [
            http.get(get.replace("/runs/one/", "/runs/two/")),
            http.delete(get),
            http.put(get, content=b"new"),
            http.put(put.replace("/runs/one/", "/runs/two/"), content=b"new"),
            http.put(put.replace(one.id, two.id), content=b"new"),
            http.put(put.replace("partNumber=1", "partNumber=2"), content=b"new"),
            http.put(put, content=b"more than was granted"),
        ]
        assert {reply.status_code for reply in refused} <= {400, 403}
    assert bucket.parts(one) == bucket.parts(two) == {}
    for upload in (one, two):
        bucket.abort_upload(upload)
    with bucket.open("runs/two/a") as stored:
        assert stored.read() == b"two"
    bucket.delete_below("runs")


@pytest.mark.integration
def test_no_url_of_the_bucket_is_logged_however_much_is(
    bucket: S3BlobStore, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        bucket.put("runs/one/a", io.BytesIO(b"one"))
        url = bucket.signed_get_url("runs/one/a", filename="a", ttl=HOUR)
        upload = bucket.begin_upload("runs/one/b")
        bucket.signed_part_url(upload, 1, size=3, ttl=HOUR)
        bucket.abort_upload(upload)
        with bucket.open("runs/one/a") as stored:
            stored.read()
    bucket.delete_below("runs")
    for secret in (*CREDENTIALS.values(), "X-Amz-Signature", urlsplit(url).query):
        assert secret not in caplog.text


def test_a_worker_takes_its_token_nowhere_that_its_platform_redirects_to() -> None:
    seen: list[str | None] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(self.headers["Authorization"])
            self.send_response(200)
            self.end_headers()

        do_GET = do_POST

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Platform(Elsewhere):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(307)
            self.send_header("Location", f"http://127.0.0.1:{elsewhere.server_port}{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()

    with (
        HTTPServer(("127.0.0.1", 0), Elsewhere) as elsewhere,
        HTTPServer(("127.0.0.1", 0), Platform) as platform,
    ):
        for server in (elsewhere, platform):
            Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        link = HttpLink(f"http://127.0.0.1:{platform.server_port}", "osm-wk-planted")
        with pytest.raises(OsmosisError) as refused:
            link.claim(offer())
        link.close()
        elsewhere.shutdown()
        platform.shutdown()
    assert seen == [] and "osm-wk-planted" not in refused.value.message
