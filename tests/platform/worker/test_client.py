"""The worker's client over real connections: retries, errors, bytes, and where its tokens go."""

from __future__ import annotations

import hashlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse

from osmosis_ai._version import __version__
from osmosis_ai.api.connections import Waits
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.models.workers import (
    ClaimRequest,
    FinishRequest,
    InputDownload,
    ReleaseRequest,
    SyncRequest,
    UploadGrant,
)
from osmosis_ai.api.transfer import TransferError
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.runs.lifecycle import (
    JournalOffsetError,
    LeaseLostError,
    UploadGoneError,
    UploadLimitError,
)
from osmosis_ai.platform.worker import client as client_module
from osmosis_ai.platform.worker.client import (
    CredentialRefusedError,
    NoPlatformError,
    OutgoingBlob,
    PlatformUnreachableError,
    StoreAwayError,
    StoredBytesError,
    WorkerClient,
)
from osmosis_ai.processes.addresses import listen
from tests.platform.worker.fake_platform import ASSIGNMENT, LEASE, OFFSET_AT_7, FakePlatform, refusal

CLAIM = ClaimRequest(claim_id="a" * 32, sdk_version=__version__)
TOKEN = SecretStr(LEASE)
ROWS = InputDownload(url="/blobs/rows", size=4, sha256=hashlib.sha256(b"rows").hexdigest())
TAGGED = {"ETag": '"tag"'}
Call = Callable[[WorkerClient], Any]
ENDS: dict[str, Any] = {"finish": FinishRequest(outcome="finished"), "release": ReleaseRequest()}
CALLS: dict[str, Call] = {
    "claim": lambda client: client.claim(CLAIM),
    "sync": lambda client: client.sync("shd_1", TOKEN, SyncRequest()),
    "finish": lambda client: client.end("shd_1", TOKEN, ENDS["finish"], lasting_s=0),
    "release": lambda client: client.end("shd_1", TOKEN, ENDS["release"], lasting_s=0),
}


@pytest.fixture
def client(worker_client: WorkerClient) -> WorkerClient:
    return worker_client


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is tried three times, without a pause."""
    monkeypatch.setattr(client_module, "_WAITS", Waits((0.0, 0.0)))
    monkeypatch.setattr(client_module, "_BLOB_WAITS", Waits((0.0, 0.0)))


def test_each_call_carries_its_own_token(client: WorkerClient, platform: FakePlatform) -> None:
    assert client.claim(CLAIM).assignment is None
    platform.replies = [JSONResponse({"assignment": ASSIGNMENT, "next_poll_s": 3})]
    reply = client.claim(CLAIM)
    assert reply.assignment is not None and reply.assignment.secrets["KEY"].get_secret_value()
    for call in CALLS.values():
        call(client)
    assert [(each.call, each.headers["authorization"]) for each in platform.asked] == [
        *[("claim", "Bearer token-canary")] * 3,
        *[(f"shards/shd_1/{call}", f"Bearer {LEASE}") for call in ("sync", "finish", "release")],
    ]
    assert platform.asked[0].body == {"claim_id": "a" * 32, "sdk_version": __version__}
    assert "canary" not in repr([reply, client, CLAIM])


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (refusal(409, "LEASE_LOST"), LeaseLostError),
        (JSONResponse(OFFSET_AT_7, status_code=409), JournalOffsetError),
        (refusal(409, "JOURNAL_DIVERGED"), PlatformError),
        (refusal(409, "UPLOAD_GONE"), UploadGoneError),
        (refusal(409, "UPLOAD_LIMIT"), UploadLimitError),
        (refusal(401, "TOKEN_REVOKED"), CredentialRefusedError),
        (refusal(403, "WORKER_SCOPE"), CredentialRefusedError),
        (refusal(426, "WORKER_PROTOCOL"), CredentialRefusedError),
        (refusal(400, "VALIDATION"), PlatformError),
        (refusal(500, "INTERNAL"), PlatformUnreachableError),
        (refusal(503), PlatformUnreachableError),
        (refusal(503, store_away=True), StoreAwayError),
        (JSONResponse({"error": f"{LEASE} token-canary"}, status_code=500), PlatformUnreachableError),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_each_refusal_is_an_error_of_its_kind_without_the_token(
    client: WorkerClient,
    platform: FakePlatform,
    caplog: pytest.LogCaptureFixture,
    call: str,
    reply: Response,
    error: type[OsmosisError],
) -> None:
    caplog.set_level(logging.DEBUG)
    platform.replies = [reply] * 3
    with pytest.raises(error) as caught:
        CALLS[call](client)
    assert type(caught.value) is error
    assert caught.value.message
    if isinstance(caught.value, JournalOffsetError):
        assert caught.value.stored == 7
    shown = repr(caught.value) + caught.value.message + str(caught.value.hint) + str(caught.value.details)
    own = "token-canary" if call == "claim" else LEASE
    assert own not in shown + caplog.text
    # A busy platform is asked again; a sync is tried once, since the next one replaces it.
    is_repeated = reply.status_code == 503 and call != "sync"
    assert len(platform.asked) == (3 if is_repeated else 1)


@pytest.mark.parametrize(
    "answer",
    [
        Response(status_code=204),
        HTMLResponse("<p>no</p>", status_code=403),
        Response(status_code=401),
        Response(status_code=404),
        Response(status_code=405),
        Response(status_code=501),
        Response(status_code=307, headers={"Location": "/blobs/stolen"}),
        JSONResponse({"status": "ok"}),
        JSONResponse(["ok"]),
    ],
    ids=lambda answer: f"{answer.status_code}-{answer.body[:3].decode()}",
)
def test_a_server_that_is_no_platform(client: WorkerClient, platform: FakePlatform, answer: Response) -> None:
    platform.replies = [answer]
    with pytest.raises(NoPlatformError, match="no platform accepts workers at this address"):
        client.claim(CLAIM)
    assert client.claim(CLAIM).assignment is None
    platform.replies = [answer]
    with pytest.raises(PlatformUnreachableError, match="not a platform now"):
        client.claim(CLAIM)
    assert {each.call for each in platform.asked} == {"claim"}, "a redirect is not followed"


@pytest.mark.parametrize("call", ["finish", "release"])
def test_the_last_call_is_repeated_for_a_lease(
    client: WorkerClient, platform: FakePlatform, call: str
) -> None:
    platform.replies = [refusal(503 if number % 2 else 429) for number in range(20)]
    assert client.end("shd_1", TOKEN, ENDS[call], lasting_s=60).status == "finished"
    assert len(platform.asked) == 21
    platform.replies = [refusal(503) for _ in range(20)]
    with pytest.raises(PlatformUnreachableError):
        CALLS[call](client)
    assert len(platform.asked) == 24


def test_a_platform_that_does_not_answer_is_unreachable_in_time(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = WorkerClient(f"http://127.0.0.1:{silent.getsockname()[1]}", "token-canary")
        began = time.monotonic()
        with pytest.raises(PlatformUnreachableError, match="unreachable") as caught:
            client.sync("shd_1", TOKEN, SyncRequest(), timeout_s=0.1)
        assert time.monotonic() - began < 10, "the default is 20 s"
        client.close()
    missing = [f"http+unix://{str(tmp_path).replace('/', '%2F')}%2Fnone.sock"]
    with listen("127.0.0.1", 0) as closed:
        missing.append(f"http://127.0.0.1:{closed.getsockname()[1]}")
    for address in missing:
        client = WorkerClient(address, "token-canary")
        with pytest.raises(PlatformUnreachableError, match="unreachable") as caught:
            client.claim(CLAIM)
        assert caught.value.is_infrastructure and "canary" not in repr(caught.value)
        client.close()


def test_a_large_body_is_packed(client: WorkerClient, platform: FakePlatform) -> None:
    client.sync("shd_1", TOKEN, SyncRequest(environment="x" * 10_000))
    client.sync("shd_1", TOKEN, SyncRequest(environment="x"))
    large, small = platform.asked
    assert large.body == {"environment": "x" * 10_000} and int(large.headers["content-length"]) < 1000
    assert large.headers["content-encoding"] == "gzip" and "content-encoding" not in small.headers


@pytest.mark.parametrize("call", ["sync", "finish", "release"])
@pytest.mark.parametrize("body", [b"", b"[]", b"<p>hello</p>", b'{"status": "ok"}', b'{"stop": "maybe"}'])
def test_a_reply_of_another_shape(
    client: WorkerClient, platform: FakePlatform, call: str, body: bytes
) -> None:
    platform.replies = [Response(body)] * 3
    with pytest.raises(PlatformUnreachableError):
        CALLS[call](client)


def test_a_reply_without_end(
    client: WorkerClient, platform: FakePlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_LARGEST_REPLY_BYTES", 1 << 20)

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(16):
            yield bytes(1 << 18)

    platform.replies = [StreamingResponse(endless())]
    with pytest.raises(PlatformUnreachableError, match="too long"):
        client.claim(CLAIM)


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("run", {"id": "../../other"}),
        ("run", {"id": "-c"}),
        ("run", {"name": ".."}),
        ("run", {"name": "a\x1b[31m"}),
        ("run", {"rollout_name": "../../.ssh"}),
        ("shard", {"id": "../x"}),
        ("shard", {"count": 0}),
        ("lease", {"term_s": 0}),
        ("", {"dataset_extension": "../../a"}),
        ("", {"next_poll_s": -1}),
    ],
)
def test_an_assignment_with_hostile_values_is_refused(
    client: WorkerClient, platform: FakePlatform, part: str, change: dict[str, Any]
) -> None:
    changed = {part: {**ASSIGNMENT[part], **change}} if part else change
    platform.replies = [JSONResponse({"assignment": {**ASSIGNMENT, **changed}, "next_poll_s": 1})]
    with pytest.raises(OsmosisError, match="the claim") as caught:
        client.claim(CLAIM)
    assert "canary" not in repr(caught.value) + str(caught.value.details)


# -- bytes -----------------------------------------------------------------------------------------


def test_the_journal_is_downloaded_whole_or_not_at_all(
    client: WorkerClient, platform: FakePlatform, tmp_path: Path
) -> None:
    target = tmp_path / "new" / "events.jsonl"
    for reply, error in (
        (refusal(409, "LEASE_LOST"), LeaseLostError),
        (Response(b"x" * 100), PlatformUnreachableError),
    ):
        platform.replies = [reply]
        with pytest.raises(error):
            client.journal("shd_1", TOKEN, target, most_bytes=5)
        assert not target.exists()
    platform.replies = [refusal(503), Response(b"lines")]
    client.journal("shd_1", TOKEN, target, most_bytes=5)
    assert target.read_bytes() == b"lines"
    assert platform.asked[-1].headers["authorization"] == f"Bearer {LEASE}"


def test_uploads_go_where_they_are_granted_without_a_token(
    client: WorkerClient, platform: FakePlatform
) -> None:
    contents = [b"", b"x", b"0123456789", b"known"]
    blobs = [OutgoingBlob.of(f"b{number}", BytesIO(content)) for number, content in enumerate(contents)]
    assert [blob.sha256 for blob in blobs] == [hashlib.sha256(each).hexdigest() for each in contents]
    parts = {"further_urls": ["/blobs/part2", "/blobs/part3"], "part_size": 4, "received": {2: "tag-2"}}
    grants = [
        UploadGrant(name="b0", id="u0", url="/blobs/b0"),
        UploadGrant(name="b1", id="u1", url="/blobs/b1"),
        UploadGrant(name="b2", id="u2", url="/blobs/part1", **parts),
        UploadGrant(name="b3", id="u3", url=""),
    ]
    sent = client.send_all(list(zip(blobs, grants, strict=True)), lasting_s=0)
    assert platform.blobs == {"b0": b"", "b1": b"x", "part1": b"0123", "part3": b"89"}
    assert [(each.name, each.id, each.etag, each.further_etags) for each in sent] == [
        ("b0", "u0", "tag", []),
        ("b1", "u1", "tag", []),
        ("b2", "u2", "tag", ["tag-2", "tag"]),
        ("b3", "u3", "", []),
    ]
    assert all("authorization" not in each.headers for each in platform.asked)


@pytest.mark.parametrize(
    ("way", "answer", "error", "tries"),
    [
        ("fetch", Response(status_code=403), PlatformUnreachableError, 3),
        ("fetch", Response(status_code=500), StoreAwayError, 3),
        ("fetch", HTMLResponse("<p>We are back soon.</p>"), StoreAwayError, 3),
        ("fetch", Response(b"ro", headers=TAGGED), StoredBytesError, 1),
        ("fetch", Response(b"sowr", headers=TAGGED), StoredBytesError, 1),
        ("fetch", Response(status_code=404), StoredBytesError, 1),
        ("send", Response(status_code=403), PlatformUnreachableError, 1),
        ("send", Response(status_code=410), PlatformUnreachableError, 1),
        ("send", Response(status_code=503), StoreAwayError, 3),
        ("send", HTMLResponse("<p>no store</p>"), StoreAwayError, 3),
        ("send", Response(status_code=413), TransferError, 1),
    ],
)
def test_a_transfer_that_fails_is_repeated_if_the_store_may_recover(
    client: WorkerClient,
    platform: FakePlatform,
    tmp_path: Path,
    way: str,
    answer: Response,
    error: type[OsmosisError],
    tries: int,
) -> None:
    blob, grant = OutgoingBlob.of("a", BytesIO(b"rows")), UploadGrant(name="a", id="u", url="/blobs/rows")

    def transfer() -> None:
        if way == "fetch":
            client.fetch(ROWS, tmp_path / "rows", lasting_s=0)
        else:
            assert client.send_all([(blob, grant)], lasting_s=0)[0].etag == "tag"

    platform.stored = [answer]
    with pytest.raises(error) as failed:
        transfer()
    assert type(failed.value) is error and len(platform.asked) == tries
    assert list(tmp_path.iterdir()) == []
    if way == "fetch":
        assert failed.value.is_infrastructure and failed.value.hint is None, "the hint is about a command"
    platform.stored = [*[answer] * (tries - 1), Response(b"rows", headers=TAGGED)]
    transfer()
    if way == "fetch":
        assert (tmp_path / "rows").read_bytes() == b"rows"
    else:
        assert platform.asked[-1].body == b"rows"
