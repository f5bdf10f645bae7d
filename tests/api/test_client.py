"""The HTTP client: requests, replies, refusals, retries and redirects."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import respx

from osmosis_ai._version import __version__
from osmosis_ai.api.client import PlatformClient, segment
from osmosis_ai.api.connections import COMPLETING, Transient, Waits, connection_hint
from osmosis_ai.api.http_errors import PlatformError, ReplyRedactor
from osmosis_ai.api.models.base import LogPage, WireModel
from osmosis_ai.api.models.datasets import Dataset, DatasetCreateRequest, DatasetList
from osmosis_ai.api.models.runs import EvalRunSubmit, RunSecrets
from osmosis_ai.api.paging import iterate_pages
from osmosis_ai.config.sections import Experiment
from osmosis_ai.errors import OsmosisError
from osmosis_ai.redaction import REDACTED
from osmosis_ai.services.datasets import get_dataset, list_datasets
from osmosis_ai.services.log_following import LogFollower
from osmosis_ai.services.models import deploy, undeploy
from osmosis_ai.services.runs.lifecycle import post_stop, run_path
from osmosis_ai.services.runs.submit import ask_platform, post_run
from osmosis_ai.services.secrets import set_secret
from tests.api.conftest import BASE, GIT, TOKEN

# What travels


def test_request_headers(client: PlatformClient, platform: respx.MockRouter) -> None:
    route = platform.get("/api/cli/datasets").respond(json={"datasets": []})
    list_datasets(client, limit=50, everything=False)
    sent = route.calls.last.request
    assert dict(sent.headers) == {
        "host": "osmosis.fern.example",
        "authorization": f"Bearer {TOKEN}",
        "content-type": "application/json",
        "user-agent": f"osmosis-cli/{__version__}",
        "x-osmosis-cli-version": __version__,
        "x-osmosis-git": GIT,
        "accept-encoding": "identity",
        "connection": "keep-alive",
    }
    assert str(sent.url) == f"{BASE}/api/cli/datasets?limit=50&offset=0"
    bare = platform.get("/x").respond(json={})
    client.request("GET", "/x", model=WireModel, git="never", anonymous=True)
    assert not {"authorization", "x-osmosis-git"} & set(bare.calls.last.request.headers)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_non_finite_numbers_are_refused(client: PlatformClient, number: float) -> None:
    with pytest.raises(OsmosisError, match="nan and inf"):
        client.post("/x", {"advanced_config": {"x": number}}, model=WireModel)


def test_missing_git_identity(platform: respx.MockRouter) -> None:
    with pytest.raises(PlatformError) as caught, PlatformClient(BASE, TOKEN) as client:
        list_datasets(client, limit=50, everything=False)
    assert caught.value.platform_code == "GIT_SCOPE_HEADER_REQUIRED"
    assert caught.value.code == "VALIDATION"
    assert not platform.calls


def test_insecure_platform_url(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OsmosisError, match="Insecure"):
        PlatformClient("http://platform.example", TOKEN)
    PlatformClient("http://127.0.0.1:8000", TOKEN).close()
    monkeypatch.setenv("OSMOSIS_ALLOW_INSECURE_PLATFORM_URL", "1")
    PlatformClient("http://platform.example", TOKEN).close()


def test_unusable_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "gopher://me:hunter2@proxy.example")
    with pytest.raises(OsmosisError, match="Proxy") as caught:
        PlatformClient(BASE, TOKEN)
    assert caught.value.code == "NETWORK"
    assert "hunter2" not in caught.value.message
    PlatformClient("http://localhost:8000", TOKEN).close()


def test_token_is_not_in_repr_or_log(
    client: PlatformClient, platform: respx.MockRouter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    platform.get("/api/cli/datasets").respond(json={"datasets": []})
    list_datasets(client, limit=50, everything=False)
    assert TOKEN not in f"{client!r} {caplog.text}"


# What comes back


@pytest.mark.parametrize("content", [b"[]", b'"x"', b"<html></html>", b"{", b"\xff", b"[" * 200_000])
def test_success_without_a_json_object(
    client: PlatformClient, platform: respx.MockRouter, content: bytes
) -> None:
    platform.post("/x").respond(200, content=content)
    with pytest.raises(PlatformError, match="Invalid JSON response from platform") as caught:
        client.post("/x", {}, model=WireModel)
    assert caught.value.code == "PLATFORM_ERROR"
    assert "status_code" not in caught.value.details
    assert ("the reply is a web page" in (caught.value.hint or "")) is content.startswith(b"<")


def test_success_without_a_required_key(client: PlatformClient, platform: respx.MockRouter) -> None:
    platform.get("/api/cli/datasets/d").respond(json={"file_size": "osm_secret", "status": "uploaded"})
    with pytest.raises(PlatformError, match=r"GET /prefix/api/cli/datasets/d is invalid.*`id`") as caught:
        get_dataset(client, "d")
    assert "osm_secret" not in caught.value.message


def test_reply_size_limit(
    client: PlatformClient, platform: respx.MockRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osmosis_ai.api.client._LARGEST_REPLY_BYTES", 1000)
    platform.post("/x").respond(200, content=b" " * 1001)
    with pytest.raises(PlatformError, match="too large"):
        client.post("/x", {}, model=WireModel)


def test_reply_time_limit(platform: respx.MockRouter) -> None:
    platform.post("/x").respond(200, content=b"{}")
    client = PlatformClient(BASE, TOKEN, GIT, timeout_s=-1)
    with client, pytest.raises(PlatformError, match="Connection error: timed out"):
        client.post("/x", {}, model=WireModel)


# The connection


@pytest.mark.parametrize(
    "failure, words",
    [
        (httpx.ConnectError("[Errno 111] Connection refused"), "Connection refused"),
        (httpx.ReadTimeout("x"), "timed out"),
        (httpx.RemoteProtocolError("Server disconnected"), "Server disconnected"),
        (httpx.ReadError(""), "ReadError"),
    ],
)
def test_connection_errors(
    client: PlatformClient, platform: respx.MockRouter, failure: Exception, words: str
) -> None:
    platform.post("/x").mock(side_effect=failure)
    with pytest.raises(PlatformError) as caught:
        client.post("/x", {}, model=WireModel)
    error = caught.value
    assert error.message == f"Connection error: {words} ({BASE})" and error.hint
    assert (error.code, error.details, error.status) == ("PLATFORM_ERROR", {"platform_url": BASE}, None)


# The version


@pytest.mark.parametrize(
    "status, code", [("upgrade_available", "UPGRADE_AVAILABLE"), ("deprecated", "DEPRECATED")]
)
def test_version_warning_is_given_once(platform: respx.MockRouter, status: str, code: Any) -> None:
    headers = {"X-Osmosis-Version-Status": status, "X-Osmosis-Version-Message": "0.4 is out"}
    platform.get("/api/cli/datasets").respond(json={"datasets": []}, headers=headers)
    said: list[tuple[str, str]] = []
    for _ in range(2):
        with PlatformClient(BASE, TOKEN, GIT, on_warning=lambda *warning: said.append(warning)) as client:
            list_datasets(client, limit=50, everything=False)
            list_datasets(client, limit=50, everything=False)
    assert said == [("0.4 is out", code)]


def test_request_body_has_only_set_values(client: PlatformClient, platform: respx.MockRouter) -> None:
    route = platform.post("/api/cli/datasets").respond(json={"id": "d"})
    request = DatasetCreateRequest(file_name="maze", file_size=7, extension="csv")
    client.post("/api/cli/datasets", request, model=Dataset)
    request.overwrite_dataset_id = "ds_31"
    client.post("/api/cli/datasets", request, model=Dataset)
    first, second = (json.loads(call.request.content) for call in route.calls)
    assert first == {"file_name": "maze", "file_size": 7, "extension": "csv"}
    assert second == {**first, "overwrite_dataset_id": "ds_31"}


def _failure(client: PlatformClient, **reply: Any) -> PlatformError:
    with respx.mock(base_url=BASE) as router:
        router.post("/x").mock(return_value=httpx.Response(**reply))
        with pytest.raises(PlatformError) as caught:
            client.post("/x", None, model=WireModel)
    error = caught.value
    assert TOKEN not in f"{error.message} {error.hint} {error.details} {error.body}"
    return error


# Refusals


@pytest.mark.parametrize(
    "status, platform_code, code",
    [
        (400, "SOME_CODE", "VALIDATION"),
        (404, "SOME_CODE", "NOT_FOUND"),
        (409, "SOME_CODE", "CONFLICT"),
        (429, "SOME_CODE", "RATE_LIMITED"),
        *((status, "SOME_CODE", "PLATFORM_ERROR") for status in (402, 403, 410, 413, 422, 500, 503)),
        (403, "SUBSCRIPTION_REQUIRED", "SUBSCRIPTION_REQUIRED"),
        (403, "BILLING_REQUIRED", "BILLING_REQUIRED"),
        (402, "BILLING_REQUIRED", "PLATFORM_ERROR"),
    ],
)
def test_error_codes_by_status(client: PlatformClient, status: int, platform_code: str, code: str) -> None:
    body = {"error": "No.", "code": platform_code, "field": "name", "extra": [1]}
    error = _failure(client, status_code=status, json=body)
    assert (error.message, error.code, error.status) == ("No.", code, status)
    assert error.details == {"platform_code": platform_code, **body, "status_code": status}


def test_subscription_error_by_its_message(client: PlatformClient) -> None:
    error = _failure(client, status_code=403, json={"error": "Your Subscription ended"})
    assert error.code == "SUBSCRIPTION_REQUIRED"


@pytest.mark.parametrize(
    "reply, excerpt",
    [
        ({"text": "<html>" + "x" * 300}, "x" * 200),
        (
            {
                "text": "<!DOCTYPE html>\n<html>\n<head><title>502 Bad Gateway</title>\n<style>\nb {x: 1}\n</style>"
                "<script>\nlet a = 1 < 2\n</script></head>\n<body>\n<center><h1>nginx &amp; co</h1>\n</body></html>"
            },
            "502 Bad Gateway nginx & co",
        ),
        ({"text": f"<html>{TOKEN[:4]}&#{ord(TOKEN[4])};{TOKEN[5:]}</html>"}, "[REDACTED]"),
        ({"json": {"error": {"message": "nested"}}}, '{"error":{"message":"nested"}}'),
        ({"content": b"bad \xff \x1b[31mred"}, "bad \ufffd [31mred"),
    ],
)
def test_error_body_excerpts(client: PlatformClient, reply: dict[str, Any], excerpt: str) -> None:
    error = _failure(client, status_code=502, **reply)
    assert error.message == f"API error: HTTP 502. Response: {excerpt}"
    assert error.details["status_code"] == 502


def test_escape_sequences_are_removed(client: PlatformClient) -> None:
    body = {"error": "a\x1b]0;evil\x07b", "issues": ["c\x1b[2Jd"]}
    assert "\x1b" not in _failure(client, status_code=400, json=body).message


@pytest.mark.parametrize(
    "origin, platform_code, words",
    [
        ("environment", "TOKEN_EXPIRED", "OSMOSIS_TOKEN has expired."),
        ("environment", "TOKEN_INVALID", f"OSMOSIS_TOKEN is not valid on {BASE}."),
        ("given", "TOKEN_INVALID", f"This token is not valid on {BASE}."),
        ("saved", "TOKEN_EXPIRED", f"Your session on {BASE} has expired."),
        ("saved", "TOKEN_REVOKED", f"Your session on {BASE} has been revoked."),
        ("saved", None, f"Your session on {BASE} has expired or is no longer valid."),
        ("saved", "TOKEN_MISSING", f"The token did not reach {BASE}."),
    ],
)
def test_messages_of_401(origin: Any, platform_code: str | None, words: str) -> None:
    with PlatformClient(BASE, TOKEN, GIT, token_origin=origin) as client:
        error = _failure(client, status_code=401, json={"error": f"bad {TOKEN}", "code": platform_code})
    assert (error.message, error.code, error.details) == (words, "AUTH_REQUIRED", {})
    assert error.hint


def test_hidden_values_are_in_no_error(client: PlatformClient) -> None:
    client.hide(["s3cret", "s3cret-and-more"])
    body = {
        "error": "s3cret-and-more?",
        "issues": [{"key": "s3cret"}],
        "value": "other",
        "x": [{"s3cret": "s3cret"}],
    }
    error = _failure(client, status_code=400, json=body)
    assert "s3cret" not in f"{error.message} {error.details}" and "other" not in str(error.details)
    cut = _failure(client, status_code=502, text="x" * 195 + "s3cret-and-more")
    assert "s3cr" not in cut.message


def test_submitted_secrets_are_in_no_error(client: PlatformClient, platform: respx.MockRouter) -> None:
    run = EvalRunSubmit(
        experiment_config=Experiment(rollout="r", entrypoint="main.py", model_path="m", dataset="d"),
        secrets=RunSecrets(required=["A"], provided={"A": "canary-value"}),
    )
    platform.post("/api/cli/eval-runs").respond(400, json={"error": "A=canary-value is bad"})
    with pytest.raises(PlatformError) as caught:
        post_run(client, "eval", run)
    assert caught.value.message == "A=[REDACTED] is bad"
    assert "canary-value" not in repr(run)


_MODEL = {"id": "m", "model_name": "m"}

# Trying again


@pytest.mark.parametrize(
    "reply, calls",
    [
        *((httpx.Response(status), 3) for status in (429, 502, 503, 504)),
        *((httpx.Response(status), 1) for status in (500, 404, 401)),
        (httpx.ReadTimeout("x"), 1),
    ],
)
def test_read_retries(client: PlatformClient, platform: respx.MockRouter, reply: Any, calls: int) -> None:
    route = platform.get("/api/cli/datasets").mock(side_effect=[reply] * calls)
    with pytest.raises(PlatformError):
        list_datasets(client, limit=50, everything=False)
    assert route.call_count == calls


@pytest.mark.parametrize("failure", [httpx.ConnectError("x"), httpx.Response(503), httpx.Response(429)])
def test_submits_are_not_retried(client: PlatformClient, platform: respx.MockRouter, failure: Any) -> None:
    route = platform.post("/api/cli/eval-runs").mock(side_effect=[failure])
    with pytest.raises(PlatformError):
        post_run(client, "eval", _SUBMIT)
    assert route.call_count == 1


def test_completion_retries(client: PlatformClient, platform: respx.MockRouter, slept: list[float]) -> None:
    route = platform.post("/api/cli/datasets/d/complete")
    route.side_effect = [
        httpx.ReadTimeout("x"),
        httpx.Response(500),
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json={}),
        httpx.Response(200, json={"id": "d", "status": "processing"}),
    ]
    found = client.post("/api/cli/datasets/d/complete", model=Dataset, retry=COMPLETING)
    assert found.status == "processing"
    assert slept == [1, 2, 4, 8]


_SUBMIT = EvalRunSubmit(
    experiment_config=Experiment(rollout="r", entrypoint="e", model_path="m", dataset="d")
)


@pytest.mark.parametrize(
    "path, answer, call",
    [
        ("models/m/deploy", _MODEL | {"status": "active"}, lambda client: deploy(client, "m")),
        ("models/m/undeploy", _MODEL | {"status": "inactive"}, lambda client: undeploy(client, "m")),
        ("training-runs/r/stop", {"id": "r"}, lambda client: post_stop(client, "train", "r")),
        ("eval-runs/check", {"dry_run": True}, lambda client: ask_platform(client, _SUBMIT)),
        (
            "environment-secrets",
            {"id": "s", "name": "KEY"},
            lambda client: set_secret(client, "KEY", "value", "personal"),
        ),
    ],
)
def test_idempotent_post_retries(
    client: PlatformClient,
    platform: respx.MockRouter,
    slept: list[float],
    path: str,
    answer: dict[str, Any],
    call: Callable[[PlatformClient], object],
) -> None:
    route = platform.post(f"/api/cli/{path}")
    route.side_effect = [
        httpx.RemoteProtocolError("the server closed the connection"),
        httpx.Response(503, headers={"Retry-After": "3"}),
        httpx.Response(200, json=answer),
    ]
    call(client)
    assert route.call_count == 3 and slept == [0.2, 3]
    assert len({sent.request.content for sent in route.calls}) == 1


# Redirects


def test_redirect_within_the_platform(client: PlatformClient, platform: respx.MockRouter) -> None:
    platform.get("/api/cli/datasets").respond(307, headers={"Location": "/prefix/other"})
    other = platform.get("/other").respond(json={"datasets": []})
    list_datasets(client, limit=50, everything=False)
    assert other.calls.last.request.headers["authorization"] == f"Bearer {TOKEN}"


@pytest.mark.parametrize(
    "target",
    ["https://evil.example/x", "http://osmosis.fern.example/x", "https://osmosis.fern.example:444/x"],
)
def test_redirect_elsewhere_is_refused(client: PlatformClient, target: str) -> None:
    with respx.mock(assert_all_called=False) as router:
        router.get(f"{BASE}/api/cli/datasets").respond(302, headers={"Location": target})
        elsewhere = router.get(target).respond(json={})
        with pytest.raises(PlatformError, match="redirects to") as caught:
            list_datasets(client, limit=50, everything=False)
    assert not elsewhere.called
    assert caught.value.hint and "osmosis --platform " in caught.value.hint


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_post_redirects_are_not_followed(
    client: PlatformClient, platform: respx.MockRouter, status: int
) -> None:
    platform.post("/api/cli/eval-runs/r/stop").respond(status, headers={"Location": "/prefix/other"})
    other = platform.route(path="/prefix/other").respond(json={})
    with pytest.raises(PlatformError, match="not followed"):
        post_stop(client, "eval", "r")
    assert not other.called


def test_redirect_loop(client: PlatformClient, platform: respx.MockRouter) -> None:
    platform.get("/api/cli/datasets").respond(302, headers={"Location": "/prefix/api/cli/datasets"})
    with pytest.raises(PlatformError, match="redirects endlessly"):
        list_datasets(client, limit=50, everything=False)


@pytest.mark.parametrize("target", ["https://[::1", "https://\x7f", "mailto:mara"])
def test_redirect_to_nonsense(client: PlatformClient, platform: respx.MockRouter, target: str) -> None:
    platform.get("/api/cli/datasets").respond(302, headers={"Location": target})
    with pytest.raises(PlatformError, match=r"(?i)invalid URL"):
        list_datasets(client, limit=50, everything=False)


def test_redirect_without_a_host_does_not_change_the_port() -> None:
    with respx.mock(assert_all_called=False) as router:
        router.get("https://fern.example:8443/api/cli/datasets").respond(
            302, headers={"Location": "https:///api/cli/datasets"}
        )
        elsewhere = router.get("https://fern.example/api/cli/datasets").respond(json={"datasets": []})
        with pytest.raises(PlatformError, match=r"redirects to https://fern\.example "):
            list_datasets(
                PlatformClient("https://fern.example:8443", TOKEN, git_identity="fern/agents"),
                limit=50,
                everything=False,
            )
    assert not elsewhere.called


def test_retry_after_is_limited(slept: list[float]) -> None:
    asked = iter([7.0, 0.1, 3600.0])

    def attempt() -> None:
        raise Transient(OsmosisError("busy"), retry_after_s=next(asked))

    with pytest.raises(OsmosisError, match="busy"):
        Waits((1, 2, 4)).run(attempt)
    assert slept == [7, 2]


def test_redaction_of_spellings() -> None:
    hidden = ReplyRedactor(['pä"ss/word'])
    for spelt in ('pä"ss/word', 'pä\\"ss/word', 'p\\u00e4\\"ss/word', "p%C3%A4%22ss%2Fword"):
        assert hidden.text(f"<{spelt}>") == f"<{REDACTED}>"


@pytest.mark.parametrize(
    "name, encoded",
    [
        ("maze-walks", "maze-walks"),
        ("acme/toy@3", "acme%2Ftoy%403"),
        ("a b", "a%20b"),
        ("50%", "50%25"),
        ("naïve", "na%C3%AFve"),
        ("a?b#c", "a%3Fb%23c"),
        (".", "%2E"),
        ("..", "%2E%2E"),
        ("...", "%2E%2E%2E"),
        ("x" * 300, "x" * 300),
    ],
)
def test_names_are_one_path_segment(name: str, encoded: str) -> None:
    assert segment(name) == encoded
    assert run_path("eval", name, "/logs") == f"/api/cli/eval-runs/{encoded}/logs"


@pytest.mark.parametrize("name", ["", "\ud800"])
def test_invalid_names(name: str) -> None:
    with pytest.raises(OsmosisError):
        segment(name)


@pytest.mark.parametrize("back", [0, 5, -1])
def test_circular_pages(back: int) -> None:
    pages = {0: DatasetList(datasets=[Dataset(id="a")], next_offset=5)}
    pages[5] = DatasetList(datasets=[Dataset(id="b")], next_offset=back)
    with pytest.raises(PlatformError, match="does not end"):
        list(iterate_pages(lambda limit, offset: pages[offset]))


def test_circular_log_pages() -> None:
    log = LogFollower(lambda limit, cursor: LogPage(next_cursor="same"))
    log.news()
    with pytest.raises(PlatformError, match="same cursor"):
        log.news()


def test_cyclic_causes_of_an_error_end() -> None:
    error, cause = httpx.ConnectError("failed"), RuntimeError()
    error.__cause__, cause.__cause__ = cause, error
    assert "check the network" in connection_hint("https://osmosis.example", error)
