from __future__ import annotations

import hashlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.api.transfer import BlobClient, TransferError, download
from osmosis_ai.errors import OsmosisError
from tests.api.blob_server import SIGNATURE, BlobServer, cut_after, serve, status

SMALL = b"a,b\n1,2\n"
LARGE = os.urandom(3_000_000)
LARGE_SHA256 = hashlib.sha256(LARGE).hexdigest()


@pytest.fixture
def store() -> Iterator[BlobServer]:
    with serve() as server:
        server.blobs.update(small=SMALL, large=LARGE)
        yield server


def _refused(call: Any) -> OsmosisError:
    with pytest.raises(OsmosisError) as caught:
        call()
    assert SIGNATURE not in f"{caught.value.message} {caught.value.hint} {caught.value.details}"
    return caught.value


def _left(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_file_is_at_its_place_with_its_stores_name(
    store: BlobServer, blobs: BlobClient, tmp_path: Path
) -> None:
    seen: list[int] = []
    target = tmp_path / "new" / "small.csv"
    done = download(
        store.signed("small"),
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
    assert "authorization" not in store.seen[0].headers


def test_an_existing_file_is_replaced_only_by_a_whole_one(
    store: BlobServer, blobs: BlobClient, tmp_path: Path
) -> None:
    target = tmp_path / "x"
    target.write_bytes(b"old")
    store.answers = [status(404)]
    _refused(lambda: download(store.signed("small"), target, client=blobs))
    assert target.read_bytes() == b"old"
    download(store.signed("small"), target, client=blobs)
    assert target.read_bytes() == SMALL


def test_an_empty_file_is_a_file(store: BlobServer, blobs: BlobClient, tmp_path: Path) -> None:
    store.blobs["empty"] = b""
    download(store.signed("empty"), tmp_path / "x", expected_size=0, client=blobs)
    assert (tmp_path / "x").read_bytes() == b""


def test_a_connection_cut_half_way_goes_on_from_there(
    store: BlobServer, blobs: BlobClient, tmp_path: Path, slept: list[float]
) -> None:
    store.answers = [cut_after(2_000_000), cut_after(500_000)]
    download(store.signed("large"), tmp_path / "x", expected_sha256=LARGE_SHA256, client=blobs)
    assert (tmp_path / "x").read_bytes() == LARGE
    ranges = [request.headers.get("range") for request in store.seen]
    assert ranges == [None, "bytes=2000000-", "bytes=2500000-"]
    assert slept == [0.5, 1]


def test_what_was_fetched_is_kept_for_the_next_command(
    store: BlobServer, blobs: BlobClient, tmp_path: Path
) -> None:
    store.answers = [cut_after(2_000_000), status(503), status(503)]
    _refused(lambda: download(store.signed("large"), tmp_path / "x", client=blobs))
    assert _left(tmp_path) == ["x.partial", "x.partial.json"]
    assert SIGNATURE not in (tmp_path / "x.partial.json").read_text()
    seen: list[int] = []
    download(
        store.signed("large"), tmp_path / "x", expected_size=len(LARGE), progress=seen.append, client=blobs
    )
    assert store.seen[-1].headers["range"] == "bytes=2000000-"
    assert seen[0] > 2_000_000 and (tmp_path / "x").read_bytes() == LARGE
    assert _left(tmp_path) == ["x"]


def test_bytes_that_have_changed_meanwhile_are_fetched_anew(
    store: BlobServer, blobs: BlobClient, tmp_path: Path
) -> None:
    store.answers = [cut_after(2_000_000), status(503), status(503)]
    _refused(lambda: download(store.signed("large"), tmp_path / "x", client=blobs))
    other = store.blobs["large"] = os.urandom(2_500_000)
    download(store.signed("large"), tmp_path / "x", client=blobs)
    assert (tmp_path / "x").read_bytes() == other


def test_a_store_that_goes_on_with_other_bytes_is_not_believed(
    store: BlobServer, blobs: BlobClient, tmp_path: Path
) -> None:
    def lie(handler: Any) -> None:
        handler.send_response(206)
        handler.send_header("Content-Range", "bytes 2000000-2999999/3000000")
        handler.send_header("ETag", '"another"')
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        handler.wfile.write(b"x" * 1_000_000)

    store.answers = [cut_after(2_000_000), lie]
    download(store.signed("large"), tmp_path / "x", client=blobs)
    assert (tmp_path / "x").read_bytes() == LARGE


@pytest.mark.parametrize("answer", ["bytes 5-2999999/3000000", "nonsense", ""])
def test_a_store_that_goes_on_elsewhere_is_not_believed(
    store: BlobServer, blobs: BlobClient, tmp_path: Path, answer: str
) -> None:
    def lie(handler: Any) -> None:
        handler.reply(206, Content_Range=answer)

    store.answers = [cut_after(2_000_000), lie]
    download(store.signed("large"), tmp_path / "x", client=blobs)
    assert (tmp_path / "x").read_bytes() == LARGE


def test_a_partial_file_longer_than_the_blob_starts_again(
    store: BlobServer, blobs: BlobClient, tmp_path: Path
) -> None:
    store.answers = [cut_after(2_000_000), status(416)]
    download(store.signed("large"), tmp_path / "x", client=blobs)
    assert (tmp_path / "x").read_bytes() == LARGE


def test_without_an_etag_nothing_is_continued(store: BlobServer, blobs: BlobClient, tmp_path: Path) -> None:
    store.etags = False
    store.answers = [cut_after(2_000_000)]
    download(store.signed("large"), tmp_path / "x", client=blobs)
    assert [request.headers.get("range") for request in store.seen] == [None, None]
    store.answers = [cut_after(2_000_000)] * 3
    _refused(lambda: download(store.signed("large"), tmp_path / "y", client=blobs))
    assert _left(tmp_path) == ["x"]


@pytest.mark.parametrize("expected", [len(LARGE) - 1, len(LARGE) + 1, 0])
def test_another_size_than_expected_is_refused_and_leaves_nothing(
    store: BlobServer, blobs: BlobClient, tmp_path: Path, expected: int
) -> None:
    error = _refused(
        lambda: download(store.signed("large"), tmp_path / "x", expected_size=expected, client=blobs)
    )
    assert f"has 3000000 bytes instead of {expected}" in error.message
    assert _left(tmp_path) == []


def test_a_store_that_sends_more_than_it_may_is_cut_off(
    store: BlobServer, blobs: BlobClient, tmp_path: Path
) -> None:
    def endless(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        while True:
            handler.wfile.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")

    store.answers = [endless]
    error = _refused(
        lambda: download(store.signed("large"), tmp_path / "x", expected_size=1000, client=blobs)
    )
    assert "more than 1000 bytes" in error.message
    assert _left(tmp_path) == []


def test_other_bytes_than_announced_are_refused_and_leave_nothing(
    store: BlobServer, blobs: BlobClient, tmp_path: Path, slept: list[float]
) -> None:
    error = _refused(
        lambda: download(store.signed("large"), tmp_path / "x", expected_sha256="0" * 64, client=blobs)
    )
    assert isinstance(error, TransferError)
    assert error.details["sha256"] == LARGE_SHA256
    assert _left(tmp_path) == [] and slept == []


def test_a_damaged_partial_file_is_noticed_and_fetched_anew(
    store: BlobServer, blobs: BlobClient, tmp_path: Path
) -> None:
    store.answers = [cut_after(2_000_000), status(503), status(503)]
    _refused(lambda: download(store.signed("large"), tmp_path / "x", client=blobs))
    with (tmp_path / "x.partial").open("r+b") as handle:
        handle.write(b"damage")
    download(store.signed("large"), tmp_path / "x", expected_sha256=LARGE_SHA256, client=blobs)
    assert (tmp_path / "x").read_bytes() == LARGE


def test_a_url_that_has_ended_is_asked_for_again(
    store: BlobServer, blobs: BlobClient, tmp_path: Path
) -> None:
    store.answers = [status(403)]
    fresh = iter([store.signed("small")])
    download(store.signed("gone"), tmp_path / "x", refresh_url=lambda: next(fresh), client=blobs)
    assert store.asked("GET") == ["gone", "small"]


@pytest.mark.parametrize("code, calls", [(404, 1), (403, 1), (400, 1), (500, 3), (503, 3), (429, 3)])
def test_a_refusal_is_final_unless_the_store_is_busy(
    store: BlobServer, blobs: BlobClient, tmp_path: Path, code: int, calls: int
) -> None:
    store.answers = [status(code)] * calls
    error = _refused(lambda: download(store.signed("small"), tmp_path / "x", client=blobs))
    assert error.message == f"{store.url}/<redacted URL> answered HTTP {code}."
    assert len(store.seen) == calls and _left(tmp_path) == []


def test_a_download_follows_redirects_that_keep_the_rules(
    store: BlobServer, blobs: BlobClient, tmp_path: Path
) -> None:
    store.answers = [status(302, Location=store.signed("small")), status(307, Location="/small")]
    download(store.signed("other"), tmp_path / "x", client=blobs)
    assert (tmp_path / "x").read_bytes() == SMALL
    store.answers = [status(302, Location=f"http://blobs.example/{SIGNATURE}")]
    assert (
        "neither HTTPS" in _refused(lambda: download(store.signed("a"), tmp_path / "y", client=blobs)).message
    )
    store.answers = [status(302, Location=store.signed("loop"))] * 30
    assert (
        "without end" in _refused(lambda: download(store.signed("a"), tmp_path / "y", client=blobs)).message
    )


def test_nothing_is_fetched_in_the_clear(blobs: BlobClient, tmp_path: Path) -> None:
    _refused(lambda: download(f"http://blobs.example/{SIGNATURE}", tmp_path / "x", client=blobs))
    assert _left(tmp_path) == []


@pytest.mark.parametrize("name", ["../../etc/passwd", "..", "a/b", "a\\b"])
def test_a_name_with_a_path_in_it_is_no_suggestion(
    store: BlobServer, blobs: BlobClient, tmp_path: Path, name: str
) -> None:
    store.answers = [status(200, Content_Disposition=f'attachment; filename="{name}"')]
    assert download(store.signed("small"), tmp_path / "x", client=blobs).suggested_name is None


def test_two_commands_do_not_fetch_to_the_same_place(
    store: BlobServer, blobs: BlobClient, tmp_path: Path
) -> None:
    errors: list[OsmosisError] = []

    def meanwhile(_: int) -> None:
        errors.append(_refused(lambda: download(store.signed("small"), tmp_path / "x", client=blobs)))

    download(store.signed("small"), tmp_path / "x", progress=meanwhile, client=blobs)
    assert [error.code for error in errors] == ["CONFLICT"]
    assert (tmp_path / "x").read_bytes() == SMALL


def test_a_place_that_cannot_be_written_is_named(
    store: BlobServer, blobs: BlobClient, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    error = _refused(lambda: download(store.signed("small"), tmp_path / "file" / "x", client=blobs))
    assert str(tmp_path / "file") in error.message


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
    store: BlobServer, blobs: BlobClient, tmp_path: Path
) -> None:
    said = subprocess.run(
        [sys.executable, "-c", _LIMITED, store.signed("large"), str(tmp_path / "x")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "cannot write" in said and "when there is room" in said
    assert _left(tmp_path) == ["x.partial", "x.partial.json"]
    download(store.signed("large"), tmp_path / "x", expected_sha256=LARGE_SHA256, client=blobs)
    assert store.seen[-1].headers["range"] == "bytes=2000000-"


_CHILD = """
import sys
from pathlib import Path
from osmosis_ai.api.transfer import download
download(sys.argv[1], Path(sys.argv[2]))
"""


@pytest.mark.integration
def test_a_killed_download_leaves_no_half_file_and_goes_on(
    store: BlobServer, blobs: BlobClient, tmp_path: Path
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

    store.answers = [hold]
    target = tmp_path / "x"
    child = subprocess.Popen([sys.executable, "-c", _CHILD, store.signed("large"), str(target)])
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
    download(store.signed("large"), target, expected_sha256=LARGE_SHA256, client=blobs)
    assert target.read_bytes() == LARGE
    assert store.seen[-1].headers["range"].startswith("bytes=")


def test_no_url_is_logged(
    store: BlobServer, blobs: BlobClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    store.answers = [status(302, Location=store.signed("small"))]
    download(store.signed("other"), tmp_path / "x", client=blobs)
    assert SIGNATURE not in caplog.text


def test_many_threads_share_one_client(store: BlobServer, blobs: BlobClient, tmp_path: Path) -> None:
    threads = [
        threading.Thread(
            target=download, args=(store.signed("small"), tmp_path / str(n)), kwargs={"client": blobs}
        )
        for n in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {path.read_bytes() for path in tmp_path.iterdir()} == {SMALL}
    assert len(_left(tmp_path)) == 16
