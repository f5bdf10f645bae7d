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
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.api.transfer import BlobClient, TransferError, find_unfinished_upload, upload_file
from osmosis_ai.api.wire.datasets import UploadInstructions
from osmosis_ai.errors import OsmosisError
from tests.api.blob_server import SIGNATURE, BlobServer, cut, serve, status

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


def test_parts_are_sent_in_order_and_acknowledged_by_their_etags(
    store: BlobServer, blobs: BlobClient, source: Path
) -> None:
    seen: list[int] = []
    done = upload_file(source, _parts(store), progress=seen.append, client=blobs)
    assert [store.blobs[f"part{n}"] for n in (1, 2, 3)] == [
        CONTENT[:1000],
        CONTENT[1000:2000],
        CONTENT[2000:],
    ]
    assert done.parts is not None
    assert [(part.PartNumber, part.ETag) for part in done.parts] == [
        (n, hashlib.md5(store.blobs[f"part{n}"]).hexdigest()) for n in (1, 2, 3)
    ]
    assert seen == [0, 1000, 2000, 2500]


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


def test_the_store_may_ask_for_a_longer_wait(
    store: BlobServer, blobs: BlobClient, source: Path, slept: list[float]
) -> None:
    store.answers = [status(503, Retry_After="7")]
    upload_file(source, _simple(store), client=blobs)
    assert slept == [7]


def test_a_connection_cut_half_way_is_opened_again(
    store: BlobServer, blobs: BlobClient, tmp_path: Path
) -> None:
    large = tmp_path / "large.csv"
    large.write_bytes(os.urandom(5_000_000))
    seen: list[int] = []
    store.answers = [cut]
    upload_file(large, _simple(store), progress=seen.append, client=blobs)
    assert store.blobs["whole"] == large.read_bytes()
    assert seen[-1] == 5_000_000 and seen.count(seen[0]) == 2


@pytest.mark.parametrize("code", [400, 403, 404, 413])
def test_another_refusal_is_final(
    store: BlobServer, blobs: BlobClient, source: Path, slept: list[float], code: int
) -> None:
    store.answers = [status(code)]
    error = _refused(lambda: upload_file(source, _simple(store), client=blobs))
    assert error.code == "PLATFORM_ERROR" and error.details == {"status_code": code}
    assert slept == []


@pytest.mark.parametrize("code", [301, 302, 307, 308])
def test_an_upload_follows_no_redirect(store: BlobServer, blobs: BlobClient, source: Path, code: int) -> None:
    store.answers = [status(code, Location=store.signed("elsewhere"))]
    assert "redirects" in _refused(lambda: upload_file(source, _simple(store), client=blobs)).message
    assert store.blobs == {}


def test_a_store_that_is_not_there_is_named_without_the_signature(
    blobs: BlobClient, source: Path, slept: list[float]
) -> None:
    instructions = UploadInstructions(presigned_url=f"http://127.0.0.1:1/b/{SIGNATURE}")
    error = _refused(lambda: upload_file(source, instructions, client=blobs))
    assert error.message == "the connection to http://127.0.0.1:1/<redacted URL> failed: Connection refused."
    assert slept == [1, 2, 4, 8]


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


def test_a_part_without_an_etag_is_not_acknowledged(
    store: BlobServer, blobs: BlobClient, source: Path
) -> None:
    store.answers = [status(200, ETag='""')]
    assert "part 1" in _refused(lambda: upload_file(source, _parts(store), client=blobs)).message


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


def test_a_file_that_shrinks_meanwhile_is_not_uploaded(
    store: BlobServer, blobs: BlobClient, source: Path
) -> None:
    def shrink(done: int) -> None:
        os.truncate(source, 1500)

    error = _refused(lambda: upload_file(source, _parts(store), progress=shrink, client=blobs))
    assert "changed while it was being uploaded" in error.message


def test_no_url_is_logged(
    store: BlobServer, blobs: BlobClient, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    upload_file(source, _parts(store), client=blobs)
    assert SIGNATURE not in caplog.text
    assert SIGNATURE not in repr(_parts(store))


# Going on after an interruption


def test_an_acknowledged_part_is_not_sent_again(
    store: BlobServer, blobs: BlobClient, source: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    store.answers = [None, status(403)]
    _refused(lambda: upload_file(source, _parts(store), state_dir=state, dataset_id="ds_1", client=blobs))
    unfinished = find_unfinished_upload(state, digest=DIGEST)
    assert unfinished is not None and unfinished.dataset_id == "ds_1"
    assert list(unfinished.acknowledged) == [1]
    seen: list[int] = []
    done = upload_file(
        source,
        unfinished.instructions,
        state_dir=state,
        dataset_id="ds_1",
        digest=DIGEST,
        progress=seen.append,
        client=blobs,
    )
    assert store.asked("PUT") == ["part1", "part2", "part2", "part3"]
    assert done.sent_bytes == 1500 and seen[0] == 1000
    assert done.parts is not None and len(done.parts) == 3
    done.forget()
    assert find_unfinished_upload(state, digest=DIGEST) is None
    assert list(state.iterdir()) == []


def test_fresh_urls_for_the_same_upload_keep_its_parts(
    store: BlobServer, blobs: BlobClient, source: Path, tmp_path: Path
) -> None:
    store.answers = [None, status(403)]
    _refused(lambda: upload_file(source, _parts(store), state_dir=tmp_path, dataset_id="d", client=blobs))
    urls = [{"part_number": n, "presigned_url": store.signed(f"again{n}")} for n in (1, 2, 3)]
    upload_file(source, _parts(store, presigned_urls=urls), state_dir=tmp_path, dataset_id="d", client=blobs)
    assert store.asked("PUT") == ["part1", "part2", "again2", "again3"]


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


def test_a_disk_that_cannot_remember_does_not_prevent_the_upload(
    store: BlobServer, blobs: BlobClient, source: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    done = upload_file(source, _parts(store), state_dir=tmp_path / "file" / "s", dataset_id="d", client=blobs)
    assert done.parts is not None and len(done.parts) == 3


_CHILD = """
import sys
from pathlib import Path
from osmosis_ai.api.transfer import upload_file
from osmosis_ai.api.wire.datasets import UploadInstructions
instructions = UploadInstructions.model_validate_json(sys.argv[2])
upload_file(Path(sys.argv[1]), instructions, state_dir=Path(sys.argv[3]), dataset_id="d")
"""


@pytest.mark.integration
def test_a_killed_upload_goes_on_where_it_was(
    store: BlobServer, blobs: BlobClient, source: Path, tmp_path: Path
) -> None:
    arrived, release = threading.Event(), threading.Event()

    def hold(handler: Any) -> None:
        arrived.set()
        release.wait(300)
        handler.hang_up()

    store.answers = [None, hold]
    arguments = [str(source), json.dumps(_parts(store).to_wire()), str(tmp_path / "state")]
    child = subprocess.Popen([sys.executable, "-c", _CHILD, *arguments])
    try:
        assert arrived.wait(300)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        release.set()
    unfinished = find_unfinished_upload(tmp_path / "state", digest=DIGEST)
    assert unfinished is not None and list(unfinished.acknowledged) == [1]
    upload_file(source, unfinished.instructions, state_dir=tmp_path / "state", dataset_id="d", client=blobs)
    assert store.asked("PUT") == ["part1", "part2", "part2", "part3"]
    assert b"".join(store.blobs[f"part{n}"] for n in (1, 2, 3)) == CONTENT
