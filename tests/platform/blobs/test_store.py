"""The store in a directory: what it leaves on the disk, and what its URLs allow until they expire."""

from __future__ import annotations

import io
import os
import shutil
import stat
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.blobs.incoming import make_directories
from osmosis_ai.platform.blobs.local import LocalBlobStore
from osmosis_ai.platform.blobs.signing import DownloadGrant, PartGrant, UrlSigner, load_signing_key
from osmosis_ai.platform.blobs.store import (
    BlobInfo,
    BlobNotFound,
    BlobUpload,
    BodyTooLarge,
    BodyTooSmall,
    UploadNotFound,
    UrlRefused,
)
from tests.platform.conftest import ManualClock

HOUR = timedelta(hours=1)


@pytest.fixture
def signer(tmp_path: Path, clock: ManualClock) -> UrlSigner:
    return UrlSigner(
        load_signing_key(tmp_path / "keys" / "blob-urls.key"), "https://osmosis.example/p", clock
    )


@pytest.fixture
def store(tmp_path: Path, signer: UrlSigner, clock: ManualClock) -> LocalBlobStore:
    return LocalBlobStore(tmp_path / "blobs", signer, clock)


def files_of(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def send(store: LocalBlobStore, upload: BlobUpload, number: int, data: bytes, size: int | None = None) -> str:
    grant = PartGrant(upload.id, number, len(data) if size is None else size)
    with store.receive_part(grant) as incoming:
        incoming.write(data)
        return store.keep_part(grant, incoming).etag


def test_only_the_platforms_user_can_read_a_blob(store: LocalBlobStore, tmp_path: Path) -> None:
    store.put("a/b", io.BytesIO(b"x"))
    for path in (tmp_path / "blobs").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_a_part_sent_by_two_at_once_is_one_of_the_two(store: LocalBlobStore) -> None:
    upload = store.begin_upload("a.csv")
    barrier = threading.Barrier(6)
    etags: list[str] = []

    def race(data: bytes) -> None:
        barrier.wait()
        etags.append(send(store, upload, 1, data))

    threads = [threading.Thread(target=race, args=(bytes([65 + n]) * 1000,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(etags) == 6
    kept = store.parts(upload)[1]
    assert kept.etag in etags
    assert store.complete_upload(upload, [kept.etag]).size == 1000


@pytest.mark.parametrize("parts", [1, 3])
def test_an_upload_that_is_completed_twice_at_once_is_complete_for_both(
    store: LocalBlobStore, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other has found no blob either, and is first."""
    upload = store.begin_upload("a.csv")
    etags = [send(store, upload, number, b"data") for number in range(1, parts + 1)]
    assemble, others = store._assemble, list[BlobInfo]()

    def be_second(*arguments: Any) -> BlobInfo:
        if not others:
            others.append(assemble(*arguments))
            store.abort_upload(upload)
        return assemble(*arguments)

    monkeypatch.setattr(store, "_assemble", be_second)
    assert [store.complete_upload(upload, etags)] == others
    assert others[0].size == 4 * parts
    assert store.complete_upload(upload, etags) == others[0]


def test_an_upload_that_ends_while_it_is_completed_has_ended(
    store: LocalBlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = store.begin_upload("a.csv")
    etags = [send(store, upload, number, b"data") for number in (1, 2)]

    def make_after_the_end(directory: Path) -> None:
        make_directories(directory)
        store.abort_upload(upload)

    monkeypatch.setattr("osmosis_ai.platform.blobs.local.make_directories", make_after_the_end)
    with pytest.raises(UploadNotFound):
        store.complete_upload(upload, etags)
    with pytest.raises(BlobNotFound):
        store.size("a.csv")


def test_parts_that_are_becoming_a_blob_are_no_parts_of_an_open_upload(
    store: LocalBlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = store.begin_upload("a.csv")
    etag = send(store, upload, 1, b"data")
    seen: list[str] = []

    def look(of: BlobUpload) -> None:
        try:
            seen.append(f"parts {sorted(store.parts(of))}")
        except UploadNotFound:
            seen.append("ended")

    monkeypatch.setattr(store, "abort_upload", look)
    store.complete_upload(upload, [etag])
    assert seen == ["ended"]


def test_two_who_delete_the_same_delete_all_of_it(
    store: LocalBlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(3):
        store.put(f"runs/run_1/{n}/a", io.BytesIO(b"x"))
    remove, walks = shutil.rmtree, list[Path]()

    def find_one_gone(path: Path) -> None:
        walks.append(path)
        if len(walks) == 1:
            raise FileNotFoundError
        remove(path)

    monkeypatch.setattr(shutil, "rmtree", find_one_gone)
    store.delete_below("runs/run_1")
    assert list(store.keys("runs")) == []
    store.delete_below("runs/run_1")


def test_a_blob_that_goes_while_it_is_measured_is_measured_or_not_there(
    store: LocalBlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    class LookedAtOnce(type(Path())):  # type: ignore[misc]
        def stat(self, **options: Any) -> os.stat_result:
            found: os.stat_result = super().stat(**options)
            os.unlink(self)
            return found

    store.put("a", io.BytesIO(b"x"))
    path_of = store._path
    monkeypatch.setattr(store, "_path", lambda key: LookedAtOnce(path_of(key)))
    assert store.size("a") == 1
    with pytest.raises(BlobNotFound):
        store.size("a")


def test_a_part_is_kept_only_with_its_exact_size(store: LocalBlobStore, tmp_path: Path) -> None:
    upload = store.begin_upload("a.csv")
    with pytest.raises(BodyTooLarge):
        send(store, upload, 1, b"12345", size=4)
    with pytest.raises(BodyTooSmall):
        send(store, upload, 1, b"12345", size=6)
    assert store.parts(upload) == {}
    assert [name for name in files_of(tmp_path / "blobs") if not name.endswith("upload.json")] == []


def test_an_aborted_upload_leaves_nothing_and_takes_nothing_more(
    store: LocalBlobStore, tmp_path: Path
) -> None:
    upload = store.begin_upload("a.csv")
    etag = send(store, upload, 1, b"data")
    grant = PartGrant(upload.id, 2, 4)
    with store.receive_part(grant) as late:
        late.write(b"late")
        store.abort_upload(upload)
        store.abort_upload(upload)
        with pytest.raises(UploadNotFound):
            store.keep_part(grant, late)

    with pytest.raises(UploadNotFound):
        store.receive_part(grant)
    with pytest.raises(UploadNotFound):
        store.parts(upload)
    with pytest.raises(UploadNotFound):
        store.complete_upload(upload, [etag])
    assert files_of(tmp_path / "blobs") == []


def test_what_a_killed_process_left_is_swept_and_what_is_being_written_is_not(
    store: LocalBlobStore, tmp_path: Path, clock: ManualClock
) -> None:
    upload = store.begin_upload("a.csv")
    incoming = tmp_path / "blobs" / "incoming"
    incoming.mkdir(exist_ok=True)
    (incoming / "abandoned").write_bytes(b"half")
    (incoming / "ended-1").mkdir()
    (incoming / "fresh").write_bytes(b"half")
    long_ago, just_now = clock.now().timestamp() - 7200, clock.now().timestamp()

    with store.receive_part(PartGrant(upload.id, 1, 4)) as writing:
        for path in incoming.iterdir():
            age = just_now if path.name == "fresh" else long_ago
            os.utime(path, (age, age))
        store.sweep()
        assert not (incoming / "abandoned").exists()
        assert not (incoming / "ended-1").exists()
        assert (incoming / "fresh").exists()
        writing.write(b"data")
        assert store.keep_part(PartGrant(upload.id, 1, 4), writing).size == 4


def test_an_upload_that_was_killed_as_it_began_is_swept(
    store: LocalBlobStore, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(path: Path, *_: object, **__: object) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(f".{path.name}.1.tmp").write_bytes(b"half")
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr("osmosis_ai.platform.blobs.local.write_json", killed)
        with pytest.raises(SystemExit):
            store.begin_upload("a.csv")
    assert list(store.unfinished_uploads()) == []
    (half,) = files_of(tmp_path / "blobs")
    old = clock.now().timestamp() - 7200
    os.utime((tmp_path / "blobs" / half).parent, (old, old))
    store.sweep()
    assert files_of(tmp_path / "blobs") == []
    assert list((tmp_path / "blobs" / "uploads").iterdir()) == []


# Signed URLs


def token_of(url: str) -> str:
    return url.rpartition("/")[2]


def test_a_url_names_the_public_address_and_gives_back_what_was_granted(
    store: LocalBlobStore, signer: UrlSigner
) -> None:
    url = store.signed_get_url("a/b.csv", filename="größe 1.csv", ttl=HOUR)
    assert url.startswith("https://osmosis.example/p/blobs/")
    assert signer.download(token_of(url)) == DownloadGrant("a/b.csv", "größe 1.csv")

    upload = store.begin_upload("x.csv")
    url = store.signed_part_url(upload, 3, size=17, ttl=HOUR)
    assert signer.part(token_of(url)) == PartGrant(upload.id, 3, 17)


def test_a_url_expires(signer: UrlSigner, clock: ManualClock) -> None:
    token = token_of(signer.sign(DownloadGrant("a", "a"), ttl=HOUR))
    clock.advance(3599)
    signer.download(token)
    clock.advance(1)
    with pytest.raises(UrlRefused) as refused:
        signer.download(token)
    assert refused.value.expired


def test_a_url_that_was_altered_in_any_place_is_refused(signer: UrlSigner) -> None:
    token = token_of(signer.sign(PartGrant("0" * 32, 1, 10), ttl=HOUR))
    for place in range(len(token)):
        for other in ("A" if token[place] != "A" else "B", ".", "\n", "é", ""):
            altered = token[:place] + other + token[place + 1 :]
            if altered != token:
                with pytest.raises(UrlRefused):
                    signer.part(altered)
    for nonsense in ("", ".", "a.b", "=.=", token * 100):
        with pytest.raises(UrlRefused):
            signer.part(nonsense)


def test_a_url_to_fetch_does_not_send_and_the_other_way_round(signer: UrlSigner) -> None:
    with pytest.raises(UrlRefused, match="allows GET, not PUT"):
        signer.part(token_of(signer.sign(DownloadGrant("a", "a"), ttl=HOUR)))
    with pytest.raises(UrlRefused, match="allows PUT, not GET"):
        signer.download(token_of(signer.sign(PartGrant("0" * 32, 1, 1), ttl=HOUR)))


def test_another_platforms_url_is_refused(signer: UrlSigner, tmp_path: Path, clock: ManualClock) -> None:
    other = UrlSigner(load_signing_key(tmp_path / "other.key"), signer.base_url, clock)
    with pytest.raises(UrlRefused):
        signer.download(token_of(other.sign(DownloadGrant("a", "a"), ttl=HOUR)))


def test_the_signing_key_is_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "urls.key"
    keys: list[bytes] = []
    threads = [threading.Thread(target=lambda: keys.append(load_signing_key(path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(keys)) == 1 and len(keys) == 8 and len(keys[0]) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["urls.key"]
    assert keys[0].hex() not in repr(UrlSigner(keys[0], "https://x", ManualClock()))


def test_a_signing_key_that_others_can_read_or_that_is_damaged_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "urls.key"
    load_signing_key(path)
    path.chmod(0o644)
    with pytest.raises(OsmosisError, match="every user"):
        load_signing_key(path)
    path.chmod(0o600)
    path.write_text("zz")
    with pytest.raises(OsmosisError, match="damaged"):
        load_signing_key(path)
