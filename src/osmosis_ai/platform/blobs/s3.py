"""Blobs in a bucket of an S3-compatible store.

Clients transfer directly with presigned URLs. Only operations that every such store supports are used: no
conditional writes, no checksums, no bulk deletion. Keys are therefore never reused, digests are computed by
reading back, and every reply is checked against the object's known data. Blobs are read in ranges; a larger read
goes through a local copy.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import re
import secrets
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, NamedTuple, cast
from urllib.parse import urlsplit

from osmosis_ai.api.connections import longest_transfer_s
from osmosis_ai.api.platform_url import is_loopback
from osmosis_ai.platform.blobs.local import IncomingFile, make_directories, sweep
from osmosis_ai.platform.blobs.signing import OCTET_STREAM, content_disposition
from osmosis_ai.platform.blobs.store import (
    BlobError,
    BlobInfo,
    BlobNotFound,
    BlobStoreBusy,
    BlobStoreError,
    BlobStoreSilent,
    BlobUpload,
    HashedStream,
    Part,
    PartsMismatch,
    UploadNotFound,
    check_key,
    measure,
)
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.s3_address import S3Address

RANGE_BYTES = 8 << 20
"""How much is read at a time; a blob of this size is read in one piece and needs no copy."""
# At most 10,000 parts: 160 GB.
_PART_BYTES = 16 << 20
# Callers retry: a worker, a client, the next round of maintenance.
_ATTEMPTS = 2
# boto3 does not repeat a request whose body breaks off.
_BODY_ATTEMPTS = 3
_DELETING_THREADS = 8
# The status of a deletion.
_DELETED = 204
_BLOCK_BYTES = 1 << 20


class S3BlobStore:
    def __init__(
        self, address: S3Address, clock: Clock, copies_dir: Path, *, attempts: int = _ATTEMPTS
    ) -> None:
        self._address = address
        self._clock = clock
        self._copies = BlobCopies(copies_dir)
        self._attempts = attempts
        self._gate = _StoreGate(address.shown)

    def check(self) -> None:
        key = f"checks/{secrets.token_hex(8)}"
        self.put(key, io.BytesIO(b"osmosis"))
        with self.open(key) as stored:
            if stored.read() != b"osmosis":
                raise BlobStoreError(f"{self._address.shown} does not return the bytes that were stored.")
        list(self.keys("checks"))
        self.delete(key)

    def put(self, key: str, stream: BinaryIO) -> BlobInfo:
        where, source = self._where(key), HashedStream(stream)
        from boto3.s3.transfer import TransferConfig

        # Without threads, only one part is in memory at a time.
        transfer = TransferConfig(
            multipart_threshold=_PART_BYTES, multipart_chunksize=_PART_BYTES, use_threads=False
        )
        with self._request("write"):
            self._clients.patient.upload_fileobj(
                source, **where, ExtraArgs={"ContentType": OCTET_STREAM}, Config=transfer
            )
        return source.info()

    def open(self, key: str) -> BinaryIO:
        found, first = self._read_range(key, 0, RANGE_BYTES)
        if len(first) == found.size:
            return io.BytesIO(first)

        with self._copies.scratch() as copy:
            copy.write(first)
            self._fetch(key, found, copy, RANGE_BYTES)
            copy.seek(0)
            return os.fdopen(os.dup(copy.fileno()), "rb")

    def read(self, key: str, offset: int, length: int) -> bytes:
        # A range cannot be empty.
        return self._read_range(key, offset, max(1, length))[1][:length]

    def size(self, key: str) -> int:
        return self._look_up(key).size

    def delete(self, key: str) -> None:
        where = self._where(key)
        with self._request("delete"):
            reply = self._clients.own.delete_object(**where)
        self._require_deleted(reply, lambda: self._look_up(key))

    def delete_below(self, prefix: str) -> None:
        with ThreadPoolExecutor(_DELETING_THREADS, thread_name_prefix="osmosis-blob-deletion") as pool:
            for _ in pool.map(self.delete, self.keys(prefix)):
                pass

    def keys(self, prefix: str) -> Iterator[str]:
        below = f"{self._address.key_of(check_key(prefix))}/" if prefix else self._address.key_of("")
        for found in self._listed("list_objects_v2", "Contents", Prefix=below):
            if (key := self._own_key(found["Key"])) is not None:
                yield key

    @contextmanager
    def local_copy(self, key: str) -> Iterator[Path]:
        found = self._look_up(key)
        digest = hashlib.sha256(f"{key}\n{found.etag}\n{found.size}".encode()).hexdigest()
        name = digest[:40] + PurePosixPath(key).suffix
        with self._copies.open(name, lambda incoming: self._fetch(key, found, incoming, 0)) as path:
            yield path

    def signed_get_url(self, key: str, *, filename: str, ttl: timedelta) -> str:
        shape = {
            "ResponseContentDisposition": content_disposition(filename),
            "ResponseContentType": OCTET_STREAM,
        }
        return self._presigned("get_object", {**self._where(key), **shape}, ttl)

    def begin_upload(self, key: str) -> BlobUpload:
        where = self._where(key)
        with self._request("write"):
            begun = self._clients.own.create_multipart_upload(**where, ContentType=OCTET_STREAM)
        return BlobUpload(begun["UploadId"], key)

    def signed_part_url(self, upload: BlobUpload, part_number: int, *, size: int, ttl: timedelta) -> str:
        part = {"PartNumber": part_number, "UploadId": upload.id, "ContentLength": size}
        return self._presigned("upload_part", {**self._where(upload.key), **part}, ttl)

    def parts(self, upload: BlobUpload) -> Mapping[int, Part]:
        key = self._address.key_of(check_key(upload.key))
        try:
            found = self._listed("list_parts", "Parts", Key=key, UploadId=upload.id)
            return {part["PartNumber"]: Part(part["ETag"].strip('"'), part["Size"]) for part in found}
        except BlobNotFound:
            raise UploadNotFound from None

    def complete_upload(self, upload: BlobUpload, etags: Sequence[str]) -> BlobInfo:
        # A process that was killed afterwards may have completed it; then there is a blob.
        with suppress(UploadNotFound, BlobNotFound):
            received = self.parts(upload)
            for number, etag in enumerate(etags, 1):
                if number not in received or received[number].etag != etag:
                    raise PartsMismatch(f"part {number} was not received with the ETag named.")
            parts = [{"PartNumber": number, "ETag": f'"{etag}"'} for number, etag in enumerate(etags, 1)]
            with self._request("write", upload.key):
                self._clients.patient.complete_multipart_upload(
                    **self._where(upload.key), UploadId=upload.id, MultipartUpload={"Parts": parts}
                )
        try:
            with self.open(upload.key) as stored:
                return measure(stored)
        except BlobNotFound:
            raise UploadNotFound from None

    def abort_upload(self, upload: BlobUpload) -> None:
        try:
            with self._request("delete", upload.key):
                reply = self._clients.own.abort_multipart_upload(
                    **self._where(upload.key), UploadId=upload.id
                )
        except BlobNotFound:
            return
        self._require_deleted(reply, lambda: self.parts(upload))

    def unfinished_uploads(self) -> Iterator[tuple[BlobUpload, datetime]]:
        prefix = self._address.key_of("")
        # Some stores answer 404 for a bucket that never had an upload.
        with suppress(BlobNotFound):
            for found in self._listed("list_multipart_uploads", "Uploads", Prefix=prefix):
                if (key := self._own_key(found["Key"])) is not None:
                    yield BlobUpload(found["UploadId"], key), found["Initiated"]

    def sweep(self) -> None:
        sweep(self._copies.incoming, now=self._clock.now())

    def has_credentials_of_machine(self) -> bool:
        """Return whether the credentials come from the cloud's metadata address, which every program on this machine can read."""
        return self._clients.by_machine

    def _look_up(self, key: str) -> Part:
        from botocore.exceptions import ClientError

        found = None
        with self._request("read"):
            try:
                found = self._clients.own.head_object(**self._where(key))
            except ClientError as error:
                if _code_and_status(error)[1] not in (403, 404):
                    raise
        if found is None:
            # The reply to a HEAD has no body that could name the missing thing: the object or the bucket.
            return self._read_range(key, 0, 1)[0]
        return Part(found["ETag"].strip('"'), found["ContentLength"])

    def _fetch(self, key: str, known: Part, target: IncomingFile | IO[bytes], start: int) -> None:
        for offset in range(start, known.size, RANGE_BYTES):
            found, block = self._read_range(key, offset, min(RANGE_BYTES, known.size - offset))
            if found != known:
                raise self._altered(key)
            target.write(block)

    def _read_range(self, key: str, offset: int, length: int) -> tuple[Part, bytes]:
        """Return what is known of the object, and up to ``length`` of its bytes from ``offset`` on."""
        from botocore.exceptions import BotoCoreError, ClientError

        wanted = {**self._where(key), "Range": f"bytes={offset}-{offset + length - 1}"}
        # With this type, a page is recognized.
        wanted["ResponseContentType"] = OCTET_STREAM
        for attempts_left in reversed(range(_BODY_ATTEMPTS)):
            with self._request("read", key):
                try:
                    reply = self._clients.own.get_object(**wanted)
                except ClientError as error:
                    # Empty objects, and offsets behind the end, have no bytes to request.
                    if _code_and_status(error)[1] != 416:
                        raise
                    break
                found = self._described(key, reply, length)
                try:
                    data = _read_body(reply["Body"], reply["ContentLength"], self._address.shown)
                except BotoCoreError:
                    if not attempts_left:
                        raise
                    continue
            if len(data) != min(length, found.size - offset):
                raise self._altered(key)
            return found, data
        found = self._look_up(key)
        if offset < found.size:
            raise self._altered(key)
        return found, b""

    def _described(self, key: str, reply: Mapping[str, Any], length: int) -> Part:
        """Return the object's properties from the headers of a reply, before its body is read."""
        size: int = reply["ContentLength"]
        if size > length:
            raise BlobStoreError(f"{self._address.shown} does not serve parts of an object.")
        total = str(reply.get("ContentRange", "")).rpartition("/")[2]
        if total and not (total.isascii() and total.isdigit()):
            raise self._altered(key)
        return Part(reply["ETag"].strip('"'), int(total) if total else size)

    def _altered(self, key: str) -> BlobStoreError:
        return BlobStoreError(
            f"the stored file {key} was changed or cut off in {self._address.shown}, and not by this platform.",
            hint="nothing else may write below its prefix",
        )

    def _require_deleted(self, reply: Mapping[str, Any], look: Callable[[], object]) -> None:
        """Look for what was deleted if the reply is unusual: a proxy in front of the store may answer anything."""
        if reply["ResponseMetadata"]["HTTPStatusCode"] != _DELETED:
            with suppress(BlobNotFound, UploadNotFound):
                look()
                raise BlobStoreBusy(
                    f"{self._address.shown} reported a deletion but deleted nothing; the platform retries later."
                )

    def _listed(self, operation: str, items: str, **options: Any) -> Iterator[Any]:
        paginator = self._clients.own.get_paginator(operation)
        pages = iter(paginator.paginate(Bucket=self._address.bucket, **options))
        while True:
            with self._request("list", options.get("Key") or options["Prefix"]):
                page = next(pages, None)
            if page is None:
                return
            yield from page.get(items, ())

    def _presigned(self, operation: str, named: Mapping[str, Any], ttl: timedelta) -> str:
        with _translated(self._address, "sign"):
            url = self._clients.public.generate_presigned_url(
                operation, Params=dict(named), ExpiresIn=max(1, int(ttl.total_seconds()))
            )
        return cast(str, url)

    @contextmanager
    def _request(self, doing: str, key: str | None = None) -> Iterator[None]:
        """Wait for a turn to send a request, and translate its failure; with a ``key``, 404 means that it is missing."""
        from botocore.exceptions import ClientError

        with self._gate.passing(), _translated(self._address, doing):
            try:
                yield
            except ClientError as error:
                code, status = _code_and_status(error)
                if code in _BAD_PARTS:
                    raise PartsMismatch("a part was not received with the ETag named.") from None
                if key is not None and status == 404 and code != "NoSuchBucket":
                    raise BlobNotFound(f"the stored file {key} is gone.") from None
                raise

    def _own_key(self, name: str) -> str | None:
        """Return the key of an object, None if it is not the platform's."""
        prefix = self._address.key_of("")
        try:
            return check_key(name[len(prefix) :]) if name.startswith(prefix) else None
        except ValueError:
            return None

    def _where(self, key: str) -> dict[str, Any]:
        return {"Bucket": self._address.bucket, "Key": self._address.key_of(check_key(key))}

    @cached_property
    def _clients(self) -> _Clients:
        with _translated(self._address, "connect"):
            return _connect(self._address, self._attempts)


_MOST_REQUESTS = 16
"""Requests under way: half of the threads that serve (``platform/app.py``)."""
_RETRY_AFTER_S = 5.0
"""How long an unresponsive store gets no request."""
_TURN_WITHIN_S = 5.0


class _StoreGate:
    """Limits concurrent requests, and refuses most while the store is unresponsive.

    Each request occupies one of the platform's few threads until it is answered. After an unanswered request, others
    are refused for a while, except for one probe. A thread that reads a blob while writing another needs one turn.
    """

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._turns = threading.BoundedSemaphore(_MOST_REQUESTS)
        self._thread = threading.local()
        self._deciding = threading.Lock()
        self._silent: BlobStoreSilent | None = None
        self._probe_at_s = 0.0

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Let one request through, and record whether it is answered."""
        # Never refused if this thread has a turn already: it may be the probe.
        is_first = not getattr(self._thread, "has_turn", False)
        if is_first:
            self._require_responsive()
            if not self._turns.acquire(timeout=_TURN_WITHIN_S):
                raise BlobStoreBusy(
                    f"{self._shown} is slow and too many requests are waiting for it; the platform retries later."
                )
            self._thread.has_turn = True
        try:
            yield
            self._record(None)
        except BlobError as error:
            self._record(error if isinstance(error, BlobStoreSilent) else None)
            raise
        finally:
            if is_first:
                self._thread.has_turn = False
                self._turns.release()

    def _require_responsive(self) -> None:
        with self._deciding:
            if self._silent is None:
                return
            now_s = time.monotonic()
            if now_s < self._probe_at_s:
                raise BlobStoreSilent(self._silent.message)
            # This request is the probe.
            self._probe_at_s = now_s + _RETRY_AFTER_S

    def _record(self, silent: BlobStoreSilent | None) -> None:
        with self._deciding:
            self._silent, self._probe_at_s = silent, time.monotonic() + _RETRY_AFTER_S


# How long the store may be silent: usually, and when it may have to assemble gigabytes.
_CONNECT_S, _SILENCE_S, _LONG_SILENCE_S = 5, 10, 60
_CONNECTIONS = 32
# boto3's names for the metadata of an instance and of a container, and for roles that are assumed with these.
_BY_MACHINE = ("iam-role", "container-role")
_SOURCES_OF_MACHINE = ("Ec2InstanceMetadata", "EcsContainer")


class _Clients(NamedTuple):
    """Connections, connections with longer timeouts, the URL signer, and whether the machine provided the credentials."""

    own: Any
    patient: Any
    public: Any
    by_machine: bool


def _connect(address: S3Address, attempts: int) -> _Clients:
    """Return clients that try each request ``attempts`` times; no connection is opened yet."""
    import boto3
    from botocore.config import Config
    from botocore.session import get_session

    # At more verbose levels, these log what they sign.
    for name in ("boto3", "botocore", "s3transfer", "urllib3"):
        logging.getLogger(name).setLevel(logging.WARNING)
    core = get_session()
    session = boto3.session.Session(botocore_session=core)
    region = address.region or session.region_name or "us-east-1"

    def client(endpoint: str, silence_s: int = _SILENCE_S) -> Any:
        config = Config(
            signature_version="s3v4",
            s3={"addressing_style": "path" if address.path_style else "virtual"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            connect_timeout=_CONNECT_S,
            read_timeout=silence_s,
            retries={"mode": "standard", "total_max_attempts": attempts},
            max_pool_connections=_CONNECTIONS,
            # No variable may replace the address, which was checked.
            ignore_configured_endpoint_urls=True,
            proxies={} if is_loopback(urlsplit(endpoint).hostname) else None,
        )
        made = session.client("s3", region_name=region, endpoint_url=endpoint or None, config=config)
        made.meta.events.register("after-call.s3", require_store)
        return made

    def require_store(http_response: Any, parsed: Any, model: Any, **_: Any) -> None:
        if http_response.status_code < 300 and not _is_from_store(model.name, http_response, parsed):
            raise BlobStoreBusy(
                f"{address.shown} did not reply like an S3 store (a proxy may have replied); the platform retries later."
            )

    own = client(address.endpoint)
    patient = client(address.endpoint, _LONG_SILENCE_S)
    public = client(address.public_endpoint) if address.public_endpoint else own
    return _Clients(own, patient, public, _are_by_machine(core))


def _are_by_machine(session: Any) -> bool:
    """Return whether every program of this machine can get these credentials, or those that assume their role."""
    credentials = session.get_credentials()
    if credentials is None or credentials.method != "assume-role":
        return credentials is not None and credentials.method in _BY_MACHINE
    profiles = session.full_config.get("profiles", {}).values()
    return any(profile.get("credential_source") in _SOURCES_OF_MACHINE for profile in profiles)


# Fields that every store includes in a successful reply, by operation.
_IN_EVERY_REPLY: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("PutObject", "UploadPart", "CompleteMultipartUpload"), ("ETag",)),
    **dict.fromkeys(("GetObject", "HeadObject"), ("ETag", "ContentLength")),
    "CreateMultipartUpload": ("UploadId",),
}
_LISTS = frozenset({"ListObjectsV2", "ListParts", "ListMultipartUploads"})


def _is_from_store(operation: str, http_response: Any, parsed: Mapping[str, Any]) -> bool:
    """Return whether a success is a store's: a proxy may report one without storing anything."""
    if any(parsed.get(name) in (None, "") for name in _IN_EVERY_REPLY.get(operation, ())):
        return False
    # The body of an object has not arrived yet; it has the type that was requested.
    has_body = operation == "GetObject" or bool(http_response.content)
    is_page = has_body and "html" in http_response.headers.get("content-type", "").lower()
    return not is_page and (has_body or operation not in _LISTS)


def _read_body(body: Any, size: int, shown: str) -> bytes:
    """Read a reply's body (``botocore.response.StreamingBody``) completely, within a deadline.

    A connection's timeout only covers silence. A store or proxy that sends a byte now and then would block a reader
    for days, and the few reader threads would soon be exhausted.
    """
    from botocore.exceptions import IncompleteReadError, ReadTimeoutError, ResponseStreamingError
    from urllib3.exceptions import HTTPError
    from urllib3.exceptions import ReadTimeoutError as Silence

    within_s = longest_transfer_s(size)
    until = time.monotonic() + within_s
    content = bytearray()
    # Unlike botocore's stream, the one that it wraps returns what has arrived.
    arriving = body._raw_stream
    # The oldest urllib3 that botocore supports lacks `read1`.
    next_block = getattr(arriving, "read1", arriving.read)
    try:
        while block := next_block(_BLOCK_BYTES):
            content += block
            if time.monotonic() > until:
                body.close()
                raise BlobStoreSilent(
                    f"{shown} is too slow: {len(content)} of {size} bytes received in {within_s:.0f} s; the platform retries later."
                )
    except Silence as error:
        raise ReadTimeoutError(endpoint_url=shown, error=error) from None
    except HTTPError as error:
        raise ResponseStreamingError(error=error) from None
    if len(content) != size:
        raise IncompleteReadError(actual_bytes=len(content), expected_bytes=size)
    return bytes(content)


# Codes of S3 and of compatible stores.
_BAD_PARTS = ("InvalidPart", "InvalidPartOrder", "EntityTooSmall")
_BAD_CREDENTIALS = re.compile(
    "InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken(Exception)?|InvalidToken|TokenRefreshRequired"
    "|InvalidClientTokenId|UnrecognizedClientException"
)
_FULL = re.compile(
    "(XMinio)?StorageFull|InsufficientCapacity|InsufficientStorage|(Service)?QuotaExceeded"
    "|(XMinioAdmin)?BucketQuotaExceeded"
)
_OTHER_REGION = (
    "PermanentRedirect",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
    "301",
)
# Names of botocore's exceptions.
_BROKEN_OFF = ("ConnectionClosedError", "IncompleteReadError", "ResponseStreamingError")
_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError")
_CODE = re.compile(r"[A-Za-z0-9.]{1,64}")


@contextmanager
def _translated(address: S3Address, doing: str) -> Iterator[None]:
    """Translate what boto3 raises. Its messages are not repeated: they may contain signed data."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    # `from None`, because the causes repeat URLs and headers.
    try:
        yield
    except ClientError as error:
        raise _refusal(address, doing, *_code_and_status(error)) from None
    except (BotoCoreError, Boto3Error) as error:
        raise _no_answer(address, type(error).__name__) from None


def _code_and_status(error: Exception) -> tuple[str, int]:
    response = getattr(error, "response", {})
    code = str(response.get("Error", {}).get("Code", ""))
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return code if _CODE.fullmatch(code) else "", int(status)


def _refusal(address: S3Address, doing: str, code: str, status: int) -> BlobStoreError:
    shown, answer = address.shown, f"{address.shown} answered {status} {code}".rstrip()
    if code == "NoSuchBucket":
        hint = "create the bucket, or correct OSMOSIS_BLOBS_URL"
        return BlobStoreError(f"{shown} does not exist.", hint=hint)
    if _BAD_CREDENTIALS.fullmatch(code):
        hint = "start the platform with valid credentials that boto3 can find"
        return BlobStoreError(f"{shown} refuses the platform's credentials ({code}).", hint=hint)
    if _FULL.fullmatch(code) or status == 507:
        return BlobStoreError(f"{shown} is full: nothing was stored.", hint="free space in the bucket")
    if code == "RequestTimeTooSkewed":
        return BlobStoreError(f"{answer}: this machine's clock is wrong.", hint="set the clock")
    if code in _OTHER_REGION or status == 301:
        return BlobStoreError(f"{answer}: it is in another region.", hint="add region=… to OSMOSIS_BLOBS_URL")
    if status in (401, 403, 405):
        hint = "see docs/platform/operate.md for the policy that the bucket needs"
        return BlobStoreError(
            f"the platform's credentials have no permission to {doing} in {shown} ({code or status}).",
            hint=hint,
        )
    if status == 500 and doing == "write":
        # Stores without a code for it report a full or read-only disk like this.
        return BlobStoreBusy(
            f"{answer} and stored nothing; see the store's own log for the reason. The platform retries later."
        )
    if status >= 500 or status == 429 or code in ("SlowDown", "RequestTimeout"):
        return BlobStoreBusy(f"{answer}; the platform retries later.")
    return BlobStoreError(f"{answer}, and did not {doing}.")


def _no_answer(address: S3Address, kind: str) -> BlobStoreError:
    shown = address.shown
    if kind in _NO_CREDENTIALS:
        hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or configure a profile or a role"
        return BlobStoreError(f"no credentials found for {shown}.", hint=hint)
    if kind == "SSLError":
        hint = "set AWS_CA_BUNDLE to the file with its CA certificate"
        return BlobStoreError(f"the certificate of {shown} is not trusted.", hint=hint)
    if kind in _BROKEN_OFF:
        return BlobStoreBusy(
            f"{shown} closed the connection during its reply ({kind}); the platform retries later."
        )
    if kind == "HTTPClientError" or kind.endswith(("TimeoutError", "ConnectionError")):
        return BlobStoreSilent(f"{shown} cannot be reached ({kind}); the platform retries later.")
    return BlobStoreError(f"{shown} cannot be used ({kind}).")


LIMIT_BYTES = 8 << 30
"""The size of the cache (8 GiB); a larger copy stays while it is read."""


class BlobCopies:
    """Local copies of blobs; only one process uses the directory."""

    def __init__(self, root: Path, *, limit_bytes: int = LIMIT_BYTES) -> None:
        self.incoming = root / "incoming"
        self._copies = root / "copies"
        self._limit = limit_bytes
        self._lock = threading.Lock()
        self._in_use: Counter[str] = Counter()

    def scratch(self) -> IO[bytes]:
        self.incoming.mkdir(mode=0o700, parents=True, exist_ok=True)
        return tempfile.TemporaryFile(dir=self.incoming)

    @contextmanager
    def open(self, name: str, fetch: Callable[[IncomingFile], None]) -> Iterator[Path]:
        """Provide the copy ``name`` and keep it until the block ends."""
        path = self._copies / name
        with self._lock:
            self._in_use[name] += 1
        try:
            if not path.exists():
                make_directories(path.parent)
                with IncomingFile(self.incoming) as incoming:
                    fetch(incoming)
                    incoming.seal()
                    incoming.move_to(path)
            # Change only the access time: other programs identify the file by its modification time.
            os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
            self._trim()
            yield path
        finally:
            with self._lock:
                self._in_use -= Counter([name])
            self._trim()

    def _trim(self) -> None:
        """Remove the least recently used copies until the rest is small enough."""
        with self._lock, suppress(FileNotFoundError):
            found = [(path, path.stat()) for path in self._copies.iterdir()]
            excess = sum(status.st_size for _, status in found) - self._limit
            for path, status in sorted(found, key=lambda each: each[1].st_atime_ns):
                if excess > 0 and not self._in_use[path.name]:
                    path.unlink()
                    excess -= status.st_size
