"""Uploads and downloads of blobs: whole files, interruptions, hostile stores."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.api.transfer import (
    BlobClient,
    TransferError,
    download,
    find_unfinished_upload,
    note_intent,
    upload_file,
)
from osmosis_ai.api.wire.datasets import UploadInstructions, UploadIntent
from osmosis_ai.errors import OsmosisError
from tests.api.blob_server import SIGNATURE, BlobServer, cut_after, serve, status

CONTENT = os.urandom(2_500)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def store() -> Iterator[BlobServer]:
    with serve() as server:
        yield server


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "maze.csv"
    path.write_bytes(CONTENT)
    return path


def _simple(store: BlobServer, **changes: Any) -> UploadInstructions:
    return UploadInstructions.model_validate(
        {"method": "simple", "presigned_url": store.signed("whole"), "s3_key": "k", **changes}
    )


def _parts(store: BlobServer, **changes: Any) -> UploadInstructions:
    urls = [{"part_number": n, "presigned_url": store.signed(f"part{n}")} for n in (1, 2, 3)]
    return UploadInstructions.model_validate(
        {
            "method": "multipart",
            "part_size": 1_000,
            "total_parts": 3,
            "upload_id": "up_1",
            "presigned_urls": urls,
            "expires_in": 3600,
            **changes,
        }
    )


def _refused(call: Any) -> OsmosisError:
    with pytest.raises(OsmosisError) as caught:
        call()
    assert SIGNATURE not in f"{caught.value.message} {caught.value.hint} {caught.value.details}"
    assert caught.value.__cause__ is None
    return caught.value


def test_a_file_in_one_piece_travels_with_its_length_and_the_given_headers(
    store: BlobServer, blobs: BlobClient, source: Path
) -> None:
    seen: list[int] = []
    instructions = _simple(store, upload_headers={"Content-Type": "text/csv", "x-amz-meta-a": "b"})
    done = upload_file(source, instructions, progress=seen.append, client=blobs)
    assert store.blobs["whole"] == CONTENT
    assert done.parts is None and done.sent_bytes == len(CONTENT)
    headers = store.seen[0].headers
    assert headers["content-length"] == "2500" and "transfer-encoding" not in headers
    assert headers["content-type"] == "text/csv" and headers["x-amz-meta-a"] == "b"
    assert "authorization" not in headers
    assert seen[-1] == len(CONTENT)


def test_given_headers_cannot_change_how_the_body_is_framed(
    store: BlobServer, blobs: BlobClient, source: Path
) -> None:
    headers = {"content-length": "5", "Transfer-Encoding": "chunked", "Host": "evil.example"}
    upload_file(source, _simple(store, upload_headers=headers), client=blobs)
    assert store.blobs["whole"] == CONTENT


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
def test_a_store_that_is_busy_is_asked_five_times(
    store: BlobServer, blobs: BlobClient, source: Path, slept: list[float], code: int
) -> None:
    store.answers = [status(code)] * 4
    upload_file(source, _simple(store), client=blobs)
    assert store.blobs["whole"] == CONTENT and slept == [1, 2, 4, 8]
    store.answers = [status(code)] * 5
    error = _refused(lambda: upload_file(source, _simple(store), client=blobs))
    assert isinstance(error, TransferError) and error.status == code
    assert error.message == f"{store.url}/<redacted URL> answered HTTP {code}."


@pytest.mark.parametrize("code", [301, 302, 307, 308])
def test_an_upload_follows_no_redirect(store: BlobServer, blobs: BlobClient, source: Path, code: int) -> None:
    store.answers = [status(code, Location=store.signed("elsewhere"))]
    assert "redirects" in _refused(lambda: upload_file(source, _simple(store), client=blobs)).message
    assert store.blobs == {}


@pytest.mark.parametrize(
    "url",
    [
        f"http://blobs.example/b?{SIGNATURE}",
        f"ftp://127.0.0.1/b?{SIGNATURE}",
        f"file:///etc/passwd?{SIGNATURE}",
        f"//blobs.example/{SIGNATURE}",
        f"https://[::1/{SIGNATURE}",
        "",
    ],
)
def test_bytes_never_travel_in_the_clear(
    blobs: BlobClient, source: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("OSMOSIS_ALLOW_INSECURE_PLATFORM_URL", "1")
    _refused(lambda: upload_file(source, UploadInstructions(presigned_url=url), client=blobs))


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"method": "carrier-pigeon"}, "no upload method 'carrier-pigeon'"),
        ({"part_size": None}, "`part_size` and `total_parts` are missing"),
        ({"part_size": 1250}, "are not the 2500 bytes"),
        ({"part_size": 833}, "are not the 2500 bytes"),
        ({"part_size": 0}, "are not the 2500 bytes"),
        ({"total_parts": 2}, "are not the 2500 bytes"),
        ({"presigned_urls": []}, "one URL for each of the parts 1 to 3"),
        ({"presigned_urls": [{"part_number": 1, "presigned_url": "https://x"}] * 3}, "one URL for each"),
        (
            {
                "presigned_urls": [
                    {"part_number": n, "presigned_url": "https://x", "size": 1000} for n in (1, 2, 3)
                ]
            },
            "part 3 has 500 bytes, not 1000",
        ),
        ({"method": "simple"}, "`presigned_url` is missing"),
    ],
)
def test_instructions_that_make_no_sense_are_refused_before_a_byte_is_sent(
    store: BlobServer, blobs: BlobClient, source: Path, changes: dict[str, Any], words: str
) -> None:
    assert words in _refused(lambda: upload_file(source, _parts(store, **changes), client=blobs)).message
    assert store.seen == []


def test_a_file_that_changes_meanwhile_is_not_uploaded(
    store: BlobServer, blobs: BlobClient, source: Path
) -> None:
    def grow(done: int) -> None:
        if done == 1000:
            with source.open("ab") as handle:
                handle.write(b"more")

    error = _refused(lambda: upload_file(source, _parts(store), progress=grow, client=blobs))
    assert "changed while it was being uploaded" in error.message
    assert store.asked("PUT") == ["part1"]


def test_no_url_is_logged(
    store: BlobServer, blobs: BlobClient, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    upload_file(source, _parts(store), client=blobs)
    assert SIGNATURE not in caplog.text
    assert SIGNATURE not in repr(_parts(store))


# Going on after an interruption


@pytest.mark.parametrize(
    "dataset_id, changes", [("d", {"upload_id": "up_2"}), ("other", {}), ("d", {"s3_key": "another"})]
)
def test_another_upload_of_the_same_bytes_starts_from_nothing(
    store: BlobServer,
    blobs: BlobClient,
    source: Path,
    tmp_path: Path,
    dataset_id: str,
    changes: dict[str, Any],
) -> None:
    store.answers = [None, status(403)]
    _refused(lambda: upload_file(source, _parts(store), state_dir=tmp_path, dataset_id="d", client=blobs))
    upload_file(source, _parts(store, **changes), state_dir=tmp_path, dataset_id=dataset_id, client=blobs)
    assert store.asked("PUT")[2:] == ["part1", "part2", "part3"]


def test_the_record_is_for_its_owner_alone(
    store: BlobServer, blobs: BlobClient, source: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    upload_file(source, _parts(store), state_dir=state, dataset_id="d", client=blobs)
    (record,) = state.iterdir()
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700


def test_a_record_of_another_scope_or_too_old_or_damaged_is_not_used(
    store: BlobServer, blobs: BlobClient, source: Path, tmp_path: Path
) -> None:
    upload_file(source, _parts(store), state_dir=tmp_path / "s", dataset_id="d", scope="a", client=blobs)
    assert find_unfinished_upload(tmp_path / "s", digest=DIGEST, scope="b") is None
    assert find_unfinished_upload(tmp_path / "s", digest="0" * 64, scope="a") is None
    later = datetime.now(timezone.utc) + timedelta(seconds=3590)
    assert find_unfinished_upload(tmp_path / "s", digest=DIGEST, scope="a") is not None
    (record,) = (tmp_path / "s").iterdir()
    whole = record.read_text()
    for damage in ("", "{", "[]", whole.replace('"version": 1', '"version": 9'), json.dumps({"version": 1})):
        record.write_text(damage)
        assert find_unfinished_upload(tmp_path / "s", digest=DIGEST, scope="a") is None
    record.write_text(whole)
    assert find_unfinished_upload(tmp_path / "s", digest=DIGEST, scope="a", now=later) is None
    assert not record.exists()


INTENDED = "a" * 64


def test_the_same_upload_has_the_same_intent_until_it_is_forgotten(tmp_path: Path) -> None:
    first = note_intent(tmp_path / "state", digest=INTENDED, scope="here fern/agents sums")
    assert stat.S_IMODE(first.path.stat().st_mode) == 0o600
    assert note_intent(tmp_path / "state", digest=INTENDED, scope="here fern/agents sums") == first
    for other in (
        note_intent(tmp_path / "state", digest="b" * 64, scope="here fern/agents sums"),
        note_intent(tmp_path / "state", digest=INTENDED, scope="there fern/agents sums"),
    ):
        assert other.intent.id != first.intent.id
    first.forget()
    assert note_intent(tmp_path / "state", digest=INTENDED, scope="here fern/agents sums") != first


def test_what_a_header_says_is_read_strictly() -> None:
    intent = UploadIntent("1" * 32, INTENDED)
    assert UploadIntent.of(intent.header) == intent
    for header in (None, "", "x", intent.header.upper(), intent.header + "0", f"; sha256={INTENDED}"):
        assert UploadIntent.of(header) is None


SMALL = b"a,b\n1,2\n"
LARGE = os.urandom(3_000_000)
LARGE_SHA256 = hashlib.sha256(LARGE).hexdigest()


@pytest.fixture
def full_store() -> Iterator[BlobServer]:
    with serve() as server:
        server.blobs.update(small=SMALL, large=LARGE)
        yield server


def _refused_download(call: Any) -> OsmosisError:
    with pytest.raises(OsmosisError) as caught:
        call()
    assert SIGNATURE not in f"{caught.value.message} {caught.value.hint} {caught.value.details}"
    return caught.value


def _left(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_file_is_at_its_place_with_its_stores_name(
    full_store: BlobServer, blobs: BlobClient, tmp_path: Path
) -> None:
    seen: list[int] = []
    target = tmp_path / "new" / "small.csv"
    done = download(
        full_store.signed("small"),
        target,
        expected_size=len(SMALL),
        expected_sha256=hashlib.sha256(SMALL).hexdigest(),
        progress=seen.append,
        client=blobs,
    )
    assert target.read_bytes() == SMALL
    assert (done.path, done.size, done.suggested_name) == (target, len(SMALL), "maze walks.csv")
    assert seen == [len(SMALL)]
    assert _left(target.parent) == ["small.csv"]
    assert "authorization" not in full_store.seen[0].headers


def test_a_file_is_replaced_only_by_a_whole_one_and_never_continued_without_an_etag(
    full_store: BlobServer, blobs: BlobClient, tmp_path: Path
) -> None:
    target = tmp_path / "x"
    target.write_bytes(b"old")
    full_store.answers = [status(404)]
    _refused_download(lambda: download(full_store.signed("small"), target, client=blobs))
    assert target.read_bytes() == b"old"
    download(full_store.signed("small"), target, client=blobs)
    assert target.read_bytes() == SMALL


def test_a_connection_cut_half_way_goes_on_from_there(
    full_store: BlobServer, blobs: BlobClient, tmp_path: Path, slept: list[float]
) -> None:
    full_store.answers = [cut_after(2_000_000), cut_after(500_000)]
    download(full_store.signed("large"), tmp_path / "x", expected_sha256=LARGE_SHA256, client=blobs)
    assert (tmp_path / "x").read_bytes() == LARGE
    ranges = [request.headers.get("range") for request in full_store.seen]
    assert ranges == [None, "bytes=2000000-", "bytes=2500000-"]
    assert slept == [0.5, 1]


@pytest.mark.parametrize(
    ("begins", "of"), [(2_000_000, b"another"), (1_999_999, LARGE)], ids=["etag", "range"]
)
def test_a_store_that_goes_on_with_other_bytes_is_not_believed(
    full_store: BlobServer, blobs: BlobClient, tmp_path: Path, begins: int, of: bytes
) -> None:
    def lie(handler: Any) -> None:
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes {begins}-2999999/3000000")
        handler.send_header("ETag", f'"{hashlib.md5(of).hexdigest()}"')
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        handler.wfile.write(b"x" * 1_000_000)

    full_store.answers = [cut_after(2_000_000), lie]
    download(full_store.signed("large"), tmp_path / "x", client=blobs)
    assert (tmp_path / "x").read_bytes() == LARGE


def test_without_an_etag_nothing_is_continued(
    full_store: BlobServer, blobs: BlobClient, tmp_path: Path
) -> None:
    full_store.etags = False
    full_store.answers = [cut_after(2_000_000)]
    download(full_store.signed("large"), tmp_path / "x", client=blobs)
    assert [request.headers.get("range") for request in full_store.seen] == [None, None]
    full_store.answers = [cut_after(2_000_000)] * 3
    _refused_download(lambda: download(full_store.signed("large"), tmp_path / "y", client=blobs))
    assert _left(tmp_path) == ["x"]


@pytest.mark.parametrize("expected", [len(LARGE) - 1, len(LARGE) + 1, 0])
def test_another_size_than_expected_is_refused_and_leaves_nothing(
    full_store: BlobServer, blobs: BlobClient, tmp_path: Path, expected: int
) -> None:
    error = _refused_download(
        lambda: download(full_store.signed("large"), tmp_path / "x", expected_size=expected, client=blobs)
    )
    assert f"has 3000000 bytes instead of {expected}" in error.message
    assert _left(tmp_path) == []


def test_a_store_that_sends_more_than_it_may_is_cut_off(
    full_store: BlobServer, blobs: BlobClient, tmp_path: Path
) -> None:
    def endless(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        while True:
            handler.wfile.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")

    full_store.answers = [endless]
    error = _refused_download(
        lambda: download(full_store.signed("large"), tmp_path / "x", expected_size=1000, client=blobs)
    )
    assert "more than 1000 bytes" in error.message
    assert _left(tmp_path) == []


def test_other_bytes_than_announced_are_refused_and_leave_nothing(
    full_store: BlobServer, blobs: BlobClient, tmp_path: Path, slept: list[float]
) -> None:
    error = _refused_download(
        lambda: download(full_store.signed("large"), tmp_path / "x", expected_sha256="0" * 64, client=blobs)
    )
    assert isinstance(error, TransferError)
    assert error.details["sha256"] == LARGE_SHA256
    assert _left(tmp_path) == [] and slept == []


def test_a_damaged_partial_file_is_noticed_and_fetched_anew(
    full_store: BlobServer, blobs: BlobClient, tmp_path: Path
) -> None:
    full_store.answers = [cut_after(2_000_000), status(503), status(503)]
    _refused_download(lambda: download(full_store.signed("large"), tmp_path / "x", client=blobs))
    with (tmp_path / "x.partial").open("r+b") as handle:
        handle.write(b"damage")
    download(full_store.signed("large"), tmp_path / "x", expected_sha256=LARGE_SHA256, client=blobs)
    assert (tmp_path / "x").read_bytes() == LARGE


def test_a_url_that_has_ended_is_asked_for_again(
    full_store: BlobServer, blobs: BlobClient, tmp_path: Path
) -> None:
    full_store.answers = [status(403)]
    fresh = iter([full_store.signed("small")])
    download(full_store.signed("gone"), tmp_path / "x", refresh_url=lambda: next(fresh), client=blobs)
    assert full_store.asked("GET") == ["gone", "small"]


@pytest.mark.parametrize("code, calls", [(404, 1), (403, 1), (400, 1), (500, 3), (503, 3), (429, 3)])
def test_a_refusal_is_final_unless_the_store_is_busy(
    full_store: BlobServer, blobs: BlobClient, tmp_path: Path, code: int, calls: int
) -> None:
    full_store.answers = [status(code)] * calls
    error = _refused_download(lambda: download(full_store.signed("small"), tmp_path / "x", client=blobs))
    assert error.message == f"{full_store.url}/<redacted URL> answered HTTP {code}."
    assert len(full_store.seen) == calls and _left(tmp_path) == []


def test_a_download_follows_redirects_that_keep_the_rules(
    full_store: BlobServer, blobs: BlobClient, tmp_path: Path
) -> None:
    full_store.answers = [status(302, Location=full_store.signed("small")), status(307, Location="/small")]
    download(full_store.signed("other"), tmp_path / "x", client=blobs)
    assert (tmp_path / "x").read_bytes() == SMALL
    full_store.answers = [status(302, Location=f"http://blobs.example/{SIGNATURE}")]
    assert (
        "neither HTTPS"
        in _refused_download(lambda: download(full_store.signed("a"), tmp_path / "y", client=blobs)).message
    )
    full_store.answers = [status(302, Location=full_store.signed("loop"))] * 30
    assert (
        "without end"
        in _refused_download(lambda: download(full_store.signed("a"), tmp_path / "y", client=blobs)).message
    )


@pytest.mark.parametrize("name", ["../../etc/passwd", "..", "a/b", "a\\b"])
def test_a_name_with_a_path_in_it_is_no_suggestion(
    full_store: BlobServer, blobs: BlobClient, tmp_path: Path, name: str
) -> None:
    full_store.answers = [status(200, Content_Disposition=f'attachment; filename="{name}"')]
    assert download(full_store.signed("small"), tmp_path / "x", client=blobs).suggested_name is None


def test_two_commands_do_not_fetch_to_the_same_place(
    full_store: BlobServer, blobs: BlobClient, tmp_path: Path
) -> None:
    errors: list[OsmosisError] = []

    def meanwhile(_: int) -> None:
        errors.append(
            _refused_download(lambda: download(full_store.signed("small"), tmp_path / "x", client=blobs))
        )

    download(full_store.signed("small"), tmp_path / "x", progress=meanwhile, client=blobs)
    assert [error.code for error in errors] == ["CONFLICT"]
    assert (tmp_path / "x").read_bytes() == SMALL


_LIMITED = """
import resource, signal, sys
from pathlib import Path
from osmosis_ai.api.transfer import download
from osmosis_ai.errors import OsmosisError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
try:
    download(sys.argv[1], Path(sys.argv[2]))
except OsmosisError as error:
    print(error.message, "|", error.hint)
"""


@pytest.mark.integration
def test_a_full_disk_is_said_and_what_was_fetched_serves_the_next_try(
    full_store: BlobServer, blobs: BlobClient, tmp_path: Path
) -> None:
    said = subprocess.run(
        [sys.executable, "-c", _LIMITED, full_store.signed("large"), str(tmp_path / "x")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "cannot write" in said and "when there is room" in said
    assert _left(tmp_path) == ["x.partial", "x.partial.json"]
    download(full_store.signed("large"), tmp_path / "x", expected_sha256=LARGE_SHA256, client=blobs)
    assert full_store.seen[-1].headers["range"] == "bytes=2000000-"


_DOWNLOADS = """
import sys
from pathlib import Path
from osmosis_ai.api.transfer import download
download(sys.argv[1], Path(sys.argv[2]))
"""


@pytest.mark.integration
def test_a_killed_download_leaves_no_half_file_and_goes_on(
    full_store: BlobServer, blobs: BlobClient, tmp_path: Path
) -> None:
    half, release = threading.Event(), threading.Event()

    def hold(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("ETag", f'"{hashlib.md5(LARGE).hexdigest()}"')
        handler.send_header("Content-Length", str(len(LARGE)))
        handler.end_headers()
        handler.wfile.write(LARGE[:2_000_000])
        half.set()
        release.wait(300)
        handler.hang_up()

    full_store.answers = [hold]
    target = tmp_path / "x"
    child = subprocess.Popen([sys.executable, "-c", _DOWNLOADS, full_store.signed("large"), str(target)])
    try:
        assert half.wait(300)
        partial = tmp_path / "x.partial"
        while not partial.exists() or partial.stat().st_size < 1_000_000:
            assert child.poll() is None
            time.sleep(0.01)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        release.set()
    assert not target.exists()
    download(full_store.signed("large"), target, expected_sha256=LARGE_SHA256, client=blobs)
    assert target.read_bytes() == LARGE
    assert full_store.seen[-1].headers["range"].startswith("bytes=")
