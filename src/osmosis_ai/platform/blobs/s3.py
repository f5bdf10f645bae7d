"""Blobs in a bucket of an S3-compatible store.

Clients transfer directly with presigned URLs. Only operations that every such store supports are used: no
conditional writes, no checksums, no bulk deletion. Keys are therefore never reused, digests are computed by
reading back, and every reply is checked against the object's known data. Blobs are read in ranges; a larger read
goes through a local copy.
"""

from __future__ import annotations

import hashlib
import io
import os
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple, cast

from osmosis_ai.platform.blobs.copies import BlobCopies
from osmosis_ai.platform.blobs.incoming import IncomingFile
from osmosis_ai.platform.blobs.s3_bodies import read_body
from osmosis_ai.platform.blobs.s3_clients import S3Clients, connect
from osmosis_ai.platform.blobs.s3_failures import code_and_status, speaking
from osmosis_ai.platform.blobs.signing import OCTET_STREAM, content_disposition
from osmosis_ai.platform.blobs.store import (
    BlobInfo,
    BlobNotFound,
    BlobStoreBusy,
    BlobStoreError,
    BlobUpload,
    Part,
    PartsMismatch,
    UploadNotFound,
    check_key,
)
from osmosis_ai.platform.blobs.store_gate import StoreGate
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.s3_address import S3Address

RANGE_BYTES = 8 << 20
"""How much is read at a time; a blob of this size is read in one piece and needs no copy."""
# At most 10,000 parts: 160 GB.
_PART_BYTES = 16 << 20
# Callers retry: a worker, a client, the next round of a chore.
_ATTEMPTS = 2
# A body that breaks off is not asked for again by boto3.
_BODY_ATTEMPTS = 3
_DELETING_THREADS = 8
_DELETED = 204
"""How a store says that something is deleted; another success is asked about."""
_BAD_PARTS = ("InvalidPart", "InvalidPartOrder", "EntityTooSmall")


class _Object(NamedTuple):
    """What is known of an object: its ETag, without quotes, and its size in bytes."""

    etag: str
    size: int


class S3BlobStore:
    """A :class:`~osmosis_ai.platform.blobs.store.BlobStore` in a bucket."""

    def __init__(
        self, address: S3Address, clock: Clock, copies: BlobCopies, *, attempts: int = _ATTEMPTS
    ) -> None:
        self._address = address
        self._clock = clock
        self._copies = copies
        self._attempts = attempts
        self._gate = StoreGate(address.shown)
        self._clients: S3Clients | None = None
        self._connecting = threading.Lock()

    def check(self) -> None:
        """Write, read and remove a small blob."""
        key = f"checks/{secrets.token_hex(8)}"
        self.put(key, io.BytesIO(b"osmosis"))
        with self.open(key) as stored:
            if stored.read() != b"osmosis":
                raise BlobStoreError(f"{self._address.shown} does not give back what was put there.")
        list(self.keys("checks"))
        self.delete(key)

    def put(self, key: str, stream: BinaryIO) -> BlobInfo:
        """Store everything ``stream`` has; an existing blob is replaced in one step."""
        where, source = self._where(key), _Digesting(stream)
        from boto3.s3.transfer import TransferConfig

        # Without threads no more than one part is in memory.
        transfer = TransferConfig(
            multipart_threshold=_PART_BYTES, multipart_chunksize=_PART_BYTES, use_threads=False
        )
        with self._speaking("write"):
            self._connected().patient.upload_fileobj(
                source, **where, ExtraArgs={"ContentType": OCTET_STREAM}, Config=transfer
            )
        return source.info()

    def open(self, key: str) -> BinaryIO:
        """Open a blob for reading; what was opened stays readable when the blob is deleted."""
        found, first = self._read_range(key, 0, RANGE_BYTES)
        if len(first) == found.size:
            return io.BytesIO(first)

        def fetch(incoming: IncomingFile) -> None:
            incoming.write(first)
            self._fetch(key, found, incoming, RANGE_BYTES)

        with self._copies.open(_copy_name(key, found), fetch) as (_, handle):
            # The same open file, with its lock.
            return os.fdopen(os.dup(handle.fileno()), "rb")

    def read(self, key: str, offset: int, length: int) -> bytes:
        """Return ``length`` bytes from ``offset`` on; fewer where the blob ends before."""
        # No range is empty.
        return self._read_range(key, offset, max(1, length))[1][:length]

    def size(self, key: str) -> int:
        """Return a blob's size in bytes."""
        return self._look(key).size

    def delete(self, key: str) -> None:
        """Remove a blob; one that is not there is no error."""
        where = self._where(key)
        with self._speaking("delete"):
            said = self._own.delete_object(**where)
        if said["ResponseMetadata"]["HTTPStatusCode"] != _DELETED:
            self._require_gone(key)

    def _require_gone(self, key: str) -> None:
        """Verify that a deleted blob is gone: a proxy in front of the store may answer anything."""
        with suppress(BlobNotFound):
            self._look(key)
            raise self._unheard_deletion()

    def _unheard_deletion(self) -> BlobStoreBusy:
        return BlobStoreBusy(
            f"what answers for {self._address.shown} has deleted nothing just now; it is asked again later."
        )

    def delete_below(self, prefix: str) -> None:
        """Remove every blob below ``prefix``."""
        with ThreadPoolExecutor(_DELETING_THREADS, thread_name_prefix="osmosis-blob-deletion") as pool:
            for _ in pool.map(self.delete, self.keys(prefix)):
                pass

    def keys(self, prefix: str) -> Iterator[str]:
        """Yield the keys below ``prefix``; below ``""`` are all."""
        below = f"{self._key(prefix)}/" if prefix else self._address.key_of("")
        for found in self._listed("list_objects_v2", "Contents", "list", Prefix=below):
            if (key := self._own_key(found["Key"])) is not None:
                yield key

    @contextmanager
    def local_copy(self, key: str) -> Iterator[Path]:
        """Give a copy, made now when there is none of these very bytes."""
        found = self._look(key)
        name = _copy_name(key, found)
        with self._copies.open(name, lambda incoming: self._fetch(key, found, incoming, 0)) as (path, _):
            yield path

    def signed_get_url(self, key: str, *, filename: str, ttl: timedelta) -> str:
        """Return a URL that serves the blob, as a download named ``filename``, until ``ttl`` has passed."""
        shape = {
            "ResponseContentDisposition": content_disposition(filename),
            "ResponseContentType": OCTET_STREAM,
        }
        return self._presigned("get_object", {**self._where(key), **shape}, ttl)

    def begin_upload(self, key: str) -> BlobUpload:
        """Begin an upload of a new blob."""
        where = self._where(key)
        with self._speaking("write"):
            begun = self._own.create_multipart_upload(**where, ContentType=OCTET_STREAM)
        return BlobUpload(begun["UploadId"], key)

    def signed_part_url(self, upload: BlobUpload, part_number: int, *, size: int, ttl: timedelta) -> str:
        """Return a URL that takes exactly ``size`` bytes by PUT as a part, numbered from 1."""
        part = {"PartNumber": part_number, "UploadId": upload.id, "ContentLength": size}
        return self._presigned("upload_part", {**self._where(upload.key), **part}, ttl)

    def parts(self, upload: BlobUpload) -> Mapping[int, Part]:
        """Return the parts received so far, by number."""
        try:
            found = self._listed("list_parts", "Parts", "list", Key=self._key(upload.key), UploadId=upload.id)
            return {part["PartNumber"]: Part(_bare(part["ETag"]), part["Size"]) for part in found}
        except BlobNotFound:
            raise UploadNotFound from None

    def complete_upload(self, upload: BlobUpload, etags: Sequence[str]) -> BlobInfo:
        """Make the blob of parts 1, 2 … with these ETags; may be repeated, also after a crash."""
        try:
            received = self.parts(upload)
            for number, etag in enumerate(etags, 1):
                if number not in received or received[number].etag != etag:
                    raise PartsMismatch(f"part {number} was not received with the ETag named.")
            self._complete(upload, etags)
        except UploadNotFound:
            # Done before, by a process that did not live to say so: unless there is no blob.
            pass
        try:
            with self.open(upload.key) as stored:
                read = _Digesting(stored)
                while read.read(RANGE_BYTES):
                    pass
        except BlobNotFound:
            raise UploadNotFound from None
        return read.info()

    def abort_upload(self, upload: BlobUpload) -> None:
        """Give an upload up and forget its parts; one that has ended is no error."""
        try:
            with self._asking("delete"):
                said = self._own.abort_multipart_upload(**self._where(upload.key), UploadId=upload.id)
        except BlobNotFound:
            return
        if said["ResponseMetadata"]["HTTPStatusCode"] != _DELETED:
            with suppress(UploadNotFound):
                self.parts(upload)
                raise self._unheard_deletion()

    def unfinished_uploads(self) -> Iterator[tuple[BlobUpload, datetime]]:
        """Yield the uploads that have not ended, each with the moment it began."""
        prefix = f"{self._address.prefix}/" if self._address.prefix else ""
        # A bucket that never had an upload is answered by some stores like one that has none of this name.
        with suppress(BlobNotFound):
            for found in self._listed("list_multipart_uploads", "Uploads", "list", Prefix=prefix):
                if (key := self._own_key(found["Key"])) is not None:
                    yield BlobUpload(found["UploadId"], key), found["Initiated"]

    def sweep(self) -> None:
        """Remove what processes that were killed have left half-copied; the store keeps nothing half-written."""
        self._copies.sweep(self._clock.now())

    def has_credentials_of_machine(self) -> bool:
        """Whether the credentials come from the cloud's metadata address, which every program on this machine can read."""
        return self._connected().by_machine

    def _complete(self, upload: BlobUpload, etags: Sequence[str]) -> None:
        from botocore.exceptions import ClientError

        parts = [{"PartNumber": number, "ETag": f'"{etag}"'} for number, etag in enumerate(etags, 1)]
        named = {**self._where(upload.key), "UploadId": upload.id, "MultipartUpload": {"Parts": parts}}
        try:
            with self._asking("write"):
                try:
                    self._connected().patient.complete_multipart_upload(**named)
                except ClientError as error:
                    if code_and_status(error)[0] in _BAD_PARTS:
                        raise PartsMismatch("a part was not received with the ETag named.") from None
                    raise
        except BlobNotFound:
            raise UploadNotFound from None

    def _look(self, key: str) -> _Object:
        from botocore.exceptions import ClientError

        found = None
        with self._speaking("read"):
            try:
                found = self._own.head_object(**self._where(key))
            except ClientError as error:
                if code_and_status(error)[1] not in (403, 404):
                    raise
        if found is None:
            # The reply to a HEAD has no body, and so no word on whether it is the file or the bucket that is not there.
            return self._read_range(key, 0, 1)[0]
        return _Object(_bare(found["ETag"]), found["ContentLength"])

    def _fetch(self, key: str, known: _Object, incoming: IncomingFile, start: int) -> None:
        for offset in range(start, known.size, RANGE_BYTES):
            found, block = self._read_range(key, offset, min(RANGE_BYTES, known.size - offset))
            if found != known:
                raise self._altered(key)
            incoming.write(block)

    def _read_range(self, key: str, offset: int, length: int) -> tuple[_Object, bytes]:
        """Return what the object is, and up to ``length`` of its bytes from ``offset`` on."""
        from botocore.exceptions import BotoCoreError, ClientError

        asked = {**self._where(key), "Range": f"bytes={offset}-{offset + length - 1}"}
        # So that it is not mistaken for a page.
        asked["ResponseContentType"] = OCTET_STREAM
        for attempts_left in reversed(range(_BODY_ATTEMPTS)):
            with self._asking("read", key):
                try:
                    reply = self._own.get_object(**asked)
                except ClientError as error:
                    # No byte can be asked for of an empty object, nor behind the end of one.
                    if code_and_status(error)[1] != 416:
                        raise
                    break
                found = self._described(key, reply, length)
                try:
                    data = read_body(reply["Body"], reply["ContentLength"], self._address.shown)
                except BotoCoreError:
                    if not attempts_left:
                        raise
                    continue
            if len(data) != min(length, found.size - offset):
                raise self._altered(key)
            return found, data
        return self._nothing_at(key, offset)

    def _nothing_at(self, key: str, offset: int) -> tuple[_Object, bytes]:
        found = self._look(key)
        if offset < found.size:
            raise self._altered(key)
        return found, b""

    def _described(self, key: str, reply: Mapping[str, Any], length: int) -> _Object:
        """Return what a reply says of the object, before a byte of its body is read."""
        size: int = reply["ContentLength"]
        if size > length:
            raise BlobStoreError(f"{self._address.shown} does not serve parts of an object.")
        total = str(reply.get("ContentRange", "")).rpartition("/")[2]
        if total and not (total.isascii() and total.isdigit()):
            raise self._altered(key)
        return _Object(_bare(reply["ETag"]), int(total) if total else size)

    def _altered(self, key: str) -> BlobStoreError:
        return BlobStoreError(
            f"the stored file {key} was changed or cut off in {self._address.shown}, and not by this platform.",
            hint="nothing else may write below its prefix",
        )

    def _listed(self, operation: str, items: str, doing: str, **options: Any) -> Iterator[Any]:
        with speaking(self._address, "connect"):
            paginator = self._own.get_paginator(operation)
        pages = iter(paginator.paginate(Bucket=self._address.bucket, **options))
        while True:
            with self._asking(doing):
                page = next(pages, None)
            if page is None:
                return
            yield from page.get(items, ())

    def _presigned(self, operation: str, named: Mapping[str, Any], ttl: timedelta) -> str:
        with speaking(self._address, "sign"):
            url = self._connected().public.generate_presigned_url(
                operation, Params=dict(named), ExpiresIn=max(1, int(ttl.total_seconds()))
            )
        return cast(str, url)

    @contextmanager
    def _asking(self, doing: str, key: str = "") -> Iterator[None]:
        """Say of what is not there that it is not, and of every other failure what it means."""
        from botocore.exceptions import ClientError

        with self._speaking(doing):
            try:
                yield
            except ClientError as error:
                code, status = code_and_status(error)
                if status == 404 and code != "NoSuchBucket":
                    raise BlobNotFound(f"the stored file {key} is gone.") from None
                raise

    @contextmanager
    def _speaking(self, doing: str) -> Iterator[None]:
        """Wait for a turn to ask the store, and say of every failure what it means."""
        with self._gate.passing(), speaking(self._address, doing):
            yield

    def _own_key(self, name: str) -> str | None:
        """Return the key of an object, None when it is none of ours."""
        prefix = self._address.key_of("")
        try:
            return check_key(name[len(prefix) :]) if name.startswith(prefix) else None
        except ValueError:
            return None

    def _key(self, key: str) -> str:
        return self._address.key_of(check_key(key))

    def _where(self, key: str) -> dict[str, Any]:
        return {"Bucket": self._address.bucket, "Key": self._key(key)}

    @property
    def _own(self) -> Any:
        return self._connected().own

    def _connected(self) -> S3Clients:
        with self._connecting:
            if self._clients is None:
                with speaking(self._address, "connect"):
                    self._clients = connect(self._address, self._attempts)
            return self._clients


class _Digesting:
    """A stream that is read once, and what was read of it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()
        self._size = 0

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._digest.update(data)
        self._size += len(data)
        return data

    def info(self) -> BlobInfo:
        return BlobInfo(self._size, self._digest.hexdigest())


def _copy_name(key: str, found: _Object) -> str:
    digest = hashlib.sha256(f"{key}\n{found.etag}\n{found.size}".encode()).hexdigest()
    return digest[:40] + PurePosixPath(key).suffix


def _bare(etag: str) -> str:
    return etag.strip('"')
