"""The worker's side of the protocol over a socket, with a platform and a store that do what each test says."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.retrying import Waits
from osmosis_ai.api.transfer import TransferError
from osmosis_ai.api.wire.workers import (
    Assignment,
    InputDownload,
    JournalSegment,
    SyncReply,
    UploadGrant,
    WorkerOffer,
)
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.runs.lifecycle import JournalOffsetError, LeaseLostError
from osmosis_ai.platform.runs.work import http_link
from osmosis_ai.platform.runs.work.http_link import HttpLink, StoredBytesError
from osmosis_ai.platform.runs.work.platform_link import (
    CredentialRefusedError,
    NoPlatformError,
    PlatformUnreachableError,
    StoreAwayError,
)
from osmosis_ai.platform.runs.work.run_channel import OutgoingBlob, RunChannel
from tests.platform.runs.work.socket_server import SocketServer

REPLY = SyncReply(stop=False, term_s=30, next_s=1)
DIGEST = "0" * 64
OFFER = WorkerOffer(claim_id="a" * 32, sdk_version="0.3.18")
ROWS = InputDownload(url="/blobs/rows", size=4, sha256=hashlib.sha256(b"rows").hexdigest())
GRANT = UploadGrant(name="files/a", id="upload", url="/blobs/sent")
NO_RUN = {"status_code": 204, "headers": {"X-Osmosis-Worker-Protocol": "1"}}
TAGGED = {"ETag": '"tag"'}
AWAY = {"error": "away", "code": "AWAY"}
ASSIGNMENT = {
    "run": {
        "id": "run_1",
        "name": "a",
        "kind": "eval",
        "workspace_id": "ws",
        "request": {},
        "commit_sha": "c" * 40,
        "rollout_name": "r",
        "dataset_name": "d",
        "model_path": "osmosis/tiny",
        "seed": 0,
        "selection": {},
    },
    "lease": {"token": "lease", "attempt": 1, "term_s": 30},
    "secrets": {"KEY": "value"},
    "dataset": {"url": "/blobs/d", "size": 1, "sha256": DIGEST},
    "dataset_extension": "jsonl",
    "journal": {"generation": 0, "bytes": 0},
}


class Desk:
    """Answers as it is told to, and remembers what it was asked.

    Attributes:
        replies: to exchanges, one after the other; then that there is nothing to say.
        stores: answers of the store, one after the other, the last one again and again; none: it does its part.
    """

    def __init__(self) -> None:
        self.replies: list[Response] = []
        self.stores: list[Response] = []
        self.asked: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.blobs = {"rows": b"rows"}
        self.app = Starlette(
            routes=[
                Route("/api/workers/v1/{rest:path}", self.exchange, methods=["POST"]),
                Route("/blobs/{name}", self.blob, methods=["GET", "PUT"]),
            ]
        )

    async def exchange(self, request: Request) -> Response:
        body = await request.body()
        if request.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.asked.append((request.url.path, dict(request.headers), json.loads(body)))
        return self.replies.pop(0) if self.replies else JSONResponse(REPLY.to_wire())

    async def blob(self, request: Request) -> Response:
        self.asked.append((request.url.path, dict(request.headers), {}))
        name, content = request.path_params["name"], await request.body()
        if self.stores:
            return self.stores.pop(0) if len(self.stores) > 1 else self.stores[0]
        if request.method == "PUT":
            self.blobs[name] = content
            return Response(headers=TAGGED)
        return Response(self.blobs[name], headers=TAGGED)


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def link(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpLink]:
    """A link that tries everything three times, without a pause."""
    monkeypatch.setattr(http_link, "_WAITS", Waits((0.0, 0.0)))
    monkeypatch.setattr(http_link, "_BLOB_WAITS", Waits((0.0, 0.0)))
    with SocketServer(desk.app) as server:
        made = HttpLink(server.address, "ticket")
        monkeypatch.setattr(made, "_term_s", 1e-6)
        yield made
        made.close()


@pytest.fixture
def channel(link: HttpLink) -> RunChannel:
    return RunChannel(link, Assignment.model_validate(ASSIGNMENT))


def test_a_claim_brings_the_secrets_of_its_run(link: HttpLink, desk: Desk) -> None:
    desk.replies = [Response(**NO_RUN), JSONResponse(ASSIGNMENT)]  # type: ignore[arg-type]
    assert link.claim(OFFER) is None
    claimed = link.claim(OFFER)
    assert claimed is not None and claimed.secrets["KEY"].get_secret_value() == "value"
    path, headers, body = desk.asked[-1]
    assert (path, headers["authorization"]) == ("/api/workers/v1/claim", "Bearer ticket")
    assert body == {"claim_id": "a" * 32, "sdk_version": "0.3.18"}


@pytest.mark.parametrize(
    "answer",
    [
        Response(status_code=204),
        HTMLResponse("<p>no</p>", status_code=403),
        Response(status_code=401),
        JSONResponse({"status": "ok"}),
        JSONResponse(["ok"]),
    ],
)
def test_a_server_that_is_no_platform(link: HttpLink, desk: Desk, answer: Response) -> None:
    desk.replies = [answer]
    with pytest.raises(NoPlatformError, match="no platform accepts workers at this address"):
        link.claim(OFFER)
    desk.replies = [Response(**NO_RUN), answer, answer, answer]  # type: ignore[arg-type]
    assert link.claim(OFFER) is None
    if answer.status_code in (200, 401):
        with pytest.raises(PlatformUnreachableError, match="is not a platform just now"):
            link.claim(OFFER)


def test_a_token_goes_nowhere_that_the_platform_redirects_to(link: HttpLink, desk: Desk) -> None:
    desk.replies = [Response(status_code=307, headers={"Location": "/blobs/stolen"})]
    with pytest.raises(OsmosisError) as refused:
        link.claim(OFFER)
    assert [path for path, _, _ in desk.asked] == ["/api/workers/v1/claim"]
    assert "ticket" not in refused.value.message


def test_a_store_that_is_unavailable(link: HttpLink, channel: RunChannel, desk: Desk) -> None:
    def busy(code: str, **more: Any) -> list[Response]:
        return [JSONResponse({"error": "busy", "code": code, **more}, status_code=503) for _ in range(3)]

    for ask in (lambda: link.claim(OFFER), channel.sync):
        desk.replies = busy("BLOBS_UNAVAILABLE", store_away=True)
        with pytest.raises(StoreAwayError, match="busy"):
            ask()
        for code in ("BLOBS_UNAVAILABLE", "DATABASE_BUSY"):
            desk.replies = busy(code)
            with pytest.raises(PlatformUnreachableError) as caught:
                ask()
            assert not isinstance(caught.value, StoreAwayError)


def test_an_exchange_names_its_lease_and_a_large_one_is_packed(channel: RunChannel, desk: Desk) -> None:
    assert not channel.sync().stop
    channel.sync(facts={"environment": "x" * 10_000})
    (_, small, first), (path, large, second) = desk.asked
    assert path == "/api/workers/v1/runs/run_1/sync" and first == {"lease": "lease"}
    assert "content-encoding" not in small and large["content-encoding"] == "gzip"
    assert second["facts"]["environment"] == "x" * 10_000 and int(large["content-length"]) < 1000


def test_a_stop_is_passed_on_once_and_to_a_later_listener(channel: RunChannel, desk: Desk) -> None:
    heard: list[str] = []
    channel.listen(lambda: heard.append("first"))
    desk.replies = [JSONResponse(REPLY.model_copy(update={"stop": True}).to_wire()) for _ in range(2)]
    channel.sync()
    channel.sync()
    assert heard == ["first"] and channel.stop_asked
    channel.listen(lambda: heard.append("second"))
    assert heard == ["first", "second"]


def test_what_is_busy_for_a_moment_is_asked_again(channel: RunChannel, desk: Desk) -> None:
    desk.replies = [JSONResponse(AWAY, status_code=503) for _ in range(2)]
    assert channel.sync().next_s == 1
    assert len(desk.asked) == 3


@pytest.mark.parametrize("word", ["end", "release"])
def test_the_last_word_is_repeated_for_a_lease(channel: RunChannel, desk: Desk, word: str) -> None:
    say = {"end": lambda: channel.end("finished"), "release": channel.release}[word]
    channel.sync()
    desk.asked.clear()
    desk.replies = [JSONResponse(AWAY, status_code=503) for _ in range(20)]
    desk.replies.append(JSONResponse({"status": "finished"}))
    assert say().status == "finished"
    assert len(desk.asked) == 21 and desk.asked[-1][0].endswith(word)

    desk.replies = [JSONResponse(REPLY.model_copy(update={"term_s": 1e-6}).to_wire())]
    channel.sync()
    desk.asked.clear()
    desk.replies = [JSONResponse(AWAY, status_code=503) for _ in range(20)]
    with pytest.raises(PlatformUnreachableError, match="away"):
        say()
    assert len(desk.asked) == 3, "no longer than a lease, and as often as anything else"


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (409, {"error": "gone", "code": "LEASE_LOST"}, LeaseLostError),
        (409, {"error": "no", "code": "JOURNAL_OFFSET", "details": {"bytes": 7}}, JournalOffsetError),
        (401, {"error": "revoked", "code": "TOKEN_REVOKED"}, CredentialRefusedError),
        (426, {"message": "too old", "status": "unsupported"}, CredentialRefusedError),
        (500, {"error": "broken", "code": "INTERNAL"}, PlatformUnreachableError),
        (501, {"error": "no POST here"}, PlatformError),
        (400, {"error": "no such line", "code": "VALIDATION"}, OsmosisError),
        (200, {"status": "ok"}, PlatformUnreachableError),
    ],
)
def test_each_refusal_is_an_error_of_its_kind(
    channel: RunChannel, desk: Desk, status: int, body: dict[str, Any], kind: type[OsmosisError]
) -> None:
    desk.replies = [JSONResponse(body, status_code=status) for _ in range(3)]
    with pytest.raises(kind) as caught:
        channel.sync()
    assert "ticket" not in str(caught.value)
    if isinstance(caught.value, JournalOffsetError):
        assert caught.value.stored == 7


def test_a_platform_that_is_not_there_is_unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_link, "_WAITS", Waits())
    link = HttpLink(f"http+unix://{str(tmp_path).replace('/', '%2F')}%2Fnone.sock", "ticket")
    with pytest.raises(PlatformUnreachableError, match="does not answer"):
        link.claim(OFFER)
    link.close()


def test_no_credential_goes_to_a_platform_in_the_clear() -> None:
    with pytest.raises(OsmosisError, match="insecure"):
        HttpLink("http://platform.example", "ticket")


def test_a_lease_runs_out_by_this_machines_own_clock(link: HttpLink) -> None:
    now = [0.0]
    channel = RunChannel(link, Assignment.model_validate(ASSIGNMENT), clock=lambda: now[0])
    now[0] = 29.0
    assert not channel.has_run_out()
    channel.sync()
    now[0] = 58.0
    assert not channel.has_run_out()
    now[0] = 59.0
    assert channel.has_run_out()


@pytest.mark.parametrize("term_s", [5.0, 30.0, 600.0])
def test_a_lost_question_is_repeated_in_time(monkeypatch: pytest.MonkeyPatch, term_s: float) -> None:
    monkeypatch.setattr(http_link, "_WAITS", Waits((0.0, 0.0, 0.0)))
    now, losses = [0.0], [1]

    def carry(request: httpx.Request) -> httpx.Response:
        """Lose a question until it is given up; time passes by nothing else."""
        if request.url.path.endswith("claim"):
            return httpx.Response(
                200, json={**ASSIGNMENT, "lease": {"token": "a", "attempt": 1, "term_s": term_s}}
            )
        if losses[0]:
            losses[0] -= 1
            now[0] += request.extensions["timeout"]["read"]
            raise httpx.ReadTimeout("timed out", request=request)
        return httpx.Response(200, json=SyncReply(stop=False, term_s=term_s, next_s=1).to_wire())

    link = HttpLink("https://platform.example", "ticket")
    link._http.close()
    link._http = httpx.Client(transport=httpx.MockTransport(carry))
    claimed = link.claim(OFFER)
    assert claimed is not None
    channel = RunChannel(link, claimed, clock=lambda: now[0])
    now[0] = term_s / 2
    channel.sync()
    assert now[0] < term_s and not channel.has_run_out() and channel.answers == 1
    link.close()


# -- bytes -----------------------------------------------------------------------------------------


def test_bytes_go_up_by_grants_and_the_credential_stays_here(channel: RunChannel, desk: Desk) -> None:
    contents = {f"files/{number}": b"x" * number for number in range(3)}
    grants = [UploadGrant(name=name, id=f"id-{name}", url=f"/blobs/{name[-1]}") for name in contents]
    desk.replies = [JSONResponse(REPLY.model_copy(update={"uploads": grants}).to_wire())]
    sent = channel.store([OutgoingBlob.of(name, BytesIO(content)) for name, content in contents.items()])
    assert [(each.name, each.id, each.etag) for each in sent] == [
        (name, f"id-{name}", "tag") for name in contents
    ]
    assert [each.sha256 for each in sent] == [hashlib.sha256(each).hexdigest() for each in contents.values()]
    assert {name: desk.blobs[name] for name in "012"} == {"0": b"", "1": b"x", "2": b"xx"}
    assert [wanted["size"] for wanted in desk.asked[0][2]["wanted"]] == [0, 1, 2]
    assert all("authorization" not in headers for path, headers, _ in desk.asked if path.startswith("/blobs"))


@pytest.mark.parametrize(
    ("answer", "error", "tries"),
    [
        (Response(status_code=403), PlatformUnreachableError, 3),
        (Response(status_code=500), StoreAwayError, 3),
        (HTMLResponse("<p>We are back soon.</p>"), StoreAwayError, 3),
        (Response(b"ro", headers=TAGGED), StoredBytesError, 1),
        (Response(b"sowr", headers=TAGGED), StoredBytesError, 1),
        (Response(status_code=404), StoredBytesError, 1),
    ],
    ids=["refused", "broken", "a page", "too few", "others", "not there"],
)
def test_bytes_are_waited_for_unless_the_store_says_that_it_has_others(
    link: HttpLink, desk: Desk, tmp_path: Path, answer: Response, error: type[OsmosisError], tries: int
) -> None:
    desk.stores = [answer]
    with pytest.raises(error) as failed:
        link.fetch(ROWS, tmp_path / "rows")
    assert failed.value.hint is None, "no command is to be run again"
    assert isinstance(failed.value, StoreAwayError) is (error is StoreAwayError), "a refusal is counted"
    assert len(desk.asked) == tries and list(tmp_path.iterdir()) == []
    if tries > 1:
        desk.stores = [answer, answer, Response(b"rows", headers=TAGGED)]
    else:
        desk.stores = []
    link.fetch(ROWS, tmp_path / "rows")
    assert (tmp_path / "rows").read_bytes() == b"rows"


@pytest.mark.parametrize(
    ("status", "error", "tries"),
    [
        (403, PlatformUnreachableError, 1),
        (410, PlatformUnreachableError, 1),
        (500, StoreAwayError, 3),
        (503, StoreAwayError, 3),
        (413, TransferError, 1),
    ],
)
def test_bytes_that_a_store_does_not_take_for_now_fail_no_run_and_are_sent_to_a_new_place(
    link: HttpLink, desk: Desk, status: int, error: type[OsmosisError], tries: int
) -> None:
    desk.stores = [Response(status_code=status)]
    with pytest.raises(error, match=f"answered HTTP {status}") as failed:
        link.send(GRANT, BytesIO(b"sent"), 4)
    assert isinstance(failed.value, StoreAwayError) is (error is StoreAwayError), "a refusal is counted"
    assert len(desk.asked) == tries, "a URL whose time is over is asked for again by its caller"
    desk.stores = []
    assert link.send(GRANT, BytesIO(b"sent"), 4) == "tag" and desk.blobs["sent"] == b"sent"


# -- a platform that lies --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "lie"),
    [
        ("run", {"id": "../../other"}),
        ("run", {"id": "-c"}),
        ("run", {"name": ".."}),
        ("run", {"name": "a\x1b[31m"}),
        ("run", {"rollout_name": "../../.ssh"}),
        ("lease", {"term_s": 0}),
        ("", {"dataset_extension": "../../a"}),
        ("", {"next_s": -1}),
    ],
)
def test_a_claim_that_lies(link: HttpLink, desk: Desk, part: str, lie: dict[str, Any]) -> None:
    within = {part: {**ASSIGNMENT[part], **lie}} if part else lie  # type: ignore[dict-item]
    desk.replies = [JSONResponse({**ASSIGNMENT, **within})]
    with pytest.raises(OsmosisError, match="the claim"):
        link.claim(OFFER)


def test_the_pace_has_a_bound(channel: RunChannel, desk: Desk) -> None:
    desk.replies = [JSONResponse(REPLY.model_copy(update={"next_s": 1e9}).to_wire())]
    channel.sync()
    assert channel.pace_s == 10.0


def test_a_reply_without_end_and_a_packed_part_larger_than_its_lines_are_not_read_to_their_end(
    link: HttpLink, desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_link, "_LARGEST_REPLY_BYTES", 1 << 20)

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(16):
            yield bytes(1 << 18)

    desk.replies = [StreamingResponse(endless())]
    with pytest.raises(PlatformUnreachableError, match="more than can be read"):
        link.claim(OFFER)
    desk.blobs["part"] = bytes(1 << 18)
    part = JournalSegment(url="/blobs/part", size=7, sha256=DIGEST, offset=0, packed=True)
    with pytest.raises(OsmosisError, match="more than"):
        link.fetch(part, tmp_path / "part")
    assert list(tmp_path.iterdir()) == []
