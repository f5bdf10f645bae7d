"""Error messages for the responses of an S3-compatible store.

Only a response's code and status are repeated; its text may contain signed data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from osmosis_ai.platform.blobs.store import BlobStoreBusy, BlobStoreError, BlobStoreSilent
from osmosis_ai.platform.s3_address import S3Address

_CREDENTIALS = frozenset(
    {
        *(
            "InvalidAccessKeyId",
            "SignatureDoesNotMatch",
            "ExpiredToken",
            "InvalidToken",
            "TokenRefreshRequired",
        ),
        *("ExpiredTokenException", "InvalidClientTokenId", "UnrecognizedClientException"),
    }
)
_FULL = frozenset(
    {
        *("XMinioStorageFull", "InsufficientCapacity", "InsufficientStorage", "QuotaExceeded"),
        *("XMinioAdminBucketQuotaExceeded", "ServiceQuotaExceeded", "StorageFull", "BucketQuotaExceeded"),
    }
)
_ELSEWHERE = frozenset(
    {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301"}
)
_BROKEN_OFF = frozenset({"ConnectionClosedError", "IncompleteReadError", "ResponseStreamingError"})
_UNREACHABLE = frozenset(
    {
        *("EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError"),
        *("ConnectionError", "HTTPClientError"),
    }
)
_NO_CREDENTIALS = frozenset({"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"})
_CODE = re.compile(r"[A-Za-z0-9.]{1,64}")
_ALWAYS_SAID: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("PutObject", "UploadPart", "CompleteMultipartUpload"), ("ETag",)),
    **dict.fromkeys(("GetObject", "HeadObject"), ("ETag", "ContentLength")),
    "CreateMultipartUpload": ("UploadId",),
}
"""What every store says when it has done what was asked, by operation."""
_LISTS = frozenset({"ListObjectsV2", "ListParts", "ListMultipartUploads"})


@contextmanager
def speaking(address: S3Address, doing: str) -> Iterator[None]:
    """Turn what boto3 raises into what the platform says."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        raise refusal(address, doing, *code_and_status(error)) from None
    except (BotoCoreError, Boto3Error) as error:
        # `from None`, here and above: what is behind it repeats URLs and headers.
        raise _no_answer(address, type(error).__name__) from None


def require_store(address: S3Address, operation: str, http_response: Any, parsed: Mapping[str, Any]) -> None:
    """Verify that a response comes from a store: a proxy may report success without storing anything."""
    if http_response.status_code >= 300:
        return
    lacks = any(parsed.get(name) in (None, "") for name in _ALWAYS_SAID.get(operation, ()))
    # The body of what is read is not here yet; it has the type that was asked for.
    has_body = operation == "GetObject" or bool(http_response.content)
    is_page = has_body and "html" in http_response.headers.get("content-type", "").lower()
    if lacks or is_page or (operation in _LISTS and not has_body):
        raise BlobStoreBusy(
            f"what answers for {address.shown} is not a store just now; it is asked again later."
        )


def code_and_status(error: Exception) -> tuple[str, int]:
    """Return the code and the HTTP status of a refusal (``botocore.exceptions.ClientError``)."""
    response = getattr(error, "response", {})
    code = str(response.get("Error", {}).get("Code", ""))
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return code if _CODE.fullmatch(code) else "", int(status)


def refusal(address: S3Address, doing: str, code: str, status: int) -> BlobStoreError:
    """Return what to raise for an answer."""
    answer = f"{address.shown} answered {status} {code}".rstrip()
    if code == "NoSuchBucket":
        return BlobStoreError(
            f"{address.shown} does not exist.", hint="create the bucket, or correct OSMOSIS_BLOBS_URL"
        )
    if code in _CREDENTIALS:
        return BlobStoreError(
            f"{address.shown} refuses the platform's credentials ({code}).",
            hint="start the platform with valid ones, as boto3 finds them",
        )
    if code in _FULL or status == 507:
        return BlobStoreError(f"{address.shown} is full: nothing was stored.", hint="make room in it")
    if code == "RequestTimeTooSkewed":
        return BlobStoreError(f"{answer}: this machine's clock is wrong.", hint="set the clock")
    if code in _ELSEWHERE or status == 301:
        return BlobStoreError(f"{answer}: it is in another region.", hint="add region=… to OSMOSIS_BLOBS_URL")
    if status in (401, 403, 405):
        return BlobStoreError(
            f"the platform's credentials may not {doing} in {address.shown} ({code or status}).",
            hint="docs/self-hosting.md has the policy that the bucket needs",
        )
    if status == 500 and doing == "write":
        # Stores that know no code for it say so of a disk that is full, or may not be written to.
        return BlobStoreBusy(
            f"{answer} and stored nothing: it fails, is full, or takes no files, and its own log says which. It is asked "
            "again later."
        )
    if status >= 500 or status == 429 or code in ("SlowDown", "RequestTimeout"):
        return BlobStoreBusy(f"{answer}; it is asked again later.")
    return BlobStoreError(f"{answer}, and did not {doing}.")


def _no_answer(address: S3Address, kind: str) -> BlobStoreError:
    if kind in _NO_CREDENTIALS:
        return BlobStoreError(
            f"there are no credentials for {address.shown}.",
            hint="give them as boto3 finds them: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role",
        )
    if kind == "SSLError":
        return BlobStoreError(
            f"the certificate of {address.shown} is not trusted.", hint="name its authority in AWS_CA_BUNDLE"
        )
    if kind in _BROKEN_OFF:
        return BlobStoreBusy(f"{address.shown} broke off its answer ({kind}); it is asked again later.")
    if kind in _UNREACHABLE or kind.endswith(("TimeoutError", "ConnectionError")):
        return BlobStoreSilent(f"{address.shown} cannot be reached ({kind}); it is asked again later.")
    return BlobStoreError(f"{address.shown} cannot be used ({kind}).")
